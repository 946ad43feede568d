"""Whole models within a memory: the peak and the processor time of a training step, plain and planned.

Beside the measured peaks stand the ones that the plans predict, beside the steps the times to compile and to plan.
"""

import functools
import itertools
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from ..harness import names, peaks
from ..harness.measurement import Case, Samplers, Settings
from ..harness.names import NO_RECOMPUTATION, RECOMPUTED, TF_RECOMPUTED
from ..harness.samplers import Number, Sampler, Timed
from ..models import networks

MIB = 2**20

# A model, its input, and its weights.
Model = tuple[Callable[[tf.Tensor], tf.Tensor], tf.Tensor, Sequence[Any]]

# Without a plan, cut where that is easiest: between blocks, or groups of small ones.
_PIECE = 7
_BY_HAND = f"{TF_RECOMPUTED}, by hand"
_APPLICATIONS = ("DenseNet121", "ResNet50")
# After these layers of Keras's applications, one value goes on.
_ENDS = re.compile(r".*_(out|concat|pool)")


def normal(rng: np.random.Generator, *shape: int) -> tf.Tensor:
    """Random values that a product leaves as large as they are."""
    return tf.constant(rng.normal(size=shape) / math.sqrt(shape[0]), tf.float32)


def _wrapped(label: str, block: Callable[..., Any]) -> Callable[..., Any]:
    return tf.recompute_grad(block) if label == _BY_HAND else block


def dense(label: str, blocks: int, rows: int, width: int) -> Model:
    """Residual blocks of a product and a tanh."""
    rng = np.random.default_rng(1)
    weights = [tf.Variable(normal(rng, width, width)) for _ in range(blocks)]

    def piece(of_piece: Sequence[tf.Variable], x: tf.Tensor) -> tf.Tensor:
        for w in of_piece:
            x = x + tf.tanh(x @ w)
        return x

    def model(x: tf.Tensor) -> tf.Tensor:
        for start in range(0, blocks, _PIECE):
            x = _wrapped(label, functools.partial(piece, weights[start : start + _PIECE]))(x)
        return x

    return model, normal(rng, rows, width), weights


def _transformer(label: str, blocks: int, rows: int, width: int) -> Model:
    rng, length = np.random.default_rng(1), min(rows, 256)
    weights = [[tf.Variable(normal(rng, *s)) for s in networks.block_shapes(width)] for _ in range(blocks)]

    def block(of_block: Sequence[tf.Variable], x: tf.Tensor) -> tf.Tensor:
        return networks.block(4, length, of_block, x, functools.partial(tf.nn.gelu, approximate=True))

    def model(x: tf.Tensor) -> tf.Tensor:
        for of_block in weights:
            x = _wrapped(label, functools.partial(block, of_block))(x)
        return x

    return model, normal(rng, rows, width), tf.nest.flatten(weights)


def application(application: str, label: str, batch: int, size: int) -> Model:
    """A model of `keras.applications`."""
    import keras

    keras.utils.set_random_seed(1)
    model = getattr(keras.applications, application)(weights=None, input_shape=(size, size, 3), classes=10)
    ends = [layer.output for layer in model.layers if _ENDS.fullmatch(layer.name)]
    cuts = [model.input, *ends, model.output] if label == _BY_HAND else [model.input, model.output]
    parts = [keras.Model(start, end) for start, end in itertools.pairwise(cuts)]

    def network(x: tf.Tensor) -> tf.Tensor:
        for part in parts:
            x = _wrapped(label, functools.partial(part, training=True))(x)
        return x

    images = tf.random.stateless_normal([batch, size, size, 3], [1, 1])
    return network, images, [weight.value for weight in model.trainable_weights]


_MODELS: dict[str, Callable[..., Model]] = {
    "dense": dense,
    "dense, XLA": dense,
    "transformer": _transformer,
    **{name: functools.partial(application, name) for name in _APPLICATIONS},
}


# The gradients of the weights of ResNet-50 alone take a third of its peak.
_SHARES = {"ResNet50": 0.6}
_BUDGETS: dict[str, Any] = {f"{RECOMPUTED}, memory={memory!r}": memory for memory in ("auto", 0.5, 0.6)}


class ProcessorTime:
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


class _FirstCall(ProcessorTime):
    """The same for the first call after tracing, which compiles."""

    def prepare(self, seconds: float) -> None:
        """Traces."""
        self._function = self._function.get_concrete_function()  # type: ignore[attr-defined]


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

    def predicted() -> float:
        plan = cg.recompute_grad(model, memory=_BUDGETS.get(label, "auto")).plan(x)
        return (plan.peak_bytes if label in _BUDGETS else plan.plain_bytes) / MIB

    makes: dict[str, Callable[[], Sampler]] = {
        names.PEAK: lambda: peaks.Peak(step, MIB),
        names.PREDICTED: lambda: Number(predicted),
        names.RESIDENT: lambda: peaks.OfProcess(step, MIB),
        names.STEP: lambda: ProcessorTime(step),
        names.COMPILATION: lambda: _FirstCall(step),
    }
    return {name: makes[kind]()}


def _planning(blocks: int) -> Samplers:
    """The seconds to trace a function of five ops a block, and to trace and plan it."""
    model, x, _ = dense(NO_RECOMPUTATION, blocks, 8, 8)
    planned = cg.recompute_grad(model, memory="auto")
    return {
        names.TRACE: Timed(lambda: tf.function(model, autograph=False).get_concrete_function(x)),
        names.PLAN: Timed(lambda: planned.plan(x)),
    }


def cases(settings: Settings) -> list[Case]:
    """The peaks and the times of each model, then the time to plan."""
    of_dense = settings.pick([48, 32768, 64], [8, 64, 8])
    sizes = {
        "dense": of_dense,
        "transformer": settings.pick([12, 2048, 256], [4, 64, 8]),
    }
    if settings.pick(True, False):
        sizes |= {"dense, XLA": of_dense, **{name: [32, 64] for name in _APPLICATIONS}}

    found = []
    for name in sizes:
        ours = [label for label, memory in _BUDGETS.items() if memory in ("auto", _SHARES.get(name, 0.5))]
        measured = [NO_RECOMPUTATION, *ours, _BY_HAND]
        kinds = [
            (names.PEAK, "MiB", 1, measured),
            (names.PREDICTED, "MiB", 1, [NO_RECOMPUTATION, *ours]),
            (names.STEP, "s", 3, measured),
        ]
        if name.endswith("XLA"):
            kinds.append((names.COMPILATION, "s", 3, measured))
        if name in _APPLICATIONS:
            kinds.append((names.RESIDENT, "MiB", 1, [NO_RECOMPUTATION, *ours]))
        for kind, unit, rounds, labels in kinds:
            samplers: dict[str, Sampler | str] = {
                label: peaks.InFreshProcess(
                    f"{__name__}:in_worker",
                    {"kind": kind, "name": name, "label": label, "sizes": sizes[name]},
                    {"TF_ENABLE_ONEDNN_OPTS": "1"} if kind == names.RESIDENT else peaks.ENVIRONMENT,
                )
                for label in labels
            }
            if kind == names.PEAK and name in _APPLICATIONS:
                samplers[names.REMAT_SCOPE] = "fails in a tf.function"
            build = functools.partial(dict, samplers)
            found.append(Case("plans", f"{kind}, {name}", build, labels[1:], unit, rounds=rounds))
    blocks = settings.pick(1000, 10)
    build = functools.partial(_planning, blocks)
    return [*found, Case("plans", f"planning, {5 * blocks:,} ops", build, (names.PLAN,), rounds=3)]
