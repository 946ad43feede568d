"""The cost of a call without its arithmetic: one element, in eager mode.

`cg raw op` is the op without the conversion and the checks of `embed_gradient`. `tf.identity` is the floor: the least
that a gradient on a tape costs. PyTorch and JAX do the same job in processes of their own.
"""

import functools
from collections.abc import Callable, Mapping

import tensorflow as tf

from .. import program
from ..harness import foreign
from ..harness.implementations import IMPLEMENTATIONS, gradient
from ..harness.measurement import Case, Settings
from ..harness.names import DECORATOR, EMBED, IDENTITY, RAW_OP
from ..harness.samplers import Sampler, Timed
from ..harness.tensors import tensors

SUBJECT = "dispatch"
OURS = (EMBED, DECORATOR, RAW_OP)


def _forward() -> Mapping[str, Sampler | str]:
    fx, gx, x = tensors([], [], [])
    functions = {name: functools.partial(make(fx, gx), x) for name, make in IMPLEMENTATIONS.items()}
    return {name: Timed(function) for name, function in functions.items()}


def _recorded() -> Mapping[str, Sampler | str]:
    fx, gx, x = tensors([], [], [])

    def record(function: Callable[[], object]) -> None:
        with tf.GradientTape() as tape:
            tape.watch(x)
            function()

    functions = {name: functools.partial(make(fx, gx), x) for name, make in IMPLEMENTATIONS.items()}
    ours = {name: Timed(functools.partial(record, function)) for name, function in functions.items()}
    return {
        **ours,
        "the tape alone": Timed(lambda: record(lambda: None)),
        **foreign.implementations("forward", shape=[]),
    }


def _both() -> Mapping[str, Sampler | str]:
    fx, gx, x, dy = tensors([], [], [], [])
    ours = {name: Timed(functools.partial(gradient, make(fx, gx), x, dy)) for name, make in IMPLEMENTATIONS.items()}
    floor = Timed(functools.partial(gradient, tf.identity, x, dy))
    return {**ours, IDENTITY: floor, **foreign.implementations("gradient", shape=[])}


def _sizes(sizes: list[int]) -> Mapping[str, Sampler | str]:
    samplers = {}
    for size in sizes:
        fx, gx, x = tensors([size], [size], [size])
        samplers[f"{EMBED}, {size:,}"] = Timed(functools.partial(IMPLEMENTATIONS[EMBED](fx, gx), x))
    return samplers


def cases(settings: Settings) -> list[Case]:
    """Forward without and with a tape, forward and backward, and forward at several sizes."""
    sizes = settings.pick([1, 10_000, 100_000_000], [1, 10_000])
    largest = f"{EMBED}, {sizes[-1]:,}"
    return [
        Case(SUBJECT, "forward, no tape", _forward, OURS),
        Case(SUBJECT, "forward, on a tape", _recorded, OURS),
        Case(SUBJECT, "forward and backward", _both, OURS),
        Case(SUBJECT, "forward by number of elements", functools.partial(_sizes, sizes), (largest,)),
    ]


if __name__ == "__main__":
    program.run(cases)
