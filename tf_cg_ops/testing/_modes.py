"""The ways in which TensorFlow runs a function, each with what comes out of it."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

MODES = ("eager", "function", "xla", "vectorized")
FORWARD_MODES = ("eager", "function")

# What a function computes: derivatives, each of which may be None, and values.
Computed = tuple[list[Any], list[tf.Tensor]]


def run(
    mode: str, function: Callable[[list[tf.Tensor]], Computed], inputs: Sequence[list[tf.Tensor]]
) -> list[Computed]:
    """What the function computes of the first inputs, or of all of them if the mode makes one call of them."""
    absent: list[bool] = []

    def without_none(tensors: list[tf.Tensor]) -> Computed:
        derivatives, values = function(tensors)
        absent[:] = [derivative is None for derivative in derivatives]
        return [derivative for derivative in derivatives if derivative is not None], values

    def with_none(computed: Computed) -> Computed:
        remaining = iter(computed[0])
        return [None if is_none else next(remaining) for is_none in absent], computed[1]

    if mode == "vectorized":
        stacked = [tf.stack(tensors) for tensors in zip(*inputs, strict=True)]
        mapped = lambda batch: tf.vectorized_map(without_none, batch, fallback_to_while_loop=False)  # noqa: E731
        batch = tf.function(mapped).get_concrete_function(stacked)(stacked)
        return [with_none(tf.nest.map_structure(lambda t, i=i: t[i], batch)) for i in range(len(inputs))]
    if mode == "eager":
        return [with_none(without_none(inputs[0]))]
    traced = tf.function(without_none, jit_compile=mode == "xla").get_concrete_function(inputs[0])
    return [with_none(traced(inputs[0]))]
