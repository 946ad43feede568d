"""What the files of a version hold: functions and Keras models, each with its value and derivatives in NumPy.

Files of released versions hold these: change none, add others.
"""

import importlib

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

X = np.array([[-2.0, -0.6, 0.55], [0.25, 1.45, -1.0]])
W = np.array([1.5, -0.5, 2.0])
KERNEL = np.array([[0.5, -1.0, 0.25], [1.0, 0.75, -0.5], [-0.25, 0.5, 1.0]])
w = tf.Variable(W)


def upstream(shape, seed):
    return np.random.default_rng(seed).normal(scale=3, size=shape).round(2)


# Functions of one Tensor


cosine = cg.custom_gradient(lambda y: (tf.cos(y), lambda dy: -2 * dy * tf.sin(y)))
nested = cg.custom_gradient(lambda y: (0.5 * y + 1, lambda dy: dy * cosine(y)), saved_orders=2)


@cg.custom_gradient
def with_variable(x, *, options):
    def grad_fn(dy, variables):
        # One gradient for x, and one for what stands in the options.
        return (2 * dy * variables[0] * x, {"factor": 3 * dy, "text": None}), [tf.reduce_sum(5 * dy * x, 0)]

    return x * w * options["factor"], grad_fn


@cg.custom_gradient
def swapped(x):
    return tf.gather(x, [1, 0]), lambda dy: tf.IndexedSlices(3 * dy, tf.constant([1, 0]), tf.constant([2, 3]))


@cg.custom_gradient
def untraceable(x):
    return x**2, lambda dy: dy.numpy()


def unstopped(x):
    return cg.embed_gradient(x**3, tf.sin(x), x, fx_gx_manually_stopped=True)


def along(axis, upstream_gradient):
    """The gradient in the file, whose op has the attributes of the sum."""

    def gradient(x):
        y = cg.embed_gradient(tf.reduce_sum(x, axis), tf.sin(x), x, axis=axis)
        return tf.gradients(y, x, tf.constant(upstream_gradient, tf.float64))[0]

    return gradient


def block(x):
    return tf.sin(cg.checkpoint_name(tf.sin(x), "kept")) * w


def first_of_block(x):
    return np.cos(np.sin(x)) * np.cos(x) * W


# The function; its value; the gradients of x, and of w if it has one; the derivative of sum(v * dx) by x.
FUNCTIONS = {
    "embed_axis": (
        lambda x: cg.embed_gradient(tf.reduce_sum(x, 1), tf.sin(x), x, axis=-1),
        lambda x: x.sum(-1),
        lambda x, dy: [dy[:, None] * np.sin(x)],
        lambda x, dy, v: 0 * x,
    ),
    "embed_unstopped": (
        unstopped,
        lambda x: x**3,
        lambda x, dy: [dy * (3 * x**2 + np.sin(x))],
        lambda x, dy, v: dy * v * (6 * x + 2 * np.cos(x)),
    ),
    # Of the formula fx + gx * (x - stop(x)), each derivative of gx counts once more than the last.
    "gradient_of_unstopped": (
        lambda x: tf.gradients(unstopped(x), x)[0],
        lambda x: 3 * x**2 + np.sin(x),
        lambda x, dy: [dy * (6 * x + 2 * np.cos(x))],
        lambda x, dy, v: dy * v * (6 - 3 * np.sin(x)),
    ),
    "gradient_along_axis": (
        along(-1, [1.0, 2.0]),
        lambda x: np.sin(x) * np.array([[1.0], [2.0]]),
        lambda x, dy: [0 * x],
        None,
    ),
    "gradient_along_all_axes": (along(None, 3.0), lambda x: 3.0 * np.sin(x), lambda x, dy: [0 * x], None),
    "with_variable": (
        lambda x: with_variable(x, options={"factor": x, "text": "none"}),
        lambda x: x**2 * W,
        lambda x, dy: [2 * dy * W * x + 3 * dy, (5 * dy * x).sum(0)],
        lambda x, dy, v: 2 * dy * v * W,
    ),
    "slices": (swapped, lambda x: x[::-1], lambda x, dy: [3 * dy[::-1]], lambda x, dy, v: 0 * x),
    "recompute_grad": (
        cg.recompute_grad(block, keep=["kept"]),
        lambda x: np.sin(np.sin(x)) * W,
        lambda x, dy: [dy * first_of_block(x), (dy * np.sin(np.sin(x))).sum(0)],
        lambda x, dy, v: dy * v * W * (-np.sin(np.sin(x)) * np.cos(x) ** 2 - np.cos(np.sin(x)) * np.sin(x)),
    ),
    "graph": (
        lambda x: nested(x) + unstopped(x),
        lambda x: 0.5 * x + 1 + x**3,
        lambda x, dy: [dy * (np.cos(x) + 3 * x**2 + np.sin(x))],
        lambda x, dy, v: dy * v * (-2 * np.sin(x) + 6 * x + 2 * np.cos(x)),
    ),
}
# Which functions a file holds, if not all; the loaders of TensorFlow 1 cannot use variables of functions.
HELD = {"signatures": ["embed_axis", "embed_unstopped", "graph"], "frozen": ["with_variable"], "meta_graph": ["graph"]}


# Outputs of Keras models. A file finds functions of the user's by their names.


def registered(function):
    for name in ("keras", "tf_keras"):
        importlib.import_module(name).saving.register_keras_serializable("kept")(function)
    return function


@registered
@cg.custom_gradient
def scaled(x, *, options):
    return x * options["factor"], lambda dy: (3 * dy * x, {"factor": None, "text": None})


@registered
@cg.custom_gradient
def steep(x):
    return tf.tanh(x), lambda dy: 0.5 * dy * x


@registered
@cg.recompute_grad(memory="auto")
def squared_sine(x):
    return tf.sin(x) ** 2


@registered
@cg.custom_jvp
def by_tangent(x):
    return 3 * x


@by_tangent.defjvp
def tangent(primals, tangents):
    return by_tangent(*primals), tangents[0] * tf.cos(primals[0])


@registered
def halves(x):
    return tf.round(2 * x) / 2


def of_tanh(function):
    return lambda keras, layers, x: function(layers, *(keras.layers.Activation(n)(x) for n in ("tanh", "sigmoid")), x)


def recomputed(keras, layers, x):
    dense = keras.layers.Dense(3, activation="tanh")
    y = layers.Recompute(dense)(x)
    dense.kernel.assign(KERNEL)
    return y


def through_dense(x, dy):
    return dy * (1 - np.tanh(x @ KERNEL) ** 2)


def shrunk(dy, limit):
    return dy * np.minimum(1, limit / np.linalg.norm(dy))


def logistic(x, dy):
    return [dy / (1 + np.exp(-x))]


FACTORS = np.array([1.0, 2.0, 3.0])


def quantizer(keras, layers, x):
    layer = layers.FakeQuant(4, scale="calibrated")
    layer(tf.constant(X, tf.float32), training=True)  # The largest step is 2 / 8.
    return layer(x)


def quarters(x):
    return np.clip(np.floor(4 * x + 0.5), -8, 7) / 4


def within_quarters(x, dy):
    return [np.where((x >= -2) & (x <= 1.75), dy, 0)]


# The output, its value, and the gradients of x and perhaps of the weights.
OUTPUTS = {
    "embed_layer": (of_tanh(lambda layers, *values: layers.EmbedGradient()(values)), np.tanh, logistic),
    "embed": (of_tanh(lambda layers, *values: cg.embed_gradient(*values)), np.tanh, logistic),
    "bayesflow": (of_tanh(lambda layers, *values: cg.compat.bayesflow.custom_gradient(*values)), np.tanh, logistic),
    "tfp_math": (of_tanh(lambda layers, *values: cg.compat.tfp_math.custom_gradient(*values)), np.tanh, logistic),
    "reversal_layer": (lambda keras, layers, x: layers.ReverseGradient(0.5)(x), np.copy, lambda x, dy: [-0.5 * dy]),
    "reverse": (lambda keras, layers, x: cg.reverse_gradient(x, 2.0), np.copy, lambda x, dy: [-2 * dy]),
    "scale_layer": (lambda keras, layers, x: layers.ScaleGradient(0.25)(x), np.copy, lambda x, dy: [0.25 * dy]),
    "scale": (
        lambda keras, layers, x: cg.scale_gradient(x, factor=tf.constant(FACTORS, tf.float32)),
        np.copy,
        lambda x, dy: [dy * FACTORS],
    ),
    "clip_layer": (lambda keras, layers, x: layers.ClipGradient(norm=2.0)(x), np.copy, lambda x, dy: [shrunk(dy, 2)]),
    "clip": (lambda keras, layers, x: cg.clip_gradient(x, value=2.0), np.copy, lambda x, dy: [np.clip(dy, -2, 2)]),
    "straight_through_layer": (
        lambda keras, layers, x: layers.StraightThrough(halves, "hard_tanh", slope=0.5)(x),
        lambda x: np.round(2 * x) / 2,
        lambda x, dy: [dy * (np.abs(0.5 * x) <= 1)],
    ),
    "straight_through": (lambda keras, layers, x: cg.straight_through(tf.round)(x), np.round, lambda x, dy: [dy]),
    "quantizer_layer": (quantizer, quarters, within_quarters),
    "fake_quant": (lambda keras, layers, x: cg.fake_quant(x, 0.25, bits=4), quarters, within_quarters),
    "watch_layer": (lambda keras, layers, x: layers.WatchGradient(log=True)(x), np.copy, lambda x, dy: [dy]),
    "watch": (lambda keras, layers, x: cg.watch_gradient(x, "h", check_numerics=True), np.copy, lambda x, dy: [dy]),
    "named": (lambda keras, layers, x: cg.checkpoint_name(x, "named"), np.copy, lambda x, dy: [dy]),
    "recompute_layer": (
        recomputed,
        lambda x: np.tanh(x @ KERNEL),
        lambda x, dy: [through_dense(x, dy) @ KERNEL.T, x.T @ through_dense(x, dy), through_dense(x, dy).sum(0)],
    ),
    "custom_gradient": (
        lambda keras, layers, x: scaled(x, options={"factor": 2.0, "text": "none"}),
        lambda x: 2 * x,
        lambda x, dy: [3 * dy * x],
    ),
    "custom_jvp": (lambda keras, layers, x: by_tangent(x), lambda x: 3 * x, lambda x, dy: [dy * np.cos(x)]),
    # H5 cannot hold these.
    "activation": (lambda keras, layers, x: keras.layers.Activation(steep)(x), np.tanh, lambda x, dy: [0.5 * dy * x]),
    "activation_jvp": (
        lambda keras, layers, x: keras.layers.Activation(by_tangent)(x),
        lambda x: 3 * x,
        lambda x, dy: [dy * np.cos(x)],
    ),
    "activation_planned": (
        lambda keras, layers, x: keras.layers.Activation(squared_sine)(x),
        lambda x: np.sin(x) ** 2,
        lambda x, dy: [dy * np.sin(2 * x)],
    ),
}


def library_of(file):
    """The Keras of a model file, and the layers for it."""
    name = file.partition(".")[0]
    return importlib.import_module(name), importlib.import_module(
        f"tf_cg_ops.layers{'' if name == 'keras' else '.tf_keras'}"
    )
