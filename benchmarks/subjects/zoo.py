"""A zoo of models within a memory: where plans predict wrongly, take long, or change gradients.

Only measured on request, because it takes hours: `python -m benchmarks --only zoo`. Choose a model with
`--only "zoo: ResNet50, "`, and a way to run it with `--only "zoo: ResNet50, unknown batch, 2 threads"`.
"""

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from ..harness import names, peaks
from ..harness.measurement import Case, Settings
from ..harness.names import NO_RECOMPUTATION, RECOMPUTED
from ..harness.samplers import Number, Sampler
from ..harness.workers import Worker
from .plans import MIB, Model, ProcessorTime, application, dense, normal

_BATCH = 16
# The least sizes that are larger than 64 x 64.
_SIZES = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}
# One of each family is measured in all ways, the others only with a known batch and one thread.
_FAMILIES = (
    "ConvNeXtTiny",
    "DenseNet121",
    "EfficientNetB0",
    "EfficientNetV2B0",
    "InceptionResNetV2",
    "InceptionV3",
    "MobileNet",
    "MobileNetV2",
    "MobileNetV3Small",
    "NASNetMobile",
    "ResNet50",
    "ResNet50V2",
    "VGG16",
    "Xception",
)
_RELATIVES = (
    *(f"ConvNeXt{size}" for size in ("Small", "Base", "Large", "XLarge")),
    *(f"EfficientNetB{size}" for size in range(1, 8)),
    *(f"EfficientNetV2{size}" for size in ("B1", "B2", "B3", "S", "M", "L")),
    *("DenseNet169", "DenseNet201", "MobileNetV3Large", "NASNetLarge", "VGG19"),
    *(f"ResNet{size}" for size in ("101", "152", "101V2", "152V2")),
)
_VOCABULARY, _FEATURES = 400_000, 32


def _of_keras(build: Callable[[Any], Any], x: tf.Tensor) -> Model:
    """A model of Keras: what `build` returns for its input."""
    import keras

    keras.utils.set_random_seed(1)
    given = keras.Input(x.shape[1:], dtype=x.dtype.name)
    model = keras.Model(given, build(given))
    return functools.partial(model, training=True), x, [weight.value for weight in model.trainable_weights]


def _images(size: int, channels: int) -> tf.Tensor:
    return tf.random.stateless_normal([_BATCH, size, size, channels], [1, 2])


def _attention(heads: int = 4, length: int = 1024, width: int = 64, blocks: int = 4) -> Model:
    rng = np.random.default_rng(1)
    weights = [[tf.Variable(normal(rng, width, width)) for _ in range(4)] for _ in range(blocks)]

    def model(x: tf.Tensor) -> tf.Tensor:
        for of_block in weights:
            parts = (tf.reshape(x @ w, [-1, length, heads, width // heads]) for w in of_block[:3])
            q, k, v = (tf.transpose(part, [0, 2, 1, 3]) for part in parts)
            scores = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * (width // heads) ** -0.5)
            x = x + tf.reshape(tf.transpose(scores @ v, [0, 2, 1, 3]), [-1, length, width]) @ of_block[3]
        return x

    return model, normal(rng, 1, length, width), tf.nest.flatten(weights)


def _embedding(is_keras: bool) -> Model:
    rng, x = np.random.default_rng(1), tf.random.stateless_uniform([64, 256], [1, 2], 0, _VOCABULARY, tf.int32)
    weights = [tf.Variable(normal(rng, _FEATURES, _FEATURES)) for _ in range(10)]
    if is_keras:
        import keras

        layer = keras.layers.Embedding(_VOCABULARY, _FEATURES)
        layer.build()
        look_up, table = layer, layer.embeddings.value
    else:
        table = tf.Variable(tf.random.stateless_normal([_VOCABULARY, _FEATURES], [1, 3]))
        look_up = functools.partial(tf.nn.embedding_lookup, table)

    def model(x: tf.Tensor) -> tf.Tensor:
        h = look_up(x)
        for w in weights:
            h = h + tf.tanh(h @ w)
        return h

    return model, x, [table, *weights]


def _gru() -> Model:
    import keras

    return _of_keras(lambda x: keras.layers.GRU(128)(x), tf.random.stateless_normal([256, 64, 32], [1, 2]))


def _u_net() -> Model:
    from keras import layers

    def convolved(h: Any, filters: int) -> Any:
        for _ in range(2):
            h = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same", use_bias=False)(h)))
        return h

    def build(h: Any) -> Any:
        skipped = []
        for filters in (16, 32, 64):
            skipped.append(convolved(h, filters))
            h = layers.MaxPooling2D()(skipped[-1])
        h = convolved(h, 128)
        for part in reversed(skipped):
            h = layers.Conv2DTranspose(part.shape[-1], 2, strides=2)(h)
            h = convolved(layers.Concatenate()([h, part]), part.shape[-1])
        return layers.Conv2D(1, 1)(h)

    return _of_keras(build, _images(64, 3))


def _group_normalization() -> Model:
    from keras import layers

    def build(h: Any) -> Any:
        for _ in range(8):
            h = layers.Activation("gelu")(layers.GroupNormalization(8)(layers.Conv2D(32, 1)(h)))
        return h

    return _of_keras(build, _images(32, 32))


def _convolutions() -> Model:
    weights = [tf.Variable(tf.random.stateless_normal([3, 3, 32, 32], [1, i]) / 17) for i in range(16)]

    def model(h: tf.Tensor) -> tf.Tensor:
        for w in weights:
            h = h + tf.tanh(tf.nn.conv2d(h, w, 1, "SAME"))
        return h

    return model, _images(32, 32), weights


_OWN: dict[str, Callable[[], Model]] = {
    "attention": _attention,
    "Keras Embedding": functools.partial(_embedding, True),
    "embedding_lookup": functools.partial(_embedding, False),
    "Keras GRU": _gru,
    "U-Net": _u_net,
    "GroupNorm": _group_normalization,
    "convolutions": _convolutions,
    "dense": functools.partial(dense, NO_RECOMPUTATION, 48, 16384, 64),
}
_APPLICATIONS: dict[str, Callable[[], Model]] = {
    name: functools.partial(application, name, NO_RECOMPUTATION, _BATCH, _SIZES.get(name, 64))
    for name in (*_FAMILIES, *_RELATIVES)
}
MODELS = _OWN | _APPLICATIONS
_MEMORIES: dict[str, Any] = {NO_RECOMPUTATION: None} | {f"{RECOMPUTED}, memory={m!r}": m for m in ("auto", 0.6)}


def in_worker(name: str, label: str, is_known: bool, threads: int) -> dict[str, Sampler]:
    """All samplers of a model, the peak first: later ones leave memory behind."""
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    model, x, weights = MODELS[name]()
    memory = _MEMORIES[label]
    planned = cg.recompute_grad(model, memory=memory or "auto")
    signature = None if is_known else [tf.TensorSpec([None, *x.shape[1:]], x.dtype)]

    def step_of(function: Callable[[tf.Tensor], tf.Tensor]) -> Any:
        @tf.function(autograph=False, input_signature=signature)
        def step(x: tf.Tensor) -> list[Any]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(function(x)))
            return tape.gradient(loss, weights)

        return step

    step = functools.partial(step_of(planned if memory else model), x)
    peak = "peak_bytes" if memory else "plain_bytes"
    samplers: dict[str, Sampler] = {
        names.PEAK: peaks.Peak(step, MIB),
        names.STEP: ProcessorTime(step),
        names.PREDICTED: Number(lambda: getattr(planned.plan(*(signature or [x])).at(x), peak) / MIB),
    }
    if memory:
        samplers[names.PLAN] = ProcessorTime(lambda: planned.plan(x))
        samplers[names.DIFFERENCE] = Number(lambda: _difference(step_of(planned), step_of(model), x))
    else:
        traced = tf.function(model, autograph=False)
        samplers[names.TRACE] = ProcessorTime(lambda: traced.get_concrete_function(x))
    return samplers


def _difference(step: Any, plain: Any, x: tf.Tensor) -> float:
    """The largest difference of two gradients, as a share of the largest element of all.

    Not of the same gradient, because the gradient of a bias before a batch normalization is zero but for rounding.
    """
    state = [v for v in plain.get_concrete_function(x).variables if not v.trainable]  # Also seeds.
    before = [v.numpy() for v in state]
    found = [tf.nest.map_structure(tf.convert_to_tensor, step(x))]
    for variable, value in zip(state, before, strict=True):
        variable.assign(value)
    found.append(tf.nest.map_structure(tf.convert_to_tensor, plain(x)))
    largest = max(float(tf.reduce_max(abs(b))) for b in found[1])
    return max(float(tf.reduce_max(abs(a - b))) for a, b in zip(*found, strict=True)) / largest


@functools.cache
def _figures(*, name: str, label: str, is_known: bool, threads: int) -> dict[str, float]:
    """All figures of a model, from a process of their own; not those after one that fails."""
    worker, found = Worker(peaks.ENVIRONMENT), {}
    try:
        arguments = {"name": name, "label": label, "is_known": is_known, "threads": threads}
        for kind, sampler in worker.build(f"{__name__}:in_worker", **arguments).items():
            rounds = 3 if kind in (names.PEAK, names.STEP) else 1
            if rounds > 1:  # Traces, and TensorFlow optimizes the graph.
                sampler.prepare(0.0)
            found[kind] = float(np.median([sampler.sample() for _ in range(rounds)]))
    except RuntimeError as error:  # The worker has ended, and its traceback stands on stderr.
        print(error, file=sys.stderr)
    finally:
        worker.end()
    return found


def cases(settings: Settings) -> list[Case]:
    """Each model with a known and an unknown batch, and with several threads."""
    ours = [label for label, memory in _MEMORIES.items() if memory]
    kinds: Sequence[tuple[str, str, Sequence[str]]] = [
        (names.PEAK, "MiB", [NO_RECOMPUTATION, *ours]),
        (names.PREDICTED, "MiB", [NO_RECOMPUTATION, *ours]),
        (names.STEP, "s", [NO_RECOMPUTATION, *ours]),
        (names.PLAN, "s", [names.TRACE, *ours]),
        (names.DIFFERENCE, "", ours),
    ]
    found = []
    for name, is_known, threads in itertools.product(MODELS, (True, False), (1, 2, 8, 16)):
        if name in _RELATIVES and (threads > 1 or not is_known):
            continue
        title = f"{name}, {'known' if is_known else 'unknown'} batch, {threads} thread{'s' if threads > 1 else ''}"
        for kind, unit, columns in kinds:
            build = functools.partial(_samplers, kind, columns, name=name, is_known=is_known, threads=threads)
            found.append(Case("zoo", f"{title}: {kind}", build, columns[1:], unit, rounds=1))
    return found


def _samplers(kind: str, columns: Sequence[str], **arguments: Any) -> dict[str, Sampler | str]:
    found: dict[str, Sampler | str] = {}
    for column in columns:
        label, each = (NO_RECOMPUTATION, column) if column == names.TRACE else (column, kind)
        figures = _figures(label=label, **arguments)
        found[column] = Number(functools.partial(figures.__getitem__, each)) if each in figures else "fails"
    return found
