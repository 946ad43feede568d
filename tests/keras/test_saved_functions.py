"""Decorated functions of TensorFlow as arguments of layers: a file finds them again, or Keras refuses to save them."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.keras_models import KERASES, layers_of
from ..support.tensors import pairs

X, DY = tf.constant([[-2.2, -0.5, 0.7]]), tf.constant([[1.0, 10.0, 100.0]])

SAVED = {
    "straight_through": lambda: cg.straight_through(tf.round),
    "surrogate": lambda: cg.straight_through(tf.sign, "hard_tanh", slope=0.5),
    "grad_pass_through": lambda: cg.grad_pass_through(tf.floor),
    "math": lambda: cg.straight_through(tf.math.rint),
    "nn": lambda: cg.straight_through(tf.nn.relu6),
}
REFUSED = {
    "recompute_grad": (lambda: cg.recompute_grad(tf.sign), "sign"),
    "custom_gradient": (lambda: cg.custom_gradient(tf.math.softplus), "math.softplus"),
    "custom_vjp": (lambda: cg.custom_vjp(tf.nn.relu, lambda residuals, dy: dy), "nn.relu"),
    "custom_jvp": (lambda: cg.custom_jvp(tf.tanh), "tanh"),
    "straight_through": (lambda: cg.straight_through(tf.sign, lambda x: tf.ones_like(x)), "sign"),
    "override_gradients": (lambda: cg.override_gradients(tf.sign, {"Sign": lambda op, dy: dy}), "sign"),
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
        f"{name}: Keras cannot save this decorated tf.{inside}, because it would not find the function again. Call "
        f"tf.{inside} in a function of your own, decorate that, and register it with "
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
