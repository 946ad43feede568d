"""First and second order of a function in eager mode and traced, and after a reload in a fresh process."""

import numpy as np
import tensorflow as tf


def first_and_second_order(function, x, dy):
    """The value, dx for the upstream dy, and the gradient of sum(dx * dy) by x (zeros where there is no path)."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            value = function(x)
        dx = inner.gradient(value, x, output_gradients=dy)
        weighted = tf.reduce_sum(dx * dy)
    second = outer.gradient(weighted, x, unconnected_gradients="zero")
    return [tf.convert_to_tensor(t) for t in (value, dx, second)]


def derivative(function):
    """The gradient of a function's value, as a function."""

    def df(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    return df


def eager_orders(function, x, dy):
    return [t.numpy() for t in first_and_second_order(function, tf.constant(x), tf.constant(dy))]


def traced_orders(function, x, dy):
    run = tf.function(lambda x, dy: first_and_second_order(function, x, dy))
    return [t.numpy() for t in run(tf.constant(x), tf.constant(dy))]


def around_traced_orders(function, x, dy):
    """The tapes are outside of the tf.function."""
    return eager_orders(tf.function(function), x, dy)


def unknown_shape_orders(function, x, dy):
    specs = [tf.TensorSpec([None], tf.float64)] * 2
    run = tf.function(lambda x, dy: first_and_second_order(function, x, dy), input_signature=specs)
    return [t.numpy() for t in run(tf.constant(x), tf.constant(dy))]


def jit_orders(function, x, dy):
    run = tf.function(lambda x, dy: first_and_second_order(function, x, dy), jit_compile=True)
    return [t.numpy() for t in run(tf.constant(x), tf.constant(dy))]


def tf1_orders(function, x, dy):
    with tf.Graph().as_default():
        fed_x, fed_dy = (tf.compat.v1.placeholder(tf.float64, a.shape) for a in (x, dy))
        value = function(fed_x)
        (dx,) = tf.gradients(value, fed_x, grad_ys=fed_dy)
        (second,) = tf.gradients(tf.reduce_sum(dx * fed_dy), fed_x, unconnected_gradients="zero")
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            return session.run([value, dx, second], {fed_x: x, fed_dy: dy})


MODES = {
    "eager": eager_orders,
    "traced": traced_orders,
    "around_traced": around_traced_orders,
    "unknown_shape": unknown_shape_orders,
    "jit": jit_orders,
    "tf1": tf1_orders,
}


def assert_orders(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-12, atol=1e-12)
