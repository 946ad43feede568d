"""straight_through: its surrogates and derivatives, as they were at the call. test_edges.py has those with a name."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import MODES, RUNS, assert_all_close, assert_orders, vjp
from ..support.tensors import pairs

X, DY = tf.constant([0.3, -0.8]), tf.constant([1.0, 10.0])
DY64 = np.array([1.0, 10.0])


def test_far_from_zero_the_derivative_of_the_sigmoid_is_not_rounded_to_zero(gradient):
    (dx,) = gradient(cg.straight_through(tf.sign, "sigmoid"), [np.array([-50.0, 50.0])], np.array([1.0, 10.0]))
    np.testing.assert_allclose(dx, np.exp(-50.0) * np.array([1, 10]), rtol=1e-12)


# Functions, and their first and second derivatives for an upstream gradient.
SURROGATES = {
    "of TensorFlow": (tf.square, lambda x, dy: dy * 2 * x, lambda x, dy: 2 * dy**2),
    "not elementwise": (
        lambda x: x * tf.reduce_sum(x),
        lambda x, dy: dy * x.sum() + (dy * x).sum(),
        lambda x, dy: (dy**2).sum() + dy * dy.sum(),
    ),
    "with a custom gradient": (
        cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: dy * tf.exp(x))),
        lambda x, dy: dy * np.exp(x),
        lambda x, dy: dy**2 * np.exp(x),
    ),
}


@pytest.mark.core
@pytest.mark.parametrize(("name", "mode"), pairs(SURROGATES, MODES, quick=2))
def test_a_surrogate_function_is_differentiated(name, mode):
    """First and second derivatives come from the surrogate, the value from the function."""
    surrogate, first, second = SURROGATES[name]
    x, dy = np.array([0.3, -0.8, 1.7]), np.array([1.0, 10.0, 100.0])
    found = MODES[mode](cg.straight_through(tf.sign, surrogate), x, dy)
    assert_orders(found, [np.sign(x), first(x, dy), second(x, dy)])


# What the derivative returns at x, and its numbers.
DERIVATIVES = {
    "float64": (lambda x: tf.cast(x / 4, tf.float64), X / 4),
    "float16": (lambda x: tf.cast(tf.round(x), tf.float16), tf.round(X)),
    "an array": (lambda x: np.asarray(x / 4), X / 4),
    **{type(two).__name__: (lambda x, two=two: two, 2.0) for two in (2, 2.0, np.float32(2.0), np.int64(2))},
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_a_derivative_is_cast_and_can_be_one_number(name):
    derivative, expected = DERIVATIVES[name]
    _, dx = vjp(lambda: cg.straight_through(tf.sign, derivative=derivative)(X), X, DY)
    assert dx.dtype == tf.float32
    np.testing.assert_array_equal(dx, DY * expected)


def test_a_value_of_another_dtype_and_arguments_that_are_arrays_or_numbers(gradient):
    spike = cg.straight_through(lambda v: v > 1.0, derivative=lambda v: 3.0 * v)
    x = np.array([0.5, 1.5])
    for argument in (tf.constant(x), x):
        y = spike(argument)
        assert y.dtype == tf.float64
        np.testing.assert_array_equal(y, [0.0, 1.0])
    assert spike(1.5).numpy() == 1.0
    np.testing.assert_allclose(gradient(spike, [x], np.array([1.0, 10.0]))[0], [1.5, 45.0])


def widened(x):
    return tf.tanh(x) * tf.ones([1, 3], x.dtype)


SURROGATE = (
    "the surrogate 'widened' of 'sign' must return the shape of x, [3,1], got [3,3]. If it is the derivative of a"
)
OF_X = (
    "the derivative '<lambda>' of 'sign' must return the shape of x, [3,1], got {}. Return one number for each element"
)
OTHER_SHAPES = {
    "surrogate": (lambda: cg.straight_through(tf.sign, widened), SURROGATE),
    "derivative": (lambda: cg.straight_through(tf.sign, derivative=lambda x: tf.reduce_max(x, -1)), OF_X.format("[3]")),
    "scalar": (lambda: cg.straight_through(tf.sign, derivative=lambda x: tf.reduce_sum(x)), OF_X.format("[]")),
    "function": (
        lambda: cg.straight_through(lambda x: tf.reduce_max(x, 0, keepdims=True), "sigmoid"),
        "'<lambda>' must return the shape of x, [3,1], got [1,1]. For a function that changes the shape, ",
    ),
}


@pytest.mark.parametrize(("name", "jit_compile"), pairs(OTHER_SHAPES, [False, True]))
def test_another_shape_that_is_only_known_at_run_time_is_an_error(name, jit_compile):
    make, message = OTHER_SHAPES[name]

    @tf.function(input_signature=[tf.TensorSpec(None)] * 2, jit_compile=jit_compile)
    def dx(x, dy):
        return tf.gradients(make()(x), x, dy)[0]

    dy = tf.constant([[7.0]] if name == "function" else [[1.0], [10.0], [100.0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(f"straight_through: {message}")):
        dx(tf.constant([[1.0], [2.0], [3.0]]), dy)


def test_the_surrogate_is_not_computed_without_a_gradient():
    calls = []
    cg.straight_through(tf.sign, lambda v: calls.append(1) or v)(X)
    cg.straight_through(tf.sign, derivative=lambda v: calls.append(1) or v)(X)
    assert not calls


def test_straight_through_decorates_methods_with_further_arguments_and_variables(gradient):
    class Quantiser:
        def __init__(self):
            self.step = tf.Variable(0.5, dtype=tf.float64)

        @cg.straight_through(surrogate="hard_tanh", slope=0.5)
        def __call__(self, x, offset, *, mode="nearest"):
            assert mode == "nearest"
            return self.step * tf.round(x / self.step) + offset

    quantiser = Quantiser()
    x, offset = np.array([0.6, 2.6]), np.array([1.0, 2.0])
    np.testing.assert_allclose(quantiser(tf.constant(x), offset), [1.5, 4.5])
    dx, *others = gradient(lambda x, o, step: quantiser(x, o, mode="nearest"), [x, offset, quantiser.step], DY64)
    np.testing.assert_allclose(dx, [1.0, 0.0])
    assert others == [None, None]


READING = {
    "surrogate": lambda v: cg.straight_through(tf.sign, lambda x: v * x**2),
    "derivative": lambda v: cg.straight_through(tf.sign, derivative=lambda x: 2.0 * v * x),
}


@pytest.mark.parametrize(("name", "mode"), pairs(READING, [*RUNS, "loaded"], quick=2))
def test_a_variable_counts_as_it_was_at_the_call(name, mode, tmp_path):
    model = tf.Module()
    model.v = tf.Variable(3.0, trainable=name == "surrogate")
    model.f = READING[name](model.v)
    if mode == "loaded":
        model.f = tf.function(model.f, input_signature=[tf.TensorSpec([None])])
        tf.saved_model.save(model, tmp_path)
        model = tf.saved_model.load(tmp_path)

    def run():
        model.v.assign(3.0)
        with tf.GradientTape() as outer:
            outer.watch(X)
            with tf.GradientTape() as tape:
                tape.watch(X)
                y = model.f(X)
            model.v.assign(50.0)
            dx = tape.gradient(y, X, output_gradients=DY)
        return dx, outer.gradient(dx, X, output_gradients=DY)

    found = RUNS.get(mode, RUNS["eager"])(run)()
    assert_all_close(found, [DY * 6.0 * X, DY**2 * 6.0], rtol=1e-6)


def test_a_surrogate_that_closes_over_its_argument(gradient):
    (dx,) = gradient(lambda x: cg.straight_through(tf.sign, lambda u: u * x)(x), [X], DY)
    np.testing.assert_allclose(dx, DY * X)
