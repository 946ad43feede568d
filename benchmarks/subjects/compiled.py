"""A function with its gradient as one program of XLA: this library, TensorFlow, and JAX where it is installed.

JAX is not needed otherwise. One that works beside TensorFlow 2.21: `pip install jax==0.5.3 jaxlib==0.5.3`.
"""

import functools
import importlib.util
from collections.abc import Callable

import tensorflow as tf

from ..harness.measurement import Case, Samplers, Settings
from ..harness.names import DECORATOR, JAX, TF
from ..harness.samplers import Sampler, Timed
from ..harness.tensors import array
from ..harness.workers import Worker


def _in_tensorflow(decorate: Callable, x: tf.Tensor, dy: tf.Tensor) -> Callable[[], object]:
    rule = decorate(lambda x: (tf.math.log1p(tf.exp(x)), lambda dy: dy * tf.sigmoid(x)))

    @tf.function(jit_compile=True)
    def value_and_gradient(x: tf.Tensor, dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = rule(x)
        return y, tape.gradient(y, x, dy)

    return functools.partial(value_and_gradient, x, dy)


def _in_jax(x: tf.Tensor, dy: tf.Tensor) -> Callable[[], object]:
    import jax
    from jax import numpy as jnp

    @jax.custom_vjp
    def rule(x: jax.Array) -> jax.Array:
        return jnp.log1p(jnp.exp(x))

    rule.defvjp(lambda x: (rule(x), x), lambda x, dy: (dy * jax.nn.sigmoid(x),))

    @jax.jit
    def value_and_gradient(x: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        y, vjp = jax.vjp(rule, x)
        return y, vjp(dy)[0]

    arrays = [jnp.asarray(tensor.numpy()) for tensor in (x, dy)]
    return lambda: jax.block_until_ready(value_and_gradient(*arrays))


def in_worker(size: int) -> dict[str, Sampler]:
    """In a process of its own, because JAX brings threads and an allocator."""
    import tf_cg_ops as cg

    x, dy = tf.constant(array([size])), tf.constant(array([size], seed=2))
    found: dict[str, Sampler] = {
        DECORATOR: Timed(_in_tensorflow(cg.custom_gradient, x, dy)),
        TF: Timed(_in_tensorflow(tf.custom_gradient, x, dy)),
    }
    if importlib.util.find_spec("jax"):
        found[JAX] = Timed(_in_jax(x, dy))
    return found


_worker = functools.cache(Worker)


def _samplers(size: int) -> Samplers:
    absent = {} if importlib.util.find_spec("jax") else {JAX: "not installed"}
    return {**_worker().build(f"{__name__}:in_worker", size=size), **absent}


def cases(settings: Settings) -> list[Case]:
    """`log(1 + exp(x))` and its gradient with the stable rule."""
    return [
        Case("compiled", f"{size:,} elements", functools.partial(_samplers, size), (DECORATOR,), elements=size)
        for size in settings.pick([10, 100_000, 10_000_000], [10])
    ]
