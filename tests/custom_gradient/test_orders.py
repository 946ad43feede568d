"""Higher derivatives of decorated functions, tangents and Jacobians."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import derivative
from ..support.tensors import pairs

X, DY = np.array([0.7, -1.3, 1.1]), np.array([1.0, 10.0, -3.0])


def tangent(function, x, t):
    with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
        value = function(x)
    return accumulator.jvp(value)


def cosine_by_loop(x):
    return tf.while_loop(lambda i, _: i < 1, lambda i, _: (i + 1, tf.cos(x)), (0, x), maximum_iterations=1)[1]


# A function, the true derivative that its rule computes, so that every order is a derivative of it, and the orders.
OF_SINE = [np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x), np.sin]
OF_SQUARE = [lambda x, n=n: 2**n * OF_SINE[(n + 3) % 4](2 * x) for n in range(4)]
HIGHER = {
    "sine": (tf.sin, tf.cos, OF_SINE),
    # TensorFlow's own derivatives of a loop grow with every order.
    "loop": (tf.sin, cosine_by_loop, OF_SINE[:3]),
    "product": (lambda x: tf.sin(x) ** 2, lambda x: 2.0 * tf.sin(x) * tf.cos(x), OF_SQUARE),
}


@pytest.mark.parametrize(("case", "mode"), pairs(HIGHER, ["eager", "inside", "around", "jit", "recomputed"], quick=2))
def test_four_orders_by_nested_tapes(case, mode):
    value, slope, expected = HIGHER[case]
    function = cg.custom_gradient(lambda x: (value(x), lambda dy: dy * slope(x)))
    function = {"around": tf.function(function), "recomputed": cg.recompute_grad(function)}.get(mode, function)
    for by_hand_of_order in expected:
        function = derivative(function)
        run = function
        if mode in ("inside", "jit", "recomputed"):
            run = tf.function(function, jit_compile=mode == "jit")
        np.testing.assert_allclose(run(tf.constant(X)), by_hand_of_order(X), rtol=1e-10)


def test_three_orders_of_a_rule_with_a_loop_in_a_loop():
    """With the tapes around, TensorFlow differentiates each loop until it accumulates nothing new."""

    @cg.custom_gradient
    def by_loop(x):
        return tf.sin(x), lambda dy: tf.map_fn(lambda a: a * tf.cos(x), dy[None])[0]

    function = tf.function(lambda x: tf.map_fn(by_loop, x), input_signature=[tf.TensorSpec([None], tf.float64)])
    for expected in (np.cos(X), -np.sin(X), -np.cos(X)):
        function = derivative(function)
        np.testing.assert_allclose(function(tf.constant(X)), expected, rtol=1e-12)


def test_tangents_where_grad_fn_uses_a_tape_of_its_own():
    """In a graph. In eager mode TensorFlow does not let a tape record there, so such a grad_fn gets None from it."""
    from_tape = []

    @cg.custom_gradient
    def triple_sine(x):
        def grad_fn(dy):
            from_tape.append(derivative(tf.sin)(x))
            return 3.0 * dy * from_tape[-1]

        return tf.sin(x), grad_fn

    def run(x, t):
        return tangent(triple_sine, x, t), tangent(derivative(triple_sine), x, t)

    first, second = tf.function(run)(tf.constant(X), tf.constant(DY))
    np.testing.assert_allclose(first, 3 * np.cos(X) * DY, rtol=1e-12)
    np.testing.assert_allclose(second, -3 * np.sin(X) * DY, rtol=1e-12)
    with pytest.raises((TypeError, ValueError)):
        run(tf.constant(X), tf.constant(DY))
    assert from_tape[-1] is None


RULES = {
    "while": lambda x, dy: tf.while_loop(lambda i, _: i < 1, lambda i, a: (i + 1, a * x), (0, dy * x))[1],
    "map": lambda x, dy: tf.map_fn(lambda a: a[0] * a[1] * a[1], (dy, x), fn_output_signature=tf.float64),
    "python_if": lambda x, dy: dy * x * x if tf.reduce_sum(x) > 0 else dy,
    "python_for": lambda x, dy: tf.stack([a * b * b for a, b in zip(dy, x, strict=True)]),
}


@pytest.mark.parametrize("name", RULES)
def test_tangents_of_any_rule_in_eager_mode(name):
    """Its Python code runs unchanged: forward, forward over reverse, and reverse over forward."""
    rule = RULES[name]
    function = cg.custom_gradient(lambda x: (x**3 / 3.0, lambda dy: rule(x, dy)))
    x, t = tf.constant([1.0, 2.0], tf.float64), tf.constant([1.0, 10.0], tf.float64)

    np.testing.assert_allclose(tangent(function, x, t), [1.0, 40.0])
    np.testing.assert_allclose(tangent(derivative(function), x, t), [2.0, 40.0])
    np.testing.assert_allclose(derivative(lambda x: tangent(function, x, t))(x), [2.0, 40.0])


def test_a_tangent_through_a_black_box_is_none():
    @cg.custom_gradient
    def sine(x):
        def grad_fn(dy):
            return tf.numpy_function(lambda dy, x: dy * np.cos(x), [dy, x], tf.float64)

        return tf.numpy_function(np.sin, [x], tf.float64), grad_fn

    assert tangent(sine, tf.constant(X), tf.constant(DY)) is None


def test_tangents_with_slices_and_with_integer_outputs():
    @cg.custom_gradient
    def lookup(table):
        rows = tf.gather(table, [2, 1])
        return (rows, tf.constant([2, 1])), lambda dy, _: tf.IndexedSlices(3.0 * dy, tf.constant([2, 1]))

    def run(x, t):
        with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
            rows, ids = lookup(x)
        return accumulator.jvp(rows), accumulator.jvp(ids)

    for mode in (run, tf.function(run)):
        tangent, none = mode(tf.constant(X), tf.constant(DY))
        np.testing.assert_allclose(tangent, 3 * DY[[2, 1]])
        assert none is None
