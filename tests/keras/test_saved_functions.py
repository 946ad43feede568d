"""Functions of TensorFlow and Keras as arguments of layers can be loaded again, or saving them is an error."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg
from tf_cg_ops._src.keras import registration

from ..support.keras_models import DY, X, layers_of, saved_and_loaded, value_and_gradients

SAVED = {
    "surrogate": lambda: cg.straight_through(tf.sign, "hard_tanh", slope=0.5),
    "grad_pass_through": lambda: cg.grad_pass_through(tf.floor),
    "nn": lambda: cg.straight_through(tf.nn.relu6),
    "Keras": lambda: cg.straight_through(keras.ops.sign, "sigmoid"),
}
REFUSED = {
    "recompute_grad": (lambda: cg.recompute_grad(tf.sign), "tf.sign"),
    "custom_gradient": (lambda: cg.custom_gradient(tf.math.softplus), "tf.math.softplus"),
    "recompute_grad of Keras": (lambda: cg.recompute_grad(keras.activations.gelu), "keras.activations.gelu"),
    "custom_vjp": (lambda: cg.custom_vjp(tf.nn.relu, lambda residuals, dy: dy), "tf.nn.relu"),
    "straight_through": (lambda: cg.straight_through(tf.sign, lambda x: tf.ones_like(x)), "tf.sign"),
    "override_gradients": (lambda: cg.override_gradients(tf.sign, {"Sign": lambda op, dy: dy}), "tf.sign"),
}


def assert_comes_back(library, function, folder):
    """The value and gradient of a model with a layer or function, in a file and in a clone."""
    x = library.Input((3,))
    model = library.Model(x, function(x))
    expected = value_and_gradients(model, dy=DY)
    for again in (saved_and_loaded(library, model, folder), library.models.clone_model(model)):
        np.testing.assert_array_equal(value_and_gradients(again, dy=DY), expected)
    return expected[1]


@pytest.mark.parametrize("name", SAVED)
def test_a_decorated_function_of_tensorflow_comes_back_from_a_file_and_in_a_clone(name, library, tmp_path):
    function = SAVED[name]()
    for each in (function, library.layers.Activation(function)):
        np.testing.assert_allclose(assert_comes_back(library, each, tmp_path), value_and_gradients(function, dy=DY)[1])


@keras.saving.register_keras_serializable("tests")
@cg.recompute_grad(memory="auto")
def within_a_memory(x):
    return tf.sin(tf.tanh(x))


def test_a_registered_function_within_a_memory_comes_back(tmp_path):
    assert_comes_back(keras, keras.layers.Activation(within_a_memory), tmp_path)


def test_a_decorated_function_that_no_name_leads_to_is_refused_when_it_is_saved(library):
    layers_of(library)
    for name, (make, inside) in REFUSED.items():
        message = f"^{name.partition(' ')[0]}: Keras could not find this decorated {inside} again to load it"
        with pytest.raises(ValueError, match=message):
            library.layers.Activation(make()).get_config()


def tanh_slope(x):
    return 1 - np.tanh(x) ** 2


# The arguments of the layer, and the derivative if it is not that of the surrogate's function.
ARGUMENTS = {
    "tf.math": ((tf.math.rint,), {}, np.ones_like),
    "decorated": ((cg.straight_through(tf.floor, "sigmoid"),), {}, np.ones_like),
    "tanh": (("sign", keras.activations.tanh), {}, tanh_slope),
    "the gelu of tf_keras": (("sign", tf_keras.activations.gelu), {}, None),
    "tanh of TensorFlow": (("sign",), {"surrogate": tf.tanh}, tanh_slope),
    "a derivative of Keras": ((keras.ops.sign,), {"derivative": keras.ops.tanh}, np.tanh),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_layer_finds_its_functions_again(name, library, tmp_path):
    arguments, options, derivative = ARGUMENTS[name]
    gradient = assert_comes_back(library, layers_of(library).StraightThrough(*arguments, **options), tmp_path)
    if derivative is None:
        assert np.all(gradient != DY)
    else:
        np.testing.assert_allclose(gradient, DY * derivative(X), rtol=1e-5)


def test_every_operation_of_keras_has_a_public_name():
    """Otherwise it could be saved but not loaded."""
    for module in (keras.ops, keras.activations, tf_keras.activations):
        for name, function in vars(module).items():
            if inspect.isfunction(function) and not name.startswith("_"):
                config = registration.function_config(function)
                assert registration.function_from_config(config) is function
