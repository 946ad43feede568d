"""The loop of `subjects.loops` in JAX: a scan, and scans in a scan with `jax.checkpoint`."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .names import JAX_CHECKPOINT, JAX_LOOP
from .peaks import OfFirstCall
from .samplers import Sampler, Timed


def _gradients(num_steps: int, size: int, step: str) -> dict[str, Callable[[], Callable[[], Any]]]:
    """Each compiles, and returns a function that returns the gradients with respect to the state and the weights."""
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=[size, size]), jnp.float32)
    w = jnp.asarray(rng.normal(size=[size, size]) / math.sqrt(size), jnp.float32)

    def body(w: Any, x: Any, _: Any) -> tuple[Any, None]:
        return jnp.tanh(x * w + x if step == "elementwise" else x @ w), None

    def plain(x: Any, w: Any) -> Any:
        return jax.lax.scan(functools.partial(body, w), x, length=num_steps)[0]

    def in_segments(x: Any, w: Any) -> Any:
        length = math.isqrt(num_steps)

        @jax.checkpoint
        def segment(x: Any, w: Any) -> Any:
            return jax.lax.scan(functools.partial(body, w), x, length=length)[0]

        return jax.lax.scan(lambda x, _: (segment(x, w), None), x, length=num_steps // length)[0]

    def gradient(function: Callable[..., Any]) -> Callable[[], Any]:
        compiled = jax.jit(jax.grad(lambda x, w: jnp.sum(function(x, w)), (0, 1))).lower(x, w).compile()
        return lambda: jax.block_until_ready(compiled(x, w))

    return {JAX_LOOP: lambda: gradient(plain), JAX_CHECKPOINT: lambda: gradient(in_segments)}


def peak(name: str, num_steps: int, size: int, unit: int) -> dict[str, Sampler]:
    """The memory of one implementation."""
    return {name: OfFirstCall(_gradients(num_steps, size, "elementwise")[name], unit)}


def times(num_steps: int, size: int, step: str) -> dict[str, Sampler]:
    """The time of one length."""
    return {name: Timed(compile_it()) for name, compile_it in _gradients(num_steps, size, step).items()}
