"""The modes in which TensorFlow runs a function."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# Those that are checked unless the user names others.
MODES = ("eager", "function", "xla", "vectorized")
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
