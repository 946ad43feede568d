"""The modes in which TensorFlow runs a function."""

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ._flat_function import FlatFunction, to_tensors

# Those that are checked unless the user names others.
MODES = ("eager", "function", "xla", "vectorized")
# Modes that put the function into something else, which is traced and differentiated as a whole.
WRAPPED_MODES = ("while_loop", "cond", "saved_model")
FORWARD_MODES = ("eager", "function")

# Derivatives, each of which may be None, and values.
Results = tuple[list[Any], list[tf.Tensor]]


def run(mode: str, function: Callable[[list[tf.Tensor]], Results], inputs: Sequence[list[tf.Tensor]]) -> list[Results]:
    """The results for the first inputs; in the mode "vectorized", which takes them as one batch, for all inputs."""
    is_none: list[bool] = []

    def without_none(tensors: list[tf.Tensor]) -> Results:
        derivatives, values = function(tensors)
        is_none[:] = [derivative is None for derivative in derivatives]
        return [derivative for derivative in derivatives if derivative is not None], values

    def with_none(results: Results) -> Results:
        remaining = iter(results[0])
        return [None if none else next(remaining) for none in is_none], results[1]

    if mode == "vectorized":
        stacked = [tf.stack(tensors) for tensors in zip(*inputs, strict=True)]
        mapped = lambda batch: tf.vectorized_map(without_none, batch, fallback_to_while_loop=False)  # noqa: E731
        batch = tf.function(mapped).get_concrete_function(stacked)(stacked)
        return [with_none(tf.nest.map_structure(lambda t, i=i: t[i], batch)) for i in range(len(inputs))]
    if mode == "eager":
        return [with_none(without_none(inputs[0]))]
    traced = tf.function(without_none, jit_compile=mode == "xla").get_concrete_function(inputs[0])
    return [with_none(traced(inputs[0]))]


def wrap(mode: str, function: FlatFunction) -> FlatFunction:
    """The function inside of what the mode is about; itself in a mode that is only another way to run it."""
    if mode not in WRAPPED_MODES:
        return function
    outputs, others = function.call(to_tensors(function.values))
    count = len(outputs)

    def flat(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        results = function.call(tensors)
        return results[0] + results[1]

    def zeros() -> list[tf.Tensor]:
        return [tf.zeros(tensor.shape, tensor.dtype) for tensor in outputs + others]

    def loop(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        body = lambda i, *_: (i + 1, *flat(tensors))  # noqa: E731
        return list(tf.while_loop(lambda i, *_: i < 2, body, (0, *zeros()))[1:])

    def cond(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        is_true = tf.size(tensors[0]) >= 0  # Not known while tracing.
        return list(tf.nest.flatten(tf.cond(is_true, lambda: flat(tensors), zeros)))

    wrapped = {"while_loop": loop, "cond": cond}.get(mode) or _loaded(flat, function.values)

    def call(tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        results = wrapped(tensors)
        return results[:count], results[count:]

    return dataclasses.replace(function, call=call)


def _loaded(
    flat: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]], values: Sequence[np.ndarray]
) -> Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]:
    """The function as a SavedModel that was saved and loaded again."""
    module = tf.Module()
    specs = [tf.TensorSpec(value.shape, value.dtype) for value in values]
    module.function = tf.function(lambda *tensors: flat(tensors), input_signature=specs)
    module.read = list(module.function.get_concrete_function().graph.variables)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        loaded = tf.saved_model.load(folder)
    return lambda tensors: list(loaded.function(*tensors))
