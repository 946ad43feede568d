"""The backward pass by dtype, beside `tf.multiply` and `tf.reduce_sum` in the same dtype."""

import functools
from collections.abc import Mapping

import tensorflow as tf

from .. import program
from ..harness.measurement import Case, Settings
from ..harness.names import MULTIPLY, REDUCE_SUM
from ..harness.samplers import Sampler, Timed
from ..harness.tensors import raw_gradient, tensors

SUBJECT = "dtypes"
_DTYPES = {"half": tf.float16, "bfloat16": tf.bfloat16} | {
    dtype.name: dtype for dtype in (tf.float32, tf.float64, tf.complex64, tf.complex128)
}
OURS = tuple(f"cg {name}" for name in _DTYPES)


def _build(shape: list[int], x_shape: list[int], axis: list[int]) -> Mapping[str, Sampler | str]:
    samplers: dict[str, Sampler | str] = {}
    for name, dtype in _DTYPES.items():
        dy, gx = tensors(shape, shape, dtype=dtype)
        samplers[f"cg {name}"] = Timed(raw_gradient(dy, gx, x_shape))
        if axis:
            samplers[f"{REDUCE_SUM} {name}"] = Timed(lambda dy=dy, gx=gx: tf.reduce_sum(dy * gx, axis))
        else:
            samplers[f"{MULTIPLY} {name}"] = Timed(lambda dy=dy, gx=gx: tf.multiply(dy, gx))
    return samplers


def cases(settings: Settings) -> list[Case]:
    """Products of equal shapes and sums to a row."""
    m, n = settings.pick([4096, 2560], [64, 48])
    return [
        Case(SUBJECT, f"backward, {m * n:,}", functools.partial(_build, [m * n], [m * n], []), OURS[:2]),
        Case(SUBJECT, f"sum {[m, n]} to {[n]}", functools.partial(_build, [m, n], [n], [0]), OURS[:2]),
    ]


if __name__ == "__main__":
    program.run(cases)
