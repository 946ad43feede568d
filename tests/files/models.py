"""The models that the files of Keras 3 and of tf_keras hold, each output with its numbers in NumPy.

Files of released versions hold these outputs, and the names of these functions: change none, add others.
"""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

X = np.array([[-2.0, -0.6, 0.55], [0.25, 1.45, -1.0]])
KERNEL = np.array([[0.5, -1.0, 0.25], [1.0, 0.75, -0.5], [-0.25, 0.5, 1.0]])

# The Keras of each file.
FILES = {"keras.keras": "keras", "tf_keras.keras": "tf_keras", "tf_keras.h5": "tf_keras"}


@dataclasses.dataclass
class Output:
    """An output of a model.

    `make(keras, layers, x)` returns it for a KerasTensor; `value(x)`, `gradient(x, dy)` and `of_weights(x, dy)`, the
    gradients of the kernel and the bias, are in NumPy.
    """

    make: Callable[..., Any]
    value: Callable[[Any], Any]
    gradient: Callable[[Any, Any], Any]
    of_weights: Callable[[Any, Any], Any] = lambda x, dy: [np.zeros_like(KERNEL), np.zeros(3)]
    h5: bool = True  # Whether H5 can hold it.


OUTPUTS: dict[str, Output] = {}


def output(value, gradient, **options):
    """Adds an output under its name."""

    def decorate(make):
        OUTPUTS[make.__name__] = Output(make, value, gradient, **options)
        return make

    return decorate


def same(x):
    return x


def registered(function):
    for name in set(FILES.values()):
        importlib.import_module(name).saving.register_keras_serializable("kept")(function)
    return function


# Functions of the user's, which a file finds by their names.


@registered
def halves(x):
    return tf.round(2 * x) / 2


@registered
@cg.custom_gradient
def steep(x):
    return tf.tanh(x), lambda dy: 0.5 * dy * x


@registered
@cg.custom_gradient
def scaled(x, *, options):
    return x * options["factor"], lambda dy: (3 * dy * x, {"factor": None, "text": None})


@registered
@cg.custom_jvp
def by_tangent(x):
    return 3 * x


@by_tangent.defjvp
def tangent(primals, tangents):
    return by_tangent(*primals), tangents[0] * tf.cos(primals[0])


@registered
def ignored(gradient):
    pass


# Layers


@output(np.tanh, lambda x, dy: dy / (1 + np.exp(-x)))
def embed_gradient_layer(keras, layers, x):
    values = [keras.layers.Activation(name)(x) for name in ("tanh", "sigmoid")]
    return layers.EmbedGradient()([*values, x])


@output(same, lambda x, dy: -0.75 * dy)
def reversal_layer(keras, layers, x):
    layer = layers.GradientReversal(0.5)
    reversed_x = layer(x)
    layer.factor.assign(0.75)  # A weight.
    return reversed_x


@output(same, lambda x, dy: 0.25 * dy)
def scale_layer(keras, layers, x):
    return layers.GradientScale(0.25)(x)


def shrunk(dy, limit):
    return dy * np.minimum(1, limit / np.linalg.norm(dy))


@output(same, lambda x, dy: np.clip(dy, -2, 2))
def clip_by_value_layer(keras, layers, x):
    return layers.GradientClip(value=2.0)(x)


@output(same, lambda x, dy: shrunk(dy, 2))
def clip_by_norm_layer(keras, layers, x):
    return layers.GradientClip(norm=2.0)(x)


@output(same, lambda x, dy: shrunk(dy, 1.5))
def clip_by_global_norm_layer(keras, layers, x):
    return layers.GradientClip(global_norm=1.5)(x)


@output(lambda x: (x > 0).astype(float), lambda x, dy: dy / (1 + 2 * np.abs(x)) ** 2)
def straight_through_layer(keras, layers, x):
    return layers.StraightThrough("heaviside", "fast_sigmoid", slope=2.0)(x)


@output(lambda x: np.round(2 * x) / 2, lambda x, dy: dy * (np.abs(x) <= 1))
def straight_through_layer_of_a_function(keras, layers, x):
    return layers.StraightThrough(halves, "hard_tanh")(x)


@output(np.floor, lambda x, dy: dy)
def straight_through_layer_of_tensorflow(keras, layers, x):
    return layers.StraightThrough(tf.floor)(x)


@output(same, lambda x, dy: dy)
def watch_layer(keras, layers, x):
    return layers.WatchGradient(check_numerics=True, call=ignored)(x)


def through_dense(x, dy):
    return dy * (1 - np.tanh(x @ KERNEL) ** 2)


@output(
    lambda x: np.tanh(x @ KERNEL),
    lambda x, dy: through_dense(x, dy) @ KERNEL.T,
    of_weights=lambda x, dy: [x.T @ through_dense(x, dy), through_dense(x, dy).sum(0)],
)
def recompute_layer(keras, layers, x):
    dense = keras.layers.Dense(3, activation="tanh")
    y = layers.Recompute(dense)(x)
    dense.kernel.assign(KERNEL)
    return y


# Functions of the library


@output(np.tanh, lambda x, dy: dy / (1 + np.exp(-x)))
def embed_gradient(keras, layers, x):
    values = [keras.layers.Activation(name)(x) for name in ("tanh", "sigmoid")]
    return cg.embed_gradient(*values, x)


@output(np.tanh, lambda x, dy: dy * [1.0, 2.0, 3.0])
def bayesflow(keras, layers, x):
    value = keras.layers.Activation("tanh")(x)
    return cg.compat.bayesflow.custom_gradient(fx=value, gx=tf.constant([1.0, 2.0, 3.0]), x=x)


@output(np.tanh, lambda x, dy: dy / (1 + np.exp(-x)))
def tfp_math(keras, layers, x):
    values = [keras.layers.Activation(name)(x) for name in ("tanh", "sigmoid")]
    return cg.compat.tfp_math.custom_gradient(*values, x)


@output(same, lambda x, dy: -2 * dy)
def reverse_gradient(keras, layers, x):
    return cg.reverse_gradient(x, 2.0)


@output(same, lambda x, dy: dy * [1.0, 2.0, 3.0])
def scale_gradient(keras, layers, x):
    return cg.scale_gradient(x, factor=tf.constant([1.0, 2.0, 3.0]))


@output(same, lambda x, dy: shrunk(dy, 2.5))
def clip_gradient(keras, layers, x):
    return cg.clip_gradient(x, norm=2.5)


@output(same, lambda x, dy: dy)
def watch_gradient(keras, layers, x):
    return cg.watch_gradient(x, "watched", check_numerics=True)


@output(same, lambda x, dy: dy)
def checkpoint_name(keras, layers, x):
    return cg.checkpoint_name(x, "named")


# Decorated functions


@output(lambda x: 2 * x, lambda x, dy: 3 * dy * x)
def custom_gradient(keras, layers, x):
    return scaled(x, options={"factor": 2.0, "text": "none"})


@output(lambda x: 3 * x, lambda x, dy: dy * np.cos(x))
def custom_jvp(keras, layers, x):
    return by_tangent(x)


@output(np.tanh, lambda x, dy: 0.5 * dy * x, h5=False)
def custom_gradient_as_activation(keras, layers, x):
    return keras.layers.Activation(steep)(x)


@output(lambda x: 3 * x, lambda x, dy: dy * np.cos(x), h5=False)
def custom_jvp_as_activation(keras, layers, x):
    return keras.layers.Activation(by_tangent)(x)


@output(np.round, lambda x, dy: dy * (np.abs(0.5 * x) <= 1))
def straight_through(keras, layers, x):
    return cg.straight_through(tf.round, "hard_tanh", slope=0.5)(x)


@output(np.floor, lambda x, dy: dy, h5=False)
def grad_pass_through_as_activation(keras, layers, x):
    return keras.layers.Activation(cg.grad_pass_through(tf.floor))(x)


def library_of(file):
    """The Keras of a file, and the library's layers for it, which importing them registers."""
    name = FILES[file]
    importlib.import_module("tf_cg_ops.layers" if name == "keras" else "tf_cg_ops.layers.tf_keras")
    return importlib.import_module(name)


def names_in(file):
    return [name for name, each in OUTPUTS.items() if each.h5 or not file.endswith(".h5")]


def model(file):
    keras = library_of(file)
    layers = importlib.import_module("tf_cg_ops.layers" if keras.__name__ == "keras" else "tf_cg_ops.layers.tf_keras")
    x = keras.Input((3,), name="x")
    return keras.Model(x, {name: OUTPUTS[name].make(keras, layers, x) for name in names_in(file)})


def weights_of(loaded):
    """The kernel and the bias as variables of TensorFlow."""
    return [v if isinstance(v, tf.Variable) else v.value for v in loaded.trainable_variables]
