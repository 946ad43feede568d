"""The backward pass where `gx`, or `dy`, has one element or dimensions of size 1.

A small operand stays in a cache, so the yardstick is the traffic of the large one: read it, and write an output of
its size where there is one.
"""

import functools
from collections.abc import Mapping

import tensorflow as tf

from .. import program
from ..harness import yardsticks
from ..harness.measurement import Case, Settings
from ..harness.names import KERNEL, MULTIPLY, REDUCE_SUM, TRAFFIC
from ..harness.samplers import Sampler, Timed
from ..harness.tensors import memory, raw_gradient, tensors

SUBJECT = "broadcast"


def _build(
    dy_shape: list[int], gx_shape: list[int], x_shape: list[int], axis: list[int]
) -> Mapping[str, Sampler | str]:
    dy_tensor, gx_tensor = tensors(dy_shape, gx_shape)
    large = max(memory(dy_tensor), memory(gx_tensor), key=lambda operand: operand.size)
    out = memory(tf.zeros([large.size]))

    def plain() -> tf.Tensor:
        product = dy_tensor * gx_tensor
        return tf.reduce_sum(product, axis) if axis else product

    return {
        KERNEL: Timed(raw_gradient(dy_tensor, gx_tensor, x_shape)),
        TRAFFIC: Timed(lambda: yardsticks.read(large) if axis else yardsticks.multiply(large, None, out)),
        REDUCE_SUM if axis else MULTIPLY: Timed(plain),
    }


def cases(settings: Settings) -> list[Case]:
    """Products and sums with a `gx` of one number, one row and one column; and a `dy` of one number."""
    m, n = settings.pick([8192, 4096], [64, 48])
    forms = [
        ("gx a scalar", [m, n], [], [m, n], []),
        ("gx a row", [m, n], [n], [m, n], []),
        ("gx a column", [m, n], [m, 1], [m, n], []),
        ("dy a scalar", [], [m, n], [m, n], []),
        ("gx a scalar, to a row", [m, n], [], [n], [0]),
        ("gx a row, to a row", [m, n], [n], [n], [0]),
        ("gx a column, to a row", [m, n], [m, 1], [n], [0]),
        ("gx a row, to a column", [m, n], [n], [m, 1], [1]),
        ("gx a row, to a scalar", [m, n], [n], [], [0, 1]),
    ]
    return [
        Case(
            SUBJECT,
            f"{'sum' if shapes[-1] else 'product'}, {name}, {[m, n]}",
            functools.partial(_build, *shapes),
            (KERNEL,),
            elements=m * n,
            bytes_moved=(4 if shapes[-1] else 8) * m * n,
        )
        for name, *shapes in forms
    ]


if __name__ == "__main__":
    program.run(cases)
