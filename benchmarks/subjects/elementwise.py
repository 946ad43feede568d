"""The backward pass of equal shapes, `dx = dy * gx`, from one to 100 million float32.

`cg gradient op` is one call of the op: the kernel. It stands beside plain multiplications and the streaming one of
`yardsticks.cc`. That and "numpy.multiply into" write to an output that is there; `numpy.multiply` asks the system for
one.
"Forward and backward" is the user's view: a tape, the value, its gradient.
"""

import functools
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from .. import program
from ..harness import foreign, yardsticks
from ..harness.implementations import IMPLEMENTATIONS, gradient
from ..harness.measurement import Case, Settings
from ..harness.names import DECORATOR, EMBED, KERNEL, MULTIPLY, RAW_OP, STREAM, TF
from ..harness.samplers import Sampler, Timed
from ..harness.tensors import memory, raw_gradient, tensors

SUBJECT = "elementwise"
# Beyond this only what is quick: the rest takes seconds, and the same multiples.
_MANY = 10_000_000


def _backward(size: int) -> Mapping[str, Sampler | str]:
    dy_tensor, gx_tensor = tensors([size], [size])
    dy, gx, streamed = memory(dy_tensor), memory(gx_tensor), memory(tf.zeros([size]))
    out = np.zeros_like(dy)
    return {
        KERNEL: Timed(raw_gradient(dy_tensor, gx_tensor, [size])),
        MULTIPLY: Timed(lambda: tf.multiply(dy_tensor, gx_tensor)),
        STREAM: Timed(lambda: yardsticks.multiply(dy, gx, streamed)),
        "numpy.multiply": Timed(lambda: np.multiply(dy, gx)),
        "numpy.multiply into": Timed(lambda: np.multiply(dy, gx, out=out)),
    }


def _both(size: int) -> Mapping[str, Sampler | str]:
    fx, gx, x, dy = tensors([size], [size], [size], [size])
    functions = {name: make(fx, gx) for name, make in IMPLEMENTATIONS.items() if name != RAW_OP}
    if size > _MANY:
        functions = {name: functions[name] for name in (EMBED, DECORATOR, TF)}
    samplers = {name: Timed(functools.partial(gradient, function, x, dy)) for name, function in functions.items()}
    return samplers if size > _MANY else {**samplers, **foreign.implementations("gradient", shape=[size])}


def cases(settings: Settings) -> list[Case]:
    """Both views at every size."""
    sizes = settings.pick([10**n for n in range(9)], [1, 10_000])
    both_sizes = settings.pick([1, 100, 10_000, 1_000_000, 10_000_000, 100_000_000], [1, 10_000])
    backward = [
        Case(
            SUBJECT,
            f"backward, {size:,}",
            functools.partial(_backward, size),
            (KERNEL,),
            elements=size,
            bytes_moved=12 * size,
        )
        for size in sizes
    ]
    both = [
        Case(
            SUBJECT,
            f"forward and backward, {size:,}",
            functools.partial(_both, size),
            (EMBED, DECORATOR),
            elements=size,
        )
        for size in both_sizes
    ]
    return backward + both


if __name__ == "__main__":
    program.run(cases)
