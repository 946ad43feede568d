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
from ..harness.measurement import Case, Settings
from ..harness.names import NO_RECOMPUTATION, RECOMPUTED, TF_RECOMPUTED
from ..harness.samplers import Sampler
from ..models import networks

_MIB = 2**20

# A model, its input, and its weights.
Model = tuple[Callable[[tf.Tensor], tf.Tensor], tf.Tensor, Sequence[Any]]

# Without a plan, cut where that is easiest. `keras.RematScope` alone raises an error in a tf.function.
_PIECE = 7
_BY_HAND = f"{TF_RECOMPUTED}, pieces of {_PIECE} by hand"


def _normal(rng: np.random.Generator, *shape: int) -> tf.Tensor:
    return tf.constant(rng.normal(size=shape) / math.sqrt(shape[0]), tf.float32)


def _dense(label: str, blocks: int, rows: int, width: int) -> Model:
    rng = np.random.default_rng(1)
    weights = [tf.Variable(_normal(rng, width, width)) for _ in range(blocks)]

    def piece(of_piece: Sequence[tf.Variable], x: tf.Tensor) -> tf.Tensor:
        for w in of_piece:
            x = x + tf.tanh(x @ w)
        return x

    def by_hand(x: tf.Tensor) -> tf.Tensor:
        for start in range(0, blocks, _PIECE):
            x = tf.recompute_grad(functools.partial(piece, weights[start : start + _PIECE]))(x)
        return x

    model = by_hand if label == _BY_HAND else functools.partial(piece, weights)
    return model, _normal(rng, rows, width), weights


def _transformer(label: str, blocks: int, rows: int, width: int) -> Model:
    rng, length = np.random.default_rng(1), min(rows, 256)
    weights = [[tf.Variable(_normal(rng, *s)) for s in networks.block_shapes(width)] for _ in range(blocks)]

    def model(x: tf.Tensor) -> tf.Tensor:
        for of_block in weights:
            x = networks.block(4, length, of_block, x, functools.partial(tf.nn.gelu, approximate=True))
        return x

    return model, _normal(rng, rows, width), tf.nest.flatten(weights)


def _application(application: str, label: str, batch: int, size: int) -> Model:
    import keras

    keras.utils.set_random_seed(1)
    model = getattr(keras.applications, application)(weights=None, input_shape=(size, size, 3), classes=10)
    images = tf.random.stateless_normal([batch, size, size, 3], [1, 1])
    return functools.partial(model, training=True), images, [weight.value for weight in model.trainable_weights]


_MODELS: dict[str, Callable[..., Model]] = {
    "dense": _dense,
    "dense, XLA": _dense,
    "transformer": _transformer,
    "DenseNet121": functools.partial(_application, "DenseNet121"),
    "ResNet50": functools.partial(_application, "ResNet50"),
}


# The gradients of the weights of ResNet-50 alone take a third of its peak.
_SHARES = {"ResNet50": 0.6}
_BUDGETS: dict[str, Any] = {f"{RECOMPUTED}, memory={memory!r}": memory for memory in ("auto", 0.5, 0.6)}


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


def in_worker(kind: str, name: str, label: str, sizes: Sequence[int]) -> dict[str, Sampler]:
    """The sampler of a step, in the process that measures.

    It measures the second call, because TensorFlow optimizes the graph in the first one, and needs memory for that.
    """
    model, x, weights = _MODELS[name](label, *sizes)
    function = cg.recompute_grad(model, memory=_BUDGETS[label]) if label in _BUDGETS else model

    @tf.function(autograph=False, jit_compile=name.endswith("XLA"))
    def step() -> list[Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(function(x)))
        return tape.gradient(loss, weights)

    return {name: peaks.Peak(step, _MIB) if kind == "peak memory" else _ProcessorTime(step)}


def cases(settings: Settings) -> list[Case]:
    """The peak and the processor time of each model."""
    of_dense = settings.pick([48, 32768, 64], [8, 64, 8])
    sizes = {
        "dense": of_dense,
        "transformer": settings.pick([12, 2048, 256], [4, 64, 8]),
    }
    if settings.pick(True, False):
        sizes |= {"dense, XLA": of_dense, "DenseNet121": [32, 64], "ResNet50": [32, 64]}

    found = []
    for name in sizes:
        ours = [label for label, memory in _BUDGETS.items() if memory in ("auto", _SHARES.get(name, 0.5))]
        for kind, unit, rounds in (("peak memory", "MiB", 1), ("processor time", "s", 3)):
            samplers = {
                label: peaks.InFreshProcess(
                    f"{__name__}:in_worker", {"kind": kind, "name": name, "label": label, "sizes": sizes[name]}
                )
                for label in [NO_RECOMPUTATION, *ours, *([_BY_HAND] if name.startswith("dense") else [])]
            }
            found.append(Case("plans", f"{kind}, {name}", functools.partial(dict, samplers), ours, unit, rounds=rounds))
    return found
