"""The memory and time of the gradient of transformer blocks: which values each way keeps, beside JAX's policies."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from .. import program
from ..harness import foreign, peaks
from ..harness.measurement import Case, Settings
from ..harness.names import JAX_BLOCKS, NO_RECOMPUTATION, RECOMPUTED
from ..harness.samplers import Sampler, Timed

SUBJECT = "blocks"
_PRODUCTS = ("MatMul", "BatchMatMulV2")
_VARIANTS: dict[str, Callable[..., Any]] = {
    RECOMPUTED: cg.recompute_grad,
    f"{RECOMPUTED}, names": cg.recompute_grad(keep=["attention", "hidden"]),
    f"{RECOMPUTED}, products": cg.recompute_grad(keep=lambda op: op.type in _PRODUCTS),
    "tf.recompute_grad": tf.recompute_grad,
    NO_RECOMPUTATION: lambda function: function,
}
_OURS = tuple(name for name in _VARIANTS if name.startswith(RECOMPUTED))
_MIB = 2**20
_IN_JAX = "benchmarks.harness.foreign_jax_blocks"


def _normalized(x: tf.Tensor) -> tf.Tensor:
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    return centred * tf.math.rsqrt(tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True) + 1e-6)


def _times(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    return tf.reshape(tf.reshape(x, [-1, x.shape[-1]]) @ w, [*x.shape[:-1], w.shape[-1]])


def _block(weights: list[tf.Variable], heads: int, x: tf.Tensor) -> tf.Tensor:
    batch, length, width = x.shape
    into, out, up, down = weights
    projected = tf.reshape(_times(_normalized(x), into), [batch, length, 3, heads, width // heads])
    q, k, v = tf.unstack(tf.transpose(projected, [2, 0, 3, 1, 4]))
    scores = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / math.sqrt(width // heads))
    attention = tf.reshape(tf.transpose(scores @ v, [0, 2, 1, 3]), x.shape)
    x = x + _times(cg.checkpoint_name(attention, "attention"), out)
    hidden = cg.checkpoint_name(_times(_normalized(x), up), "hidden")
    return x + _times(tf.nn.gelu(hidden, approximate=True), down)


def _steps(blocks: int, batch: int, length: int, width: int, heads: int) -> dict[str, Any]:
    """Each returns the gradients with respect to all weights."""
    rng = np.random.default_rng(1)
    shapes = [[width, 3 * width], [width, width], [width, 4 * width], [4 * width, width]]
    make = lambda shape: tf.Variable(rng.normal(size=shape) / math.sqrt(shape[0]), dtype=tf.float32)  # noqa: E731
    weights = [[make(shape) for shape in shapes] for _ in range(blocks)]
    x = tf.constant(rng.normal(size=[batch, length, width]), tf.float32)

    def step(wrap: Callable[..., Any]) -> Any:
        functions = [wrap(functools.partial(_block, of_block, heads)) for of_block in weights]

        def gradient() -> list[Any]:
            with tf.GradientTape() as tape:
                y = x
                for function in functions:
                    y = function(y)
                loss = tf.reduce_sum(tf.square(y))
            return tape.gradient(loss, weights)

        return tf.function(gradient)

    return {name: step(wrap) for name, wrap in _VARIANTS.items()}


def in_worker(name: str, **arguments: int) -> dict[str, Sampler]:
    """The sampler for the peak, in the process that measures."""
    return {name: peaks.OfFirstCall(_steps(**arguments)[name].get_concrete_function, _MIB)}


def _memory(**arguments: int) -> Mapping[str, Sampler | str]:
    found: dict[str, Sampler | str] = {
        name: peaks.InFreshProcess(f"{__spec__.name}:in_worker", {"name": name, **arguments}) for name in _VARIANTS
    }
    return found | {
        name: foreign.peak_in("jax", f"{_IN_JAX}:peak", name=name, unit=_MIB, **arguments) for name in JAX_BLOCKS
    }


def _time(**arguments: int) -> Mapping[str, Sampler | str]:
    found: dict[str, Sampler | str] = {name: Timed(step) for name, step in _steps(**arguments).items()}
    return found | dict(foreign.times_in("jax", f"{_IN_JAX}:times", **arguments))


def cases(settings: Settings) -> list[Case]:
    """Memory and time of one training step without the assignments."""
    arguments = settings.pick(
        {"blocks": 8, "batch": 2, "length": 256, "width": 256, "heads": 4},
        {"blocks": 2, "batch": 1, "length": 8, "width": 8, "heads": 2},
    )
    shape = f"{arguments['blocks']} blocks of {arguments['width']} features, {arguments['length']} positions"
    return [
        Case(SUBJECT, f"peak memory, {shape}", functools.partial(_memory, **arguments), _OURS, "MiB", rounds=2),
        Case(SUBJECT, f"time, {shape}", functools.partial(_time, **arguments), _OURS, rounds=5),
    ]


if __name__ == "__main__":
    program.run(cases)
