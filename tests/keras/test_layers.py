"""The layers: values, gradients, numbers that change, and saving."""

import inspect
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from ..support.keras_models import (
    DY,
    X,
    assert_equal,
    derive_each,
    halves,
    layers_of,
    policy,
    register,
    saved_and_loaded,
    steep,
    tent,
    value_and_gradients,
)
from ..support.mode_table import fills
from ..support.modes import vjp

LOGISTIC = np.exp(-X) / (1 + np.exp(-X)) ** 2
ROW_NORMS = np.linalg.norm(DY, axis=-1, keepdims=True)


def shrunk(norm, limit):
    return DY * np.minimum(1.0, limit / norm)


# The layer's constructor, and its value and gradient at X for the upstream DY.
LAYERS = {
    "reversal": (lambda m: m.ReverseGradient(0.5), X, -0.5 * DY),
    "reversal by default": (lambda m: m.ReverseGradient(), X, -DY),
    "scale": (lambda m: m.ScaleGradient(0.25), X, 0.25 * DY),
    "clip by value": (lambda m: m.ClipGradient(value=2.0), X, np.clip(DY, -2, 2)),
    "clip by norm": (lambda m: m.ClipGradient(norm=2.0), X, shrunk(np.linalg.norm(DY), 2.0)),
    "clip by the norm of rows": (lambda m: m.ClipGradient(norm=5.0, axis=[-1]), X, shrunk(ROW_NORMS, 5.0)),
    "clip by global norm": (lambda m: m.ClipGradient(global_norm=2.0), X, shrunk(np.linalg.norm(DY), 2.0)),
    "sign": (lambda m: m.StraightThrough("sign", "hard_tanh"), np.sign(X), DY * (np.abs(X) <= 1)),
    "heaviside": (
        lambda m: m.StraightThrough("heaviside", "fast_sigmoid", slope=2.0),
        (X > 0).astype(np.float32),
        DY / (1 + 2 * np.abs(X)) ** 2,
    ),
    "a function of TensorFlow": (lambda m: m.StraightThrough(tf.floor), np.floor(X), DY),
    "functions of one's own": (
        lambda m: m.StraightThrough(halves, derivative=tent),
        np.round(2 * X) / 2,
        DY * np.maximum(1 - np.abs(X), 0),
    ),
    "watch": (lambda m: m.WatchGradient(check_numerics=True), X, DY),
    "a decorated function": (lambda m: m.StraightThrough(steep, "sigmoid"), np.tanh(X), DY * LOGISTIC),
}


def assert_pair(found, value, gradient, name=""):
    np.testing.assert_allclose(found[0], value, rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(found[1], gradient, rtol=1e-5, err_msg=name)


def assert_close(function, value, gradient):
    assert_pair(value_and_gradients(function, dy=DY), value, gradient)


def assert_all_layers_close(function, names):
    """For a function with the outputs of these layers."""
    for name, found in zip(names, derive_each(function, dy=DY), strict=True):
        assert_pair(found, *LAYERS[name][1:], name)


@pytest.mark.core
@fills("eager", *LAYERS)
@fills("traced", *LAYERS)
@fills("jit", *LAYERS)
def test_layers_in_every_mode(library):
    layers = {name: make(layers_of(library)) for name, (make, _, _) in LAYERS.items()}
    assert_all_layers_close(lambda x: [layer(x) for layer in layers.values()], layers)
    assert_all_layers_close(tf.function(lambda x: [layer(x) for layer in layers.values()]), layers)
    del layers["watch"]  # XLA cannot compile the check.
    compiled = tf.function(lambda x: [layer(x) for layer in layers.values()], jit_compile=True)
    assert_all_layers_close(compiled, layers)


@pytest.mark.core
@fills("functional", *LAYERS)
@fills("keras_files", *LAYERS)
def test_layers_in_models_that_are_saved_loaded_and_cloned(library, tmp_path):
    x = library.Input([3])
    model = library.Model(x, [make(layers_of(library))(x) for make, _, _ in LAYERS.values()])
    loaded = saved_and_loaded(library, model, tmp_path)
    for each in (model, loaded, library.models.clone_model(model)):
        assert_all_layers_close(each, LAYERS)
    configs = [{layer.name: layer.get_config() for layer in each.layers[1:]} for each in (loaded, model)]
    assert configs[0] == configs[1]


SUMS, JACOBIAN = DY[:, 0], np.stack([X, 3 * X])
TWO = np.array([1.0, 10.0], np.float32)

# The axis; fx, gx and the upstream for an x of the shape of X; and the gradient.
EMBEDDINGS = {
    "embedding, elements": ((), DY, X, DY, DY * X),
    "embedding, rows": (-1, SUMS, X, TWO, TWO[:, None] * X),
    "embedding, rows, as a list": ([1], SUMS, X, TWO, TWO[:, None] * X),
    "embedding, all": (None, SUMS, JACOBIAN, TWO, np.tensordot(TWO, JACOBIAN, 1)),
}


@pytest.mark.core
@pytest.mark.mode_table(feature="name", mode="functional")
@pytest.mark.mode_table(feature="name", mode="keras_files")
@pytest.mark.parametrize(
    ("library", "name"), [*((keras, name) for name in EMBEDDINGS), (tf_keras, "embedding, rows, as a list")]
)
def test_the_embedding_layer(library, name, tmp_path):
    axis, fx, gx, upstream, expected = EMBEDDINGS[name]
    inputs = [library.Input(batch_shape=array.shape) for array in (fx, gx, X)]
    model = library.Model(inputs, layers_of(library).EmbedGradient(axis=axis)(inputs))
    assert tuple(model.output.shape) == fx.shape
    for each in (model, saved_and_loaded(library, model, tmp_path)):
        found = value_and_gradients(lambda x, each=each: each([tf.constant(fx), tf.constant(gx), x]), dy=upstream)
        assert_equal(found, [fx, expected], 1e-6, 0)


def test_the_embedding_layer_with_lists_and_manual_stopping(library):
    layer = layers_of(library).EmbedGradient(fx_gx_manually_stopped=True)
    assert_close(lambda x: layer([2.0 * x, [x, 3.0 * x], [x, x]]), 2 * X, DY * (2 + X + 3 * X))


def test_clipping_a_structure(library):
    layer = layers_of(library).ClipGradient(global_norm=1.0)
    x = tf.constant(X)
    _, actual = vjp(lambda: layer([x, 3.0 * x]), x, [tf.constant(DY), tf.constant(2 * DY)])
    np.testing.assert_allclose(actual, (DY + 6 * DY) / np.linalg.norm(np.stack([DY, 2 * DY])), rtol=1e-6)


# Keras 3.16 says that its LSTM destroys masks, but the LSTM uses them.
@pytest.mark.filterwarnings("ignore:Layer 'lstm' .of type LSTM. was passed an input with a mask:UserWarning")
def test_masks_pass_through(library):
    made = [make(layers_of(library)) for name, (make, _, _) in LAYERS.items() if name != "a decorated function"]
    model = library.Sequential([library.layers.Masking(), *made, library.layers.LSTM(2)])
    steps = np.ones([1, 4, 3], np.float32)
    steps[0, 2:] = 0
    np.testing.assert_allclose(model(steps), model(steps[:, :2]), rtol=1e-6)


def test_mixed_precision(library):
    for name in ("scale", "clip by norm", "heaviside", "watch"):
        make, _, gradient = LAYERS[name]
        with policy(library, "mixed_float16"):
            value, found = value_and_gradients(make(layers_of(library)), dy=DY)
        assert (value.dtype.name, found.dtype.name) == ("float16", "float32")
        np.testing.assert_allclose(found, gradient, rtol=4e-2, atol=4e-2)


@register
def note(gradient):
    NOTED.append(gradient)


NOTED = []


def test_a_watching_layer_names_itself_and_is_saved_with_its_function(library, tmp_path):
    NOTED.clear()
    layer = layers_of(library).WatchGradient(check_numerics=True, callback=note, name="hidden")
    x = library.Input([3])
    model = library.Model(x, layer(x))
    for number, watched in enumerate([model, saved_and_loaded(library, model, tmp_path)], start=1):
        assert_close(watched, X, DY)
        np.testing.assert_array_equal(NOTED, [DY] * number)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"layers\.WatchGradient: the gradient of `hidden` must"
        ):
            value_and_gradients(watched, dy=DY * np.inf)
        NOTED.pop()


def test_doc_and_pickle_of_a_layer_class(library):
    for name in cg.layers.__all__:
        layer = getattr(layers_of(library), name, None)
        if inspect.isclass(layer):
            assert issubclass(layer, library.layers.Layer)
            assert ">>> " in inspect.getdoc(layer)
            assert pickle.loads(pickle.dumps(layer)) is layer


# Numbers


def clipped(limit):
    return np.clip(DY, -limit, limit)


# The Keras, the layer, the attribute that changes it, its start, and the gradient for a number.
CHANGES = {
    "a number": (keras, "ReverseGradient", "factor", 2.0, lambda f: -f * DY),
    "an array": (tf_keras, "ReverseGradient", "factor", np.array([2.0, 3.0, 4.0], np.float32), lambda f: -f * DY),
    "a variable": (keras, "ScaleGradient", "factor", tf.Variable(2.0, trainable=False), lambda f: f * DY),
    "a variable of Keras": (keras, "ClipGradient", "limit", keras.Variable(2.0, trainable=False), clipped),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_number_changes_without_a_new_trace_and_is_saved_with_the_weights(kind, tmp_path):
    library, layer, attribute, number, expected = CHANGES[kind]
    argument, x, traces = {"limit": "value"}.get(attribute, attribute), library.Input([3]), []
    model = library.Model(x, getattr(layers_of(library), layer)(**{argument: number})(x))

    @tf.function
    def run(x):
        traces.append(1)
        return vjp(lambda: model(x), x, tf.constant(DY))[1]

    half = np.array([0.5, 1.0, -0.25], np.float32) if kind == "an array" else 0.5
    for value in (14 * half, half):
        getattr(model.layers[-1], attribute).assign(value)
        np.testing.assert_allclose(run(tf.constant(X)), expected(value), rtol=1e-6)
    assert len(traces) == 1
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = saved_and_loaded(library, model, tmp_path)
    assert_close(loaded, X, expected(half))
    for each in (model, loaded):
        getattr(each.layers[-1], attribute).assign(14 * half)
        assert_close(each, X, expected(14 * half))
        each.load_weights(tmp_path / "model.weights.h5")
        assert_close(each, X, expected(half))
    assert (len(loaded.trainable_weights), len(loaded.non_trainable_weights)) == (0, 1)
    start = getattr(number, "tolist", lambda: number)()
    assert "variable" in kind or model.layers[-1].get_config()[argument] == start


def test_a_factor_may_come_with_each_call(library, tmp_path):
    layers = layers_of(library)
    x, factor = library.Input([3]), library.Input([1])
    model = library.Model([x, factor], layers.ReverseGradient()(x, factor=factor))
    factors = np.array([[0.5], [2.0]], np.float32)
    for each in (model, saved_and_loaded(library, model, tmp_path)):
        assert_close(lambda x, each=each: each([x, tf.constant(factors)]), X, -factors * DY)
    scale = layers.ScaleGradient(1.0)
    assert_close(lambda x: scale(x, factor=tf.constant(3.0)), X, 3 * DY)


def test_limits_are_not_rounded_to_16_bits(library):
    """With a scaled loss they can exceed the range of float16."""
    for limit in (5e4 * 2**0.5, tf.Variable(5e4 * 2**0.5, trainable=False)):
        layer = layers_of(library).ClipGradient(norm=limit, dtype="mixed_float16")
        _, gradient = value_and_gradients(layer, np.zeros([2], np.float16), dy=[6e4, 6e4])
        np.testing.assert_allclose(gradient.astype(float), 5e4, rtol=2e-3)


def test_numbers_are_kept_in_the_precision_of_the_layer(library):
    layer = layers_of(library).ScaleGradient(0.1, dtype="float64")
    _, gradient = value_and_gradients(layer, X.astype(np.float64), dy=DY.astype(np.float64))
    np.testing.assert_array_equal(gradient, 0.1 * DY.astype(np.float64))
