"""Both Kerases for tests, and decorated functions that each knows by name."""

import importlib

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

KERASES = {"keras": keras, "tf_keras": tf_keras}


def layers_of(library):
    """The library's layers for this Keras."""
    name = "tf_cg_ops.layers" if library is keras else "tf_cg_ops.layers.tf_keras"
    return importlib.import_module(name)


def register(function):
    for library in KERASES.values():
        library.saving.register_keras_serializable("tests")(function)
    return function


@register
@cg.custom_gradient
def tripled(x, *, options, name="unused"):
    """Of a dictionary and a keyword that is no tensor; three times the gradient of the square."""
    factor, bias = options["factor"], options["bias"]

    def grad_fn(dy):
        # The default of `name` is no argument, unless it is passed.
        return 6.0 * dy * x * factor, {
            "bias": tf.ones_like(bias) * tf.cast(tf.reduce_sum(dy), bias.dtype),
            "factor": None,
        }

    return x**2 * factor + bias, grad_fn


@register
@cg.custom_gradient
def two_values(x):
    return {"a": 2.0 * x, "b": [tf.reduce_sum(x, -1)]}, lambda da, db: 5.0 * da + 7.0 * db[:, None]


@register
@cg.custom_gradient
def steep(x):
    """An activation."""
    return tf.tanh(x), lambda dy: 0.5 * dy


def with_residual(x):
    return 3.0 * x, x


residual = register(cg.custom_vjp(with_residual, lambda x, dy: dy * tf.cos(x)))


@register
@cg.custom_jvp
def with_tangent(x):
    return 3.0 * x


@with_tangent.defjvp
def cosine_tangent(primals, tangents):
    return with_tangent(*primals), tangents[0] * tf.cos(primals[0])


@register
@cg.recompute_grad
def recomputed(x):
    return x * tf.sin(x)


@register
@cg.grad_pass_through
def rounded(x):
    return tf.round(x)


@register
@cg.straight_through(surrogate="fast_sigmoid")
def stepped(x):
    return tf.sign(x)


@register
@cg.numpy_function
def softened(x):
    """Of NumPy."""
    return np.log1p(np.exp(x)), 1 / (1 + np.exp(-x))


def cubic(y, x):
    return y**3 + y - x


@register
@cg.implicit_root(cubic)
def cube_root_like(x):
    y = tf.zeros_like(x)
    for _ in range(30):
        y -= cubic(y, x) / (3 * y**2 + 1)
    return y
