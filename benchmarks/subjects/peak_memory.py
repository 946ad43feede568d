"""Memory above the inputs `fx`, `gx`, `x` and `dy`, in tensors of their size.

Forward: nothing, the value is `fx`'s memory. Backward: `dx`. If `dy` is computed on the way and not used
elsewhere, `dx` takes its place: both together are one tensor.
"""

import functools
from collections.abc import Callable, Mapping

import tensorflow as tf

from .. import program
from ..harness import peaks
from ..harness.implementations import IMPLEMENTATIONS, gradient
from ..harness.measurement import Case, Settings
from ..harness.names import EMBED, RAW_OP
from ..harness.samplers import Sampler
from ..harness.tensors import tensors

SUBJECT = "peak_memory"


def _function(make: Callable, kind: str) -> Callable[..., tf.Tensor]:
    def forward(fx: tf.Tensor, gx: tf.Tensor, x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        return make(fx, gx)(x)

    def backward(fx: tf.Tensor, gx: tf.Tensor, x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        return gradient(make(fx, gx), x, dy)

    def computed(fx: tf.Tensor, gx: tf.Tensor, x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        return gradient(make(fx, gx), x, tf.sin(dy))

    return {"forward": forward, "backward": backward, "computed": computed}[kind]


def in_worker(kind: str, traced: bool, size: int) -> dict[str, Sampler]:
    """The samplers, in the process that measures."""
    inputs = tensors([size], [size], [size], [size])
    samplers: dict[str, Sampler] = {}
    for name, make in IMPLEMENTATIONS.items():
        if name != RAW_OP:
            function = _function(make, kind)
            call = functools.partial(tf.function(function) if traced else function, *inputs)
            samplers[name] = peaks.Peak(call, 4 * size)
    return samplers


def _build(kind: str, traced: bool, size: int) -> Mapping[str, Sampler | str]:
    return peaks.worker().build(f"{__spec__.name}:in_worker", kind=kind, traced=traced, size=size)


def cases(settings: Settings) -> list[Case]:
    """Forward and backward in eager mode and in a function; an upstream that is computed, in a function."""
    size = settings.pick(32_000_000, 2_000_000)
    kinds = [
        ("forward, eager", "forward", False),
        ("forward, tf.function", "forward", True),
        ("backward, eager", "backward", False),
        ("backward, tf.function", "backward", True),
        ("backward with dy computed, tf.function", "computed", True),
    ]
    return [
        Case(SUBJECT, name, functools.partial(_build, kind, traced, size), (EMBED,), "tensors", rounds=3)
        for name, kind, traced in kinds
    ]


if __name__ == "__main__":
    program.run(cases)
