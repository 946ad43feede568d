"""Whole models within a memory: the peak and the processor time of a training step, plain and planned."""

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from ..harness import peaks
from ..harness.measurement import Case, Samplers, Settings
from ..harness.names import NO_RECOMPUTATION, RECOMPUTED
from ..harness.samplers import Sampler
from ..models import networks

_MIB = 2**20

# A model, its input, and its weights.
Model = tuple[Callable[[tf.Tensor], tf.Tensor], tf.Tensor, Sequence[Any]]


def _normal(rng: np.random.Generator, *shape: int) -> tf.Tensor:
    return tf.constant(rng.normal(size=shape) / math.sqrt(shape[0]), tf.float32)


def _dense(blocks: int, rows: int, width: int) -> Model:
    rng = np.random.default_rng(1)
    weights = [tf.Variable(_normal(rng, width, width)) for _ in range(blocks)]

    def model(x: tf.Tensor) -> tf.Tensor:
        for w in weights:
            x = x + tf.tanh(x @ w)
        return x

    return model, _normal(rng, rows, width), weights


def _transformer(blocks: int, rows: int, width: int) -> Model:
    rng, length = np.random.default_rng(1), min(rows, 256)
    weights = [[tf.Variable(_normal(rng, *s)) for s in networks.block_shapes(width)] for _ in range(blocks)]

    def model(x: tf.Tensor) -> tf.Tensor:
        for of_block in weights:
            x = networks.block(4, length, of_block, x, functools.partial(tf.nn.gelu, approximate=True))
        return x

    return model, _normal(rng, rows, width), tf.nest.flatten(weights)


def _application(name: str, batch: int, size: int) -> Model:
    import keras

    keras.utils.set_random_seed(1)
    model = getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=10)
    images = tf.random.stateless_normal([batch, size, size, 3], [1, 1])
    return functools.partial(model, training=True), images, [weight.value for weight in model.trainable_weights]


_MODELS: dict[str, Callable[..., Model]] = {
    "dense": _dense,
    "transformer": _transformer,
    "DenseNet121": functools.partial(_application, "DenseNet121"),
    "ResNet50": functools.partial(_application, "ResNet50"),
}


class _ProcessorTime:
    """The seconds of all cores that one call takes."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def prepare(self, seconds: float) -> None:
        """Traces, and lets TensorFlow optimize the graph."""
        self._function()

    def sample(self) -> float:
        """The time of one call."""
        start = time.process_time()
        self._function()
        return time.process_time() - start


def in_worker(kind: str, name: str, memory: str | float | None, sizes: Sequence[int]) -> dict[str, Sampler]:
    """The sampler of a step, in the process that measures.

    The peak is that of the second call: in the first, TensorFlow optimizes the graph, which takes memory of its own.
    """
    model, x, weights = _MODELS[name](*sizes)
    function = model if memory is None else cg.recompute_grad(model, memory=memory)

    @tf.function(autograph=False)
    def step() -> list[Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(function(x)))
        return tape.gradient(loss, weights)

    return {name: peaks.Peak(step, _MIB) if kind == "peak memory" else _ProcessorTime(step)}


def cases(settings: Settings) -> list[Case]:
    """The peak and the processor time of each model."""
    budgets: dict[str, str | float | None] = {
        NO_RECOMPUTATION: None,
        f"{RECOMPUTED}, memory=0.5": 0.5,
        f"{RECOMPUTED}, memory='auto'": "auto",
    }
    sizes = {
        "dense": settings.pick([48, 32768, 64], [8, 64, 8]),
        "transformer": settings.pick([12, 2048, 256], [2, 8, 8]),
    }
    if settings.pick(True, False):
        sizes |= {"DenseNet121": [32, 64], "ResNet50": [32, 64]}

    def samplers(kind: str, name: str) -> Samplers:
        found: dict[str, Sampler | str] = {}
        for label, memory in budgets.items():
            arguments = {"kind": kind, "name": name, "memory": memory, "sizes": sizes[name]}
            # The gradients of its weights alone take a third of the peak.
            is_too_little = name == "ResNet50" and memory == 0.5
            sampler = peaks.InFreshProcess(f"{__name__}:in_worker", arguments)
            found[label] = "less than the least peak" if is_too_little else sampler
        return found

    ours = tuple(name for name in budgets if name.startswith(RECOMPUTED))
    return [
        Case("plans", f"{kind}, {name}", functools.partial(samplers, kind, name), ours, unit, rounds=rounds)
        for name in sizes
        for kind, unit, rounds in (("peak memory", "MiB", 1), ("processor time", "s", 3))
    ]
