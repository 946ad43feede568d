"""Functions of TensorFlow and Keras as arguments of layers can be loaded again, or saving them is an error."""

import inspect
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg
from tf_cg_ops._src.keras import registration

from ..support.keras_models import KERASES, layers_of
from ..support.tensors import pairs

X, DY = tf.constant([[-2.2, -0.5, 0.7]]), tf.constant([[1.0, 10.0, 100.0]])

SAVED = {
    "straight_through": lambda: cg.straight_through(tf.round),
    "surrogate": lambda: cg.straight_through(tf.sign, "hard_tanh", slope=0.5),
    "grad_pass_through": lambda: cg.grad_pass_through(tf.floor),
    "math": lambda: cg.straight_through(tf.math.rint),
    "nn": lambda: cg.straight_through(tf.nn.relu6),
    "Keras": lambda: cg.straight_through(keras.ops.sign, "sigmoid"),
}
REFUSED = {
    "recompute_grad": (lambda: cg.recompute_grad(tf.sign), "tf.sign"),
    "custom_gradient": (lambda: cg.custom_gradient(tf.math.softplus), "tf.math.softplus"),
    "a function of Keras": (lambda: cg.recompute_grad(keras.activations.gelu), "keras.activations.gelu"),
    "custom_vjp": (lambda: cg.custom_vjp(tf.nn.relu, lambda residuals, dy: dy), "tf.nn.relu"),
    "custom_jvp": (lambda: cg.custom_jvp(tf.tanh), "tf.tanh"),
    "straight_through": (lambda: cg.straight_through(tf.sign, lambda x: tf.ones_like(x)), "tf.sign"),
    "override_gradients": (lambda: cg.override_gradients(tf.sign, {"Sign": lambda op, dy: dy}), "tf.sign"),
}


@pytest.fixture(params=KERASES)
def library(request):
    layers_of(KERASES[request.param])
    return KERASES[request.param]


def gradient(model):
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = model(X)
    return y.numpy().tolist(), tape.gradient(y, X, output_gradients=DY).numpy().tolist()


def models_with(library, function):
    x = library.Input((3,))
    return {
        "activation": library.Sequential([x, library.layers.Activation(function)]),
        "functional": library.Model(x, function(x)),
    }


@pytest.mark.parametrize(("name", "place"), pairs(SAVED, ["activation", "functional"]))
def test_a_decorated_function_of_tensorflow_comes_back_from_a_file_and_in_a_clone(name, place, library, tmp_path):
    model = models_with(library, SAVED[name]())[place]
    expected = gradient(SAVED[name]())
    model.save(tmp_path / "model.keras")
    for again in (library.models.load_model(tmp_path / "model.keras"), library.models.clone_model(model)):
        np.testing.assert_allclose(gradient(again), expected)


@pytest.mark.parametrize("name", REFUSED)
def test_a_decorated_function_that_no_name_leads_to_is_refused_when_it_is_saved(name, library):
    make, inside = REFUSED[name]
    model = library.Sequential([library.layers.Activation(make())])
    message = (
        f"{'recompute_grad' if name == 'a function of Keras' else name}: Keras could not find this decorated {inside} "
        f"again to load it. Call {inside} in a function of your own, decorate that, and register it with "
        "@keras.saving.register_keras_serializable() on top."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        model.layers[0].get_config()


@pytest.mark.parametrize("function", [tf.round, tf.nn.relu6, tf.math.rint, cg.straight_through(tf.floor, "sigmoid")])
def test_the_layer_finds_a_function_of_tensorflow_again(function, library, tmp_path):
    layer = layers_of(library).StraightThrough(function)
    x = library.Input((3,))
    model = library.Model(x, layer(x))
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(gradient(library.models.load_model(tmp_path / "model.keras")), gradient(model))


OF_KERAS = {
    "gelu": keras.activations.gelu,
    "tanh": keras.activations.tanh,
    "the op tanh": keras.ops.tanh,
    "the gelu of tf_keras": tf_keras.activations.gelu,
    "TensorFlow": tf.tanh,
}


@pytest.mark.parametrize("name", OF_KERAS)
def test_the_layer_finds_a_surrogate_of_keras_again(name, library, tmp_path):
    layer = layers_of(library).StraightThrough("sign", OF_KERAS[name])
    x = library.Input((3,))
    model = library.Model(x, layer(x))
    model.save(tmp_path / "model.keras")
    expected = gradient(model)
    assert expected[1] != DY.numpy().tolist()
    for again in (library.models.load_model(tmp_path / "model.keras"), library.models.clone_model(model)):
        np.testing.assert_array_equal(gradient(again), expected)


def test_the_layer_finds_every_argument_of_keras_again(library, tmp_path):
    layer = layers_of(library).StraightThrough(keras.ops.sign, derivative=keras.activations.sigmoid)
    x = library.Input((3,))
    model = library.Model(x, layer(x))
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(gradient(library.models.load_model(tmp_path / "model.keras")), gradient(model))


def test_every_operation_of_keras_has_a_public_name():
    """Otherwise it could be saved but not loaded."""
    for module in (keras.ops, keras.activations, tf_keras.activations):
        for name, function in vars(module).items():
            if inspect.isfunction(function) and not name.startswith("_"):
                config = registration.function_config(function)
                assert registration.function_from_config(config) is function
