"""Memory: of a value and its gradient, of transformer blocks that are recomputed, and of long loops."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from ..harness import peaks
from ..harness.implementations import IMPLEMENTATIONS, gradient
from ..harness.measurement import Case, Samplers, Settings
from ..harness.names import (
    EMBED,
    LOG,
    NO_RECOMPUTATION,
    RAW_OP,
    RECOMPUTED,
    SQRT,
    TF_LOOP,
    of_length,
)
from ..harness.samplers import Sampler, Timed
from ..harness.tensors import tensors
from ..models import networks

_MIB = 2**20


def value_in_worker(kind: str, traced: bool, size: int) -> dict[str, Sampler]:
    """The samplers of a value, or of its gradient for `dy` or for a `dy` that is computed."""
    inputs = tensors([size], [size], [size], [size])

    def function(make: Callable, fx: tf.Tensor, gx: tf.Tensor, x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        if kind == "forward":
            return make(fx, gx)(x)
        return gradient(make(fx, gx), x, tf.sin(dy) if kind == "computed" else dy)

    samplers: dict[str, Sampler] = {}
    for name, make in IMPLEMENTATIONS.items():
        if name != RAW_OP:
            call = functools.partial(function, make)
            call = functools.partial(tf.function(call) if traced else call, *inputs)
            samplers[name] = peaks.Peak(call, 4 * size)
    return samplers


def _peak_memory(settings: Settings) -> list[Case]:
    """The peak above the inputs `fx`, `gx`, `x` and `dy`, in tensors of their size.

    Forward: nothing, because the value shares the memory of `fx`. Backward: `dx`. If `dy` is computed on the way and
    not used elsewhere, `dx` reuses its memory, so both together take one tensor.
    """
    size = settings.pick(32_000_000, 2_000_000)
    kinds = [
        ("forward, eager", "forward", False),
        ("forward, tf.function", "forward", True),
        ("backward, eager", "backward", False),
        ("backward, tf.function", "backward", True),
        ("backward with dy computed, tf.function", "computed", True),
    ]
    found = []
    for name, kind, traced in kinds:
        arguments = {"kind": kind, "traced": traced, "size": size}
        build = functools.partial(peaks.in_worker, f"{__name__}:value_in_worker", **arguments)
        found.append(Case("peak_memory", name, build, (EMBED,), "tensors", rounds=3))
    return found


_gelu = functools.partial(tf.nn.gelu, approximate=True)
_PRODUCTS = ("MatMul", "BatchMatMulV2")
_VARIANTS: dict[str, Callable[..., Any]] = {
    RECOMPUTED: cg.recompute_grad,
    f"{RECOMPUTED}, names": cg.recompute_grad(keep=["attention", "hidden"]),
    f"{RECOMPUTED}, products": cg.recompute_grad(keep=lambda op: op.type in _PRODUCTS),
    "tf.recompute_grad": tf.recompute_grad,
    NO_RECOMPUTATION: lambda function: function,
}


def _block_steps(blocks: int, batch: int, length: int, width: int, heads: int) -> dict[str, Any]:
    """Each returns the gradients with respect to all weights."""
    rng = np.random.default_rng(1)
    make = lambda shape: tf.Variable(rng.normal(size=shape) / math.sqrt(shape[0]), dtype=tf.float32)  # noqa: E731
    weights = [[make(shape) for shape in networks.block_shapes(width)] for _ in range(blocks)]
    x = tf.constant(rng.normal(size=[batch * length, width]), tf.float32)

    def block(of_block: list[tf.Variable], x: tf.Tensor) -> tf.Tensor:
        return networks.block(heads, length, of_block, x, _gelu, cg.checkpoint_name)

    def step(wrap: Callable[..., Any]) -> Any:
        functions = [wrap(functools.partial(block, of_block)) for of_block in weights]

        def gradients() -> list[Any]:
            with tf.GradientTape() as tape:
                y = x
                for function in functions:
                    y = function(y)
                loss = tf.reduce_sum(tf.square(y))
            return tape.gradient(loss, weights)

        return tf.function(gradients)

    return {name: step(wrap) for name, wrap in _VARIANTS.items()}


def block_in_worker(name: str, **arguments: int) -> dict[str, Sampler]:
    """The sampler for the peak, in the process that measures."""
    return {name: peaks.OfFirstCall(_block_steps(**arguments)[name].get_concrete_function, _MIB)}


def _blocks(settings: Settings) -> list[Case]:
    """Memory and time of a training step of transformer blocks, by what is kept."""
    arguments = settings.pick(
        {"blocks": 8, "batch": 2, "length": 256, "width": 256, "heads": 4},
        {"blocks": 2, "batch": 1, "length": 8, "width": 8, "heads": 2},
    )

    def memory() -> Samplers:
        return {
            name: peaks.InFreshProcess(f"{__name__}:block_in_worker", {"name": name, **arguments}) for name in _VARIANTS
        }

    def seconds() -> Samplers:
        return {name: Timed(step) for name, step in _block_steps(**arguments).items()}

    shape = f"{arguments['blocks']} blocks of {arguments['width']} features, {arguments['length']} positions"
    ours = tuple(name for name in _VARIANTS if name.startswith(RECOMPUTED))
    return [
        Case("blocks", f"peak memory, {shape}", memory, ours, "MiB", rounds=2),
        Case("blocks", f"time, {shape}", seconds, ours, rounds=5),
    ]


_CHECKPOINTS = {SQRT: "sqrt", LOG: "log"}
_IN_TENSORFLOW = (*_CHECKPOINTS, TF_LOOP)
# The longest loop for the implementation that keeps the values of all steps.
_LONGEST = 4096


def _loop(name: str, num_steps: int, body: Callable[..., Any], x: tf.Tensor) -> tf.Tensor:
    def goes_on(i: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return i < num_steps

    if name == TF_LOOP:
        return tf.while_loop(goes_on, body, (0, x), maximum_iterations=num_steps)[1]
    return cg.while_loop(goes_on, body, (0, x), maximum_iterations=num_steps, checkpoint=_CHECKPOINTS[name])[1]


def _loop_steps(num_steps: int, size: int, step: str, jit: bool = False) -> dict[str, Any]:
    """Each returns the gradients with respect to the state and the weights."""
    rng = np.random.default_rng(1)
    x = tf.constant(rng.normal(size=[size, size]), tf.float32)
    w = tf.Variable(rng.normal(size=[size, size]) / math.sqrt(size), dtype=tf.float32)

    def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, tf.tanh(x * w + x if step == "elementwise" else x @ w)

    def gradients(name: str) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = _loop(name, num_steps, body, x)
        return tape.gradient(y, [x, w])

    return {name: tf.function(functools.partial(gradients, name), jit_compile=jit) for name in _IN_TENSORFLOW}


def loop_in_worker(name: str, num_steps: int, size: int) -> dict[str, Sampler]:
    """The sampler for the peak, in the process that measures."""
    gradients = _loop_steps(num_steps, size, "elementwise")[name]
    return {name: peaks.OfFirstCall(gradients.get_concrete_function, _MIB)}


def _loop_memory(lengths: Sequence[int], size: int) -> Samplers:
    found: dict[str, Sampler | str] = {}
    for num_steps in lengths:
        for name in _IN_TENSORFLOW:
            arguments = {"name": name, "num_steps": num_steps, "size": size}
            sampler: Sampler | str = peaks.InFreshProcess(f"{__name__}:loop_in_worker", arguments)
            if name == TF_LOOP and num_steps > _LONGEST:
                sampler = f"not run: it would keep {num_steps} states or more"
            found[of_length(name, num_steps)] = sampler
    return found


def _loop_times(jit: bool, **arguments: Any) -> Samplers:
    steps = _loop_steps(jit=jit, **arguments)
    return {name: Timed(gradients) for name, gradients in steps.items()}


def _loops(settings: Settings) -> list[Case]:
    """Memory for several lengths, and the time of one length for a light and a heavy step; a state is 1 MiB."""
    lengths, size = settings.pick(((256, 1024, 4096, 16384), 512), ((4, 16), 16))
    ours = tuple(of_length(name, num_steps) for name in _CHECKPOINTS for num_steps in lengths)
    found = [Case("loops", "peak memory", functools.partial(_loop_memory, lengths, size), ours, "MiB", rounds=1)]
    num_steps = settings.pick(256, 16)
    for step in ("elementwise", "product"):
        for jit in (False, True):
            name = f"time, {step} step{', XLA' if jit else ''}"
            build = functools.partial(_loop_times, jit, num_steps=num_steps, size=size, step=step)
            found.append(Case("loops", name, build, tuple(_CHECKPOINTS), rounds=5))
    return found


def cases(settings: Settings) -> list[Case]:
    """Values, blocks and loops."""
    return _peak_memory(settings) + _blocks(settings) + _loops(settings)
