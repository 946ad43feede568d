"""In JAX: the networks, a value with its derivative, and the blocks and the loop of `subjects.memory`."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from ..harness.names import COMPILED_JAX, JAX, JAX_BLOCKS, JAX_CHECKPOINT, JAX_LOOP
from ..harness.peaks import OfFirstCall
from ..harness.samplers import Sampler, Timed
from .networks import Network, Ops, Unit, arrays, block, block_shapes, networks

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
    compiled, wait = jax.jit(function), jax.block_until_ready
    return {JAX: Timed(lambda: wait(function(*arguments))), COMPILED_JAX: Timed(lambda: wait(compiled(*arguments)))}


def forward(shape: list[int]) -> dict[str, Sampler]:
    """The value alone."""
    fx, gx, x, _ = _arrays(shape, None)
    return _both(_embed, fx, gx, x)


def gradient(shape: list[int], x_shape: list[int] | None = None) -> dict[str, Sampler]:
    """The value and its gradient."""
    return _both(_gradient, *_arrays(shape, x_shape))


# For each name, a function that compiles and returns the function to measure.
_Steps = dict[str, Callable[[], Callable[[], Any]]]
_POLICIES = jax.checkpoint_policies
_WRAPS: tuple[Callable[..., Any], ...] = (
    lambda function: function,
    jax.checkpoint,
    functools.partial(jax.checkpoint, policy=_POLICIES.save_only_these_names("attention", "hidden")),
    functools.partial(jax.checkpoint, policy=_POLICIES.dots_saveable),
)


def _compile(gradients: Callable[..., Any], *inputs: Any) -> Callable[[], Any]:
    compiled = jax.jit(gradients).lower(*inputs).compile()
    return lambda: jax.block_until_ready(compiled(*inputs))


def _normal(rng: np.random.Generator, shape: list[int], scale: float = 1.0) -> Any:
    return jnp.asarray(scale * rng.normal(size=shape), jnp.float32)


def _block_steps(blocks: int, batch: int, length: int, width: int, heads: int) -> _Steps:
    rng = np.random.default_rng(1)
    shapes = block_shapes(width)
    weights = [[_normal(rng, shape, 1 / math.sqrt(shape[0])) for shape in shapes] for _ in range(blocks)]
    x = _normal(rng, [batch * length, width])

    def step(wrap: Callable[..., Any]) -> Callable[[], Any]:
        @wrap
        def apply(x: Any, of_block: list[Any]) -> Any:
            return block(OPS, heads, length, of_block, x, jax.nn.gelu, checkpoint_name)

        def loss(weights: Any, x: Any) -> Any:
            for of_block in weights:
                x = apply(x, of_block)
            return jnp.sum(x**2)

        return _compile(jax.grad(loss), weights, x)

    return {name: functools.partial(step, wrap) for name, wrap in zip(JAX_BLOCKS, _WRAPS, strict=True)}


def _loop_steps(num_steps: int, size: int, step: str) -> _Steps:
    """The gradients with respect to the state and the weights."""
    rng = np.random.default_rng(1)
    x, w = _normal(rng, [size, size]), _normal(rng, [size, size], 1 / math.sqrt(size))

    def scan(x: Any, w: Any, length: int) -> Any:
        def body(x: Any, _: Any) -> tuple[Any, None]:
            return jnp.tanh(x * w + x if step == "elementwise" else x @ w), None

        return jax.lax.scan(body, x, length=length)[0]

    def plain(x: Any, w: Any) -> Any:
        return scan(x, w, num_steps)

    def in_segments(x: Any, w: Any) -> Any:
        length = math.isqrt(num_steps)
        segment = jax.checkpoint(functools.partial(scan, length=length))
        return jax.lax.scan(lambda x, _: (segment(x, w), None), x, length=num_steps // length)[0]

    def gradients(function: Callable[..., Any]) -> Callable[[], Any]:
        return _compile(jax.grad(lambda x, w: jnp.sum(function(x, w)), (0, 1)), x, w)

    return {JAX_LOOP: lambda: gradients(plain), JAX_CHECKPOINT: lambda: gradients(in_segments)}


def block_peak(name: str, unit: int, **arguments: int) -> dict[str, Sampler]:
    """The memory of one step of one variant of the blocks."""
    return {name: OfFirstCall(_block_steps(**arguments)[name], unit)}


def block_times(**arguments: int) -> dict[str, Sampler]:
    """The time of one step of the blocks."""
    return {name: Timed(compile_it()) for name, compile_it in _block_steps(**arguments).items()}


def loop_peak(name: str, num_steps: int, size: int, unit: int) -> dict[str, Sampler]:
    """The memory of one implementation of the loop."""
    return {name: OfFirstCall(_loop_steps(num_steps, size, "elementwise")[name], unit)}


def loop_times(num_steps: int, size: int, step: str) -> dict[str, Sampler]:
    """The time of one length of the loop."""
    return {name: Timed(compile_it()) for name, compile_it in _loop_steps(num_steps, size, step).items()}
