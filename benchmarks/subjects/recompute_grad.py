"""The memory that `recompute_grad` saves, and its cost: a deep chain, plain, with TensorFlow's, and with ours."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

import tf_cg_ops as cg

from .. import program
from ..harness import peaks
from ..harness.measurement import Case, Settings
from ..harness.samplers import Sampler, Timed

SUBJECT = "recompute_grad"
OURS = "cg.recompute_grad"
_VARIANTS: dict[str, Callable] = {
    OURS: cg.recompute_grad,
    "tf.recompute_grad": tf.recompute_grad,
    "plain": lambda function: function,
}


def _steps(traced: bool, layers: int, size: int) -> dict[str, Callable[[], tf.Tensor]]:
    """Forward and backward through four blocks of layers."""

    def block(x: tf.Tensor) -> tf.Tensor:
        for _ in range(layers):
            x = tf.sin(x) * tf.cos(x)
        return x

    def step(blocks: list[Callable], x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for function in blocks:
                y = function(y)
        return tape.gradient(y, x)

    steps: dict[str, Callable[[], tf.Tensor]] = {}
    x = tf.ones([size])
    for name, wrap in _VARIANTS.items():
        function = functools.partial(step, [wrap(block) for _ in range(4)])
        steps[name] = functools.partial(tf.function(function) if traced else function, x)
    return steps


def in_worker(traced: bool, layers: int, size: int) -> dict[str, Sampler]:
    """The samplers for the peak, in the process that measures."""
    return {name: peaks.Peak(step, 1_000_000) for name, step in _steps(traced, layers, size).items()}


def _memory(**arguments: Any) -> Mapping[str, Sampler | str]:
    return peaks.worker().build(f"{__spec__.name}:in_worker", **arguments)


def _time(**arguments: Any) -> Mapping[str, Sampler | str]:
    return {name: Timed(step) for name, step in _steps(**arguments).items()}


def cases(settings: Settings) -> list[Case]:
    """Memory and time, in eager mode and in a function."""
    layers, size = settings.pick((10, 1_000_000), (1, 250_000))
    found = []
    for name, traced in (("eager", False), ("tf.function", True)):
        arguments = {"traced": traced, "layers": layers, "size": size}
        memory = functools.partial(_memory, **arguments)
        found.append(Case(SUBJECT, f"peak memory, {name}", memory, (OURS,), "MB", rounds=2))
        found.append(Case(SUBJECT, f"time, {name}", functools.partial(_time, **arguments), (OURS,)))
    return found


if __name__ == "__main__":
    program.run(cases)
