"""The layers, for Keras 3 and for tf_keras: their values, their gradients, and saving."""

import copy
import inspect
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from ..support.keras_models import DY, KERASES, LAYERS, X, layers_of, register, steep, value_and_gradient
from ..support.mode_table import fills
from ..support.modes import vjp
from ..support.processes import run_python
from ..support.tensors import pairs


def assert_close(actual, value, gradient):
    np.testing.assert_allclose(actual[0], value, rtol=1e-6)
    if gradient is None:
        gradient = DY * np.exp(-X) / (1 + np.exp(-X)) ** 2
    np.testing.assert_allclose(actual[1], gradient, rtol=1e-5)


@pytest.mark.core
@pytest.mark.mode_table(feature="name", mode="eager")
@pytest.mark.mode_table(feature="name", mode="traced")
@pytest.mark.mode_table(feature="name", mode="jit")
@pytest.mark.parametrize(("name", "library"), pairs(LAYERS, KERASES), indirect=["library"])
def test_layers_called_by_themselves_and_in_functions(name, library):
    make, value, gradient = LAYERS[name]
    layer = make(layers_of(library))
    assert_close(value_and_gradient(layer), value, gradient)
    assert_close(value_and_gradient(tf.function(layer)), value, gradient)
    if name != "watch":  # XLA cannot compile the check.
        assert_close(value_and_gradient(tf.function(layer, jit_compile=True)), value, gradient)


@pytest.mark.core
@pytest.mark.mode_table(feature="name", mode="functional")
@pytest.mark.mode_table(feature="name", mode="keras_files")
@pytest.mark.parametrize("name", LAYERS)
def test_layers_in_models_that_are_saved_loaded_and_cloned(name, library, tmp_path):
    make, value, gradient = LAYERS[name]
    layers = layers_of(library)
    x = library.Input([3])
    model = library.Model(x, make(layers)(x))
    model.save(tmp_path / "model.keras")
    loaded = library.models.load_model(tmp_path / "model.keras")
    for each in (model, loaded, library.models.clone_model(model)):
        assert_close(value_and_gradient(each), value, gradient)
    assert loaded.layers[-1].get_config() == model.layers[-1].get_config()


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file:UserWarning")
@pytest.mark.parametrize("file", ["saved_model", "model.h5"])
def test_the_old_formats_of_tf_keras(file, tmp_path):
    layers = layers_of(tf_keras)
    makes = [make for make, _, _ in LAYERS.values()]
    model = tf_keras.Sequential([tf_keras.layers.InputLayer([3]), *(make(layers) for make in makes)])
    model.save(tmp_path / file)
    loaded = tf_keras.models.load_model(tmp_path / file)
    assert [type(layer) for layer in loaded.layers] == [type(layer) for layer in model.layers]
    for actual, wanted in zip(value_and_gradient(loaded), value_and_gradient(model), strict=True):
        np.testing.assert_array_equal(actual, wanted)


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
@pytest.mark.parametrize("name", EMBEDDINGS)
def test_the_embedding_layer(name, library, tmp_path):
    axis, fx, gx, upstream, expected = EMBEDDINGS[name]
    inputs = [library.Input(batch_shape=array.shape) for array in (fx, gx, X)]
    model = library.Model(inputs, layers_of(library).EmbedGradient(axis=axis)(inputs))
    assert tuple(model.output.shape) == fx.shape
    model.save(tmp_path / "model.keras")
    for each in (model, library.models.load_model(tmp_path / "model.keras")):
        value, gradient = value_and_gradient(
            lambda x, each=each: each([tf.constant(fx), tf.constant(gx), x]), X, upstream
        )
        np.testing.assert_array_equal(value, fx)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def test_the_embedding_layer_with_lists_and_manual_stopping(library):
    layer = layers_of(library).EmbedGradient(fx_gx_manually_stopped=True)
    value, gradient = value_and_gradient(lambda x: layer([2.0 * x, [x, 3.0 * x], [x, x]]))
    np.testing.assert_array_equal(value, 2 * X)
    np.testing.assert_allclose(gradient, DY * (2 + X + 3 * X), rtol=1e-6)


def test_clipping_a_structure(library):
    layer = layers_of(library).GradientClip(global_norm=1.0)
    x = tf.constant(X)
    _, actual = vjp(lambda: layer([x, 3.0 * x]), x, [tf.constant(DY), tf.constant(2 * DY)])
    np.testing.assert_allclose(actual, (DY + 6 * DY) / np.linalg.norm(np.stack([DY, 2 * DY])), rtol=1e-6)


def test_masks_pass_through(library):
    layers = layers_of(library)
    model = library.Sequential(
        [
            library.layers.Masking(),
            *[make(layers) for name, (make, _, _) in LAYERS.items() if name != "a decorated function"],
            library.layers.LSTM(2),
        ]
    )
    steps = np.ones([1, 4, 3], np.float32)
    steps[0, 2:] = 0
    np.testing.assert_allclose(model(steps), model(steps[:, :2]), rtol=1e-6)


def test_layers_around_each_step(library):
    steps = np.stack([X, X], 1)
    for make, value, _ in LAYERS.values():
        layer = library.layers.TimeDistributed(make(layers_of(library)))
        model = library.Model(inputs := library.Input([2, 3]), layer(inputs))
        np.testing.assert_allclose(model(steps), np.stack([value, value], 1), rtol=1e-6)


def test_copies_of_layers_and_functions(library):
    layer = layers_of(library).StraightThrough(tf.round, "hard_tanh")
    assert_close(value_and_gradient(copy.deepcopy(layer)), np.round(X), DY * (np.abs(X) <= 1))
    assert copy.deepcopy(steep) is steep


@pytest.mark.parametrize(
    ("policy", "library"), [("mixed_float16", "keras"), ("mixed_bfloat16", "tf_keras")], indirect=["library"]
)
def test_mixed_precision(policy, library):
    layers = layers_of(library)
    dtype = policy.removeprefix("mixed_")
    for make, _, _ in LAYERS.values():
        layer = make(layers)
        mixed = type(layer).from_config(layer.get_config() | {"dtype": policy})
        x = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = mixed(x)
        assert y.dtype == dtype
        gradient = tape.gradient(y, x, output_gradients=tf.cast(DY, dtype))
        assert gradient.dtype == tf.float32
        np.testing.assert_allclose(gradient, value_and_gradient(layer)[1], rtol=4e-2, atol=4e-2)


FRESH = """
import sys
import numpy as np
import tensorflow as tf
import tf_cg_ops

name, *models, path = sys.argv[1:]
if name == "tf_keras":
    import tf_cg_ops.layers.tf_keras
library = __import__(name)
x = tf.constant([[-2.0, -0.5, 0.5], [0.25, 1.5, -1.0]])
exported = tf.saved_model.load(models[1])
gradients = []
for model in (library.models.load_model(models[0]), exported.serve):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x)
    gradients.append(tape.gradient(y, x, output_gradients=tf.constant([[1.0, 10.0, -3.0], [0.5, -4.0, 2.0]])))
np.savez(path, *gradients)
"""


@fills("keras_fresh", "a function of TensorFlow", "embedding, elements", "scale", "clip by norm", "reversal")
@fills("keras_export", "a function of TensorFlow", "embedding, elements", "scale", "clip by norm", "reversal")
def test_a_fresh_process_loads_layers_that_it_did_not_import(library, tmp_path):
    layers = layers_of(library)
    x = library.Input([3])
    h = layers.GradientReversal(0.5)(layers.GradientClip(norm=3.0)(layers.StraightThrough("round")(x)))
    model = library.Model(x, layers.EmbedGradient()([h, h, layers.GradientScale(4.0)(h)]))
    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "exported", **({"verbose": False} if library is keras else {}))
    paths = (tmp_path / "model.keras", tmp_path / "exported", tmp_path / "gradients.npz")
    run_python(FRESH, library.__name__, *paths, cwd=tmp_path)
    with np.load(tmp_path / "gradients.npz") as gradients:
        assert len(gradients.files) == 2
        for gradient in gradients.values():
            np.testing.assert_allclose(gradient, value_and_gradient(model)[1], rtol=1e-6)


@register
def note(gradient):
    NOTED.append(gradient)


NOTED = []


def test_a_watching_layer_names_itself_and_is_saved_with_its_function(library, tmp_path):
    NOTED.clear()
    layer = layers_of(library).WatchGradient(check_numerics=True, call=note, name="hidden")
    model = library.Sequential([library.Input([3]) if library is keras else library.layers.InputLayer([3]), layer])
    model.save(tmp_path / "model.keras")
    loaded = library.models.load_model(tmp_path / "model.keras")
    for number, watched in enumerate([model, loaded], start=1):
        _, dx = value_and_gradient(watched)
        np.testing.assert_array_equal(dx, DY)
        np.testing.assert_array_equal(NOTED, [DY] * number)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"layers\.WatchGradient: the gradient of 'hidden' must be fin"
        ):
            value_and_gradient(watched, dy=DY * np.inf)
        NOTED.pop()


def test_the_embedding_layer_in_a_model_says_what_it_takes():
    """In tf_keras the call raises the same error, because there are no shapes before."""
    message = r"layers\.EmbedGradient: the inputs must be a list \[fx, gx, x\], got a single input\."
    with pytest.raises(TypeError, match=message):
        cg.layers.EmbedGradient()(keras.Input([3]))


@pytest.mark.parametrize("name", [name for name in cg.layers.__all__ if inspect.isclass(getattr(cg.layers, name))])
def test_doc_and_pickle_of_a_layer_class(name, library):
    layer = getattr(layers_of(library), name)
    assert issubclass(layer, library.layers.Layer)
    assert ">>> " in inspect.getdoc(layer)
    assert pickle.loads(pickle.dumps(layer)) is layer


def test_the_layers_are_an_attribute_of_the_package():
    assert cg.layers is layers_of(keras)
    with pytest.raises(AttributeError, match=r"^module 'tf_cg_ops' has no attribute 'layer'$"):
        _ = cg.layer


@pytest.mark.parametrize("options", [{"surrogate": tf.tanh}, {"derivative": tf.tanh}], ids=["surrogate", "derivative"])
def test_a_function_as_surrogate_and_as_derivative_is_saved_as_such(options, library):
    layers = layers_of(library)
    for layer in (layers.StraightThrough("sign", **options), layers.StraightThrough(tf.round, **options)):
        copy = type(layer).from_config(layer.get_config())
        expected = DY * (1 - np.tanh(X) ** 2 if "surrogate" in options else np.tanh(X))
        for function in (layer, copy):
            np.testing.assert_allclose(value_and_gradient(function)[1], expected, rtol=1e-5)
