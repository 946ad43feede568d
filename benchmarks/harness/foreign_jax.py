"""A value with its derivative in JAX: `jax.custom_vjp`, called as it is and compiled."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .names import COMPILED_JAX, JAX
from .samplers import Sampler, Timed


@jax.custom_vjp
def _embed(fx: Any, gx: Any, x: Any) -> Any:
    return fx


def _forward(fx: Any, gx: Any, x: Any) -> Any:
    return fx, (gx, x)


def _backward(saved: Any, dy: Any) -> Any:
    gx, x = saved
    extra = dy.ndim - x.ndim
    summed = tuple(i for i in range(dy.ndim) if i < extra or x.shape[i - extra] != dy.shape[i])
    dx = dy * gx
    # None stands for zeros.
    return None, None, jnp.sum(dx, summed).reshape(x.shape) if summed else dx


_embed.defvjp(_forward, _backward)


def _gradient(fx: Any, gx: Any, x: Any, dy: Any) -> Any:
    _, pull_back = jax.vjp(lambda t: _embed(fx, gx, t), x)
    return pull_back(dy)[0]


def _arrays(shape: list[int], x_shape: list[int] | None) -> tuple[Any, ...]:
    rng = np.random.default_rng(1)
    fx, gx, dy = (jnp.asarray(rng.random(shape, np.float32)) for _ in range(3))
    return fx, gx, jnp.asarray(rng.random(shape if x_shape is None else x_shape, np.float32)), dy


def _both(function: Callable[..., Any], *arguments: Any) -> dict[str, Sampler]:
    compiled = jax.jit(function)
    wait = jax.block_until_ready
    return {JAX: Timed(lambda: function(*arguments), wait), COMPILED_JAX: Timed(lambda: compiled(*arguments), wait)}


def forward(shape: list[int]) -> dict[str, Sampler]:
    """The value alone."""
    fx, gx, x, _ = _arrays(shape, None)
    return _both(_embed, fx, gx, x)


def gradient(shape: list[int], x_shape: list[int] | None = None) -> dict[str, Sampler]:
    """The value and its gradient."""
    return _both(_gradient, *_arrays(shape, x_shape))
