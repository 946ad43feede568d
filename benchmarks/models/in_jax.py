"""The networks in JAX, compiled."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..harness.names import COMPILED_JAX
from ..harness.peaks import OfFirstCall
from ..harness.samplers import Sampler, Timed
from .networks import Network, Ops, Unit, arrays, networks

_WINDOW = (1, 2, 2, 1)

OPS = Ops(
    to_float=lambda x, like: x.astype(like.dtype),
    sign=jnp.sign,
    square_root=jnp.sqrt,
    clip_above=jnp.minimum,
    relu=jax.nn.relu,
    total=jnp.sum,
    softmax=jax.nn.softmax,
    log_softmax=jax.nn.log_softmax,
    mean=lambda x: jnp.mean(x, axis=-1, keepdims=True),
    reshape=jnp.reshape,
    transpose=jnp.transpose,
    convolution=lambda x, kernel: jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    ),
    pool=lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, _WINDOW, _WINDOW, "VALID"),
    mean_of_pixels=lambda x: jnp.mean(x, axis=(1, 2)),
)


def _function(unit: Unit) -> Callable[[Any], Any]:
    function = jax.custom_vjp(lambda x: unit.value(OPS, x))
    function.defvjp(lambda x: (unit.value(OPS, x), x), lambda x, dy: (unit.vjp(OPS, x, dy),))
    return function


def step(network: Network, dtype: type = np.float32) -> Callable[[], Any]:
    """A compiled function that returns the loss and the gradients of the weights."""
    weights, inputs, labels = (jax.tree.map(jnp.asarray, part) for part in arrays(network, dtype))
    unit = _function(network.unit)
    gradients = jax.value_and_grad(lambda weights, x, y: network.loss(OPS, unit, weights, x, y))
    compiled = jax.jit(gradients).lower(weights, inputs, labels).compile()
    return lambda: jax.block_until_ready(compiled(weights, inputs, labels))


def times(name: str, quick: bool) -> dict[str, Sampler]:
    """The time of a step of one network."""
    return {COMPILED_JAX: Timed(step(networks(quick)[name]))}


def peak(name: str, quick: bool, unit: int) -> dict[str, Sampler]:
    """The memory of one step of one network."""
    return {COMPILED_JAX: OfFirstCall(lambda: step(networks(quick)[name]), unit)}
