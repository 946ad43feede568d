"""The blocks of `subjects.blocks` in JAX, with policies of `jax.checkpoint`."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from .names import JAX_BLOCKS
from .peaks import OfFirstCall
from .samplers import Sampler, Timed

_POLICIES = jax.checkpoint_policies
_WRAPS: tuple[Callable[..., Any], ...] = (
    lambda function: function,
    jax.checkpoint,
    functools.partial(jax.checkpoint, policy=_POLICIES.save_only_these_names("attention", "hidden")),
    functools.partial(jax.checkpoint, policy=_POLICIES.dots_saveable),
)


def _normalized(x: Any) -> Any:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-6)


def _block(x: Any, weights: list[Any], heads: int) -> Any:
    batch, length, width = x.shape
    into, out, up, down = weights
    projected = (_normalized(x) @ into).reshape([batch, length, 3, heads, width // heads])
    q, k, v = jnp.transpose(projected, [2, 0, 3, 1, 4])
    scores = jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / math.sqrt(width // heads))
    attention = jnp.transpose(scores @ v, [0, 2, 1, 3]).reshape(x.shape)
    x = x + checkpoint_name(attention, "attention") @ out
    hidden = checkpoint_name(_normalized(x) @ up, "hidden")
    return x + jax.nn.gelu(hidden) @ down


def _steps(blocks: int, batch: int, length: int, width: int, heads: int) -> dict[str, Callable[[], Callable[[], Any]]]:
    rng = np.random.default_rng(1)
    shapes = [[width, 3 * width], [width, width], [width, 4 * width], [4 * width, width]]
    make = lambda shape: jnp.asarray(rng.normal(size=shape) / math.sqrt(shape[0]), jnp.float32)  # noqa: E731
    weights = [[make(shape) for shape in shapes] for _ in range(blocks)]
    x = jnp.asarray(rng.normal(size=[batch, length, width]), jnp.float32)

    def step(wrap: Callable[..., Any]) -> Callable[[], Any]:
        block = wrap(functools.partial(_block, heads=heads))

        def loss(weights: Any, x: Any) -> Any:
            for of_block in weights:
                x = block(x, of_block)
            return jnp.sum(x**2)

        compiled = jax.jit(jax.grad(loss)).lower(weights, x).compile()
        return lambda: jax.block_until_ready(compiled(weights, x))

    return {name: functools.partial(step, wrap) for name, wrap in zip(JAX_BLOCKS, _WRAPS, strict=True)}


def peak(name: str, unit: int, **arguments: int) -> dict[str, Sampler]:
    """The memory of one step of one variant."""
    return {name: OfFirstCall(_steps(**arguments)[name], unit)}


def times(**arguments: int) -> dict[str, Sampler]:
    """The time of one step."""
    return {name: Timed(compile_it()) for name, compile_it in _steps(**arguments).items()}
