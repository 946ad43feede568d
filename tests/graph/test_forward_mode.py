"""Jacobian-vector products of embedded gradients by tf.autodiff.ForwardAccumulator, compared with NumPy."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..embed_gradient.test_shape_table import ROWS, Row
from ..support.modes import assert_all_close, vjp
from ..support.pointwise import DY, POINTWISE, X
from ..support.reference import widen
from ..support.tensors import assert_gradient_close, pairs, random_array


def jvp(function, x, tangent):
    with tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
        value = function(x)
    return accumulator.jvp(value)


def in_a_loop(function):
    """A loop of one step, whose body TensorFlow differentiates as a graph."""

    def run(x):
        value = tf.zeros_like(function(x))
        return tf.while_loop(lambda i, _: i < 1, lambda i, _: (i + 1, function(x)), (0, value))[1]

    return tf.function(run)


WHERE = {
    "eager": jvp,
    "inside": tf.function(jvp),
    "around": lambda function, x, tangent: jvp(tf.function(function), x, tangent),
    "in_a_loop": lambda function, x, tangent: jvp(in_a_loop(function), x, tangent),
}


# Two axes in one process for a square x, because TensorFlow caches tangent functions by the op's attributes.
SQUARE = [
    Row((3,), (3, 3), (3, 3), 0, lambda dy, gx: dy * gx),
    Row((3,), (3, 3), (3, 3), 1, lambda dy, gx: dy[:, None] * gx),
]


@pytest.mark.parametrize(("row", "where"), pairs([*ROWS, *SQUARE], WHERE))
def test_tangents_are_the_transpose_of_the_gradients_of_the_row(row, where, rng):
    fx, gx, x, t = (random_array(rng, shape) for shape in (row.fx, row.gx, row.x, row.x))
    actual = WHERE[where](lambda x: cg.embed_gradient(fx, gx, x, row.axis), tf.constant(x), tf.constant(t))
    units = np.eye(fx.size).reshape([fx.size, *row.fx])
    expected = np.reshape([np.sum(row.dx(unit, gx) * t) for unit in units], row.fx)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


def test_more_shapes_than_tensorflow_keeps_functions_for(rng):
    """After some shapes, TensorFlow makes one function for all shapes, which are then unknown while tracing."""
    for size in range(1, 45):
        gx, t = random_array(rng, [3, size]), random_array(rng, [3, size])
        actual = jvp(lambda x, gx=gx: cg.embed_gradient(np.zeros(3), gx, x, axis=-1), tf.zeros_like(t), tf.constant(t))
        np.testing.assert_allclose(actual, np.sum(gx * t, 1), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("where", WHERE)
def test_tangents_of_all_inputs_that_have_a_gradient_add_up(where, rng):
    """If fx is used as given, its tangent flows, too. The tangent of gx never does."""
    a, y, g1, g2, ta, ty, tg = (random_array(rng, [4]) for _ in range(7))

    def function(inputs):
        a, y, g1 = inputs
        return cg.embed_gradient(tf.exp(a), [g1, g2], [tf.sin(a), y], fx_gx_manually_stopped=True)

    def stopped(inputs):
        a, y, g1 = inputs
        return cg.embed_gradient(tf.exp(a), [g1, g2], [tf.sin(a), y])

    inputs, tangents = [tf.constant(t) for t in (a, y, g1)], [tf.constant(t) for t in (ta, ty, tg)]
    by_pairs = g1 * np.cos(a) * ta + g2 * ty
    np.testing.assert_allclose(WHERE[where](stopped, inputs, tangents), by_pairs, rtol=1e-13)
    np.testing.assert_allclose(WHERE[where](function, inputs, tangents), np.exp(a) * ta + by_pairs, rtol=1e-13)


def test_tangents_of_every_dtype(dtype, rng):
    """TensorFlow's tangent of a holomorphic function is its derivative."""
    gx, x, t = (random_array(rng, [3, 4], dtype) for _ in range(3))
    tangent = jvp(lambda x: cg.embed_gradient(gx[:, 0], gx, x, axis=-1), tf.constant(x), tf.constant(t))
    by_hand = np.sum(widen(gx) * widen(t), -1)
    assert tangent.dtype == dtype
    assert_gradient_close(tangent, by_hand, dtype, scale=10.0)
    if dtype.is_complex:  # TensorFlow's own operations have the same convention.
        product = jvp(lambda x: tf.reduce_sum(gx * x, -1), tf.constant(x), tf.constant(t))
        assert_gradient_close(tangent, product, dtype, scale=10.0)


def gradient(function, x, dy):
    dx = vjp(lambda: function(x), x, dy)[1]
    return tf.zeros_like(x) if dx is None else dx


SECOND = {
    "forward over reverse": lambda function, x, dy, t: jvp(lambda x: gradient(function, x, dy), x, t),
    "reverse over forward": lambda function, x, dy, t: gradient(lambda x: jvp(function, x, t), x, dy),
    "forward over forward": lambda function, x, dy, t: dy * jvp(lambda x: jvp(function, x, t), x, tf.ones_like(t)),
}


# In eager mode, an accumulator inside another one gets no tangent from a recomputation, as a test below shows.
# (graph/test_modes.py has forward over reverse mode for all functions, in eager mode and inside a function.)
SECOND_ORDERS = [
    ("forward over reverse", "around", ["given", "custom_gradient", "custom_jvp", "recompute_grad"]),
    ("reverse over forward", "inside", ["given", "custom_vjp", "recompute_grad"]),
    ("reverse over forward", "eager", ["stopped", "custom_gradient", "custom_jvp"]),
    ("forward over forward", "around", ["given", "custom_gradient", "recompute_grad"]),
    ("forward over forward", "eager", ["run_time_axis", "custom_gradient", "custom_jvp"]),
]


@pytest.mark.parametrize(("order", "where", "names"), SECOND_ORDERS)
def test_second_order(order, where, names):
    """Each order of differentiation gives the curvature times dy times the tangent."""
    tangent = tf.constant(2.0 - X)

    def run(x):
        functions = [POINTWISE[name].function for name in names]
        functions = map(tf.function, functions) if where == "around" else functions
        return [SECOND[order](function, x, tf.constant(DY), tangent) for function in functions]

    found = (tf.function(run) if where == "inside" else run)(tf.constant(X))
    assert_all_close(found, [POINTWISE[name].curvature(X) * DY * (2.0 - X) for name in names], 1e-12, 1e-12)


def test_a_recomputation_has_no_second_tangent_in_eager_mode():
    """The inner accumulator returns None, and the outer one is right."""
    function = cg.recompute_grad(lambda x: tf.sin(x) * x)
    x, t = tf.constant(X), tf.constant(DY)
    with tf.autodiff.ForwardAccumulator(x, t) as outer:
        with tf.autodiff.ForwardAccumulator(x, t) as inner:
            value = function(x)
        assert inner.jvp(value) is None
    np.testing.assert_allclose(outer.jvp(value), (np.cos(X) * X + np.sin(X)) * DY, rtol=1e-12)


# Functions whose rules call functions with rules, and their tangents at W for the tangent T

W, T = np.array([0.4, 1.1, 2.0]), np.array([1.0, 10.0, -100.0])
MATRIX = np.array([[4.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 0.0, 5.0]])

numpy_sine = cg.numpy_function(
    lambda x: (np.sin(x), x),
    tf.TensorSpec([3], tf.float64),
    vjp=lambda x, dy: np.cos(x) * dy,
    jvp=lambda x, t: np.cos(x) * t,
)
root = cg.implicit_root(
    lambda y, x: tf.linalg.matvec(MATRIX, y) - tf.sin(x),
    lambda x: tf.linalg.solve(MATRIX, tf.sin(x)[:, None])[:, 0],
)


@cg.custom_gradient
def sine(x):
    return tf.sin(x), lambda dy: dy * cosine(x)


@cg.custom_gradient
def cosine(x):
    return tf.cos(x), lambda dy: -dy * sine(x)


@cg.custom_gradient
def sine_by_a_sine(x):
    return sine(x), lambda dy: dy * cosine(x)


RULES_IN_RULES = {
    "in a value": (sine_by_a_sine, np.cos(W) * T),
    "numpy_function": (numpy_sine, np.cos(W) * T),
    "implicit_root": (root, np.linalg.solve(MATRIX, np.cos(W) * T)),
}


# What the accumulator watches, and where it stands. A trace captures a variable, which the accumulator watches in it, too.
PLACES = {
    "inside": (tf.constant, lambda function, x: tf.function(lambda: jvp(function, x, T), autograph=False)()),
    "around": (tf.constant, lambda function, x: jvp(tf.function(function, autograph=False), x, T)),
    "inside, of a variable": (tf.Variable, lambda function, x: tf.function(lambda: jvp(function, x, T))()),
    "around, of a variable": (
        tf.Variable,
        lambda function, x: jvp(lambda _: tf.function(lambda: function(tf.convert_to_tensor(x)))(), x, T),
    ),
}


@pytest.mark.parametrize(("name", "place"), pairs(RULES_IN_RULES, PLACES))
def test_the_program_that_traced_a_function_has_all_orders_of_its_tangents(name, place):
    function, expected = RULES_IN_RULES[name]
    make, run = PLACES[place]
    np.testing.assert_allclose(run(function, make(W)), expected, rtol=1e-9)
