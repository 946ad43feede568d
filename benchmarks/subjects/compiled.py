"""Forward and backward inside of a `tf.function`, as it is and compiled by XLA."""

import functools
from collections.abc import Mapping

import tensorflow as tf

from .. import program
from ..harness.implementations import IMPLEMENTATIONS, step
from ..harness.measurement import Case, Settings
from ..harness.names import DECORATOR, EMBED, RAW_OP, TF
from ..harness.samplers import Sampler, Timed
from ..harness.tensors import tensors

SUBJECT = "compiled"
# The decorators' gradient functions in `implementations.py` do not sum.
_DO_NOT_SUM = (DECORATOR, TF)


def _build(shape: list[int], x_shape: list[int], jit_compile: bool) -> Mapping[str, Sampler | str]:
    inputs = tensors(shape, shape, x_shape, shape)
    names = [name for name in IMPLEMENTATIONS if name != RAW_OP and (shape == x_shape or name not in _DO_NOT_SUM)]
    return {name: Timed(functools.partial(tf.function(step(name), jit_compile=jit_compile), *inputs)) for name in names}


def cases(settings: Settings) -> list[Case]:
    """One element, equal shapes, and a sum to a row."""
    size = settings.pick(10_000_000, 1000)
    m, n = settings.pick([4096, 2048], [64, 48])
    return [
        Case(SUBJECT, f"{name}, {title}", functools.partial(_build, shape, x_shape, jit_compile), (EMBED, DECORATOR))
        for name, jit_compile in (("tf.function", False), ("XLA", True))
        for title, shape, x_shape in (
            ("1", [1], [1]),
            (f"{size:,}", [size], [size]),
            (f"{[m, n]} to {[n]}", [m, n], [n]),
        )
    ]


if __name__ == "__main__":
    program.run(cases)
