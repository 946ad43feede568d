"""The memory and time of the gradient of a long loop: plain, cut into segments, and in JAX.

The state is one Tensor, of 1 MiB in a full run. Memory is what a call takes above what is resident before it.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from .. import program
from ..harness import foreign, peaks
from ..harness.measurement import Case, Settings
from ..harness.names import JAX_CHECKPOINT, JAX_LOOP, LOG, SQRT, TF_LOOP, of_length
from ..harness.samplers import Sampler, Timed

SUBJECT = "loops"
_CHECKPOINTS = {SQRT: "sqrt", LOG: "log"}
_MIB = 2**20
_IN_TENSORFLOW = (*_CHECKPOINTS, TF_LOOP)
# Of those that keep the values of all steps; JAX's keeps three a step.
_LONGEST = {TF_LOOP: 4096, JAX_LOOP: 1024}
_IN_JAX = "benchmarks.harness.foreign_jax_loops"


def _loop(name: str, num_steps: int, body: Callable[..., Any], x: tf.Tensor) -> tf.Tensor:
    def goes_on(i: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return i < num_steps

    if name == TF_LOOP:
        return tf.while_loop(goes_on, body, (0, x), maximum_iterations=num_steps)[1]
    return cg.while_loop(goes_on, body, (0, x), num_steps, checkpoint=_CHECKPOINTS[name])[1]


def _gradients(num_steps: int, size: int, step: str, jit: bool = False) -> dict[str, Any]:
    """Each returns the gradients with respect to the state and the weights."""
    rng = np.random.default_rng(1)
    x = tf.constant(rng.normal(size=[size, size]), tf.float32)
    w = tf.Variable(rng.normal(size=[size, size]) / math.sqrt(size), dtype=tf.float32)

    def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, tf.tanh(x * w + x if step == "elementwise" else x @ w)

    def gradient(name: str) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = _loop(name, num_steps, body, x)
        return tape.gradient(y, [x, w])

    return {name: tf.function(functools.partial(gradient, name), jit_compile=jit) for name in _IN_TENSORFLOW}


def in_worker(name: str, num_steps: int, size: int) -> dict[str, Sampler]:
    """The sampler for the peak, in the process that measures."""
    gradient = _gradients(num_steps, size, "elementwise")[name]
    return {name: peaks.OfFirstCall(gradient.get_concrete_function, _MIB)}


def _memory(lengths: Sequence[int], size: int) -> Mapping[str, Sampler | str]:
    found: dict[str, Sampler | str] = {}
    for num_steps in lengths:
        for name in (*_IN_TENSORFLOW, JAX_LOOP, JAX_CHECKPOINT):
            arguments = {"name": name, "num_steps": num_steps, "size": size}
            sampler: Sampler | str
            if name in _LONGEST and num_steps > _LONGEST[name]:
                sampler = f"not run: it would keep {num_steps} states or more"
            elif name in _IN_TENSORFLOW:
                sampler = peaks.InFreshProcess(f"{__spec__.name}:in_worker", arguments)
            else:
                sampler = foreign.peak_in("jax", f"{_IN_JAX}:peak", unit=_MIB, **arguments)
            found[of_length(name, num_steps)] = sampler
    return found


def _time(jit: bool, **arguments: Any) -> Mapping[str, Sampler | str]:
    found: dict[str, Sampler | str] = {
        name: Timed(gradient) for name, gradient in _gradients(jit=jit, **arguments).items()
    }
    # JAX compiles always.
    return found | dict(foreign.times_in("jax", f"{_IN_JAX}:times", **arguments) if jit else {})


def cases(settings: Settings) -> list[Case]:
    """Memory for several lengths, and the time of one length for a light and a heavy step."""
    lengths, size = settings.pick(((256, 1024, 4096, 16384), 512), ((4, 16), 16))
    ours = tuple(of_length(name, num_steps) for name in _CHECKPOINTS for num_steps in lengths)
    memory = functools.partial(_memory, lengths, size)
    found = [Case(SUBJECT, "peak memory", memory, ours, "MiB", rounds=1)]
    num_steps = settings.pick(256, 16)
    for step in ("elementwise", "product"):
        for jit in (False, True):
            name = f"time, {step} step{', XLA' if jit else ''}"
            build = functools.partial(_time, jit, num_steps=num_steps, size=size, step=step)
            found.append(Case(SUBJECT, name, build, tuple(_CHECKPOINTS), rounds=5))
    return found


if __name__ == "__main__":
    program.run(cases)
