"""straight_through: its surrogates and derivatives, as they were at the call."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import MODES, RUNS, gradients, vjp
from ..support.tensors import DTYPES, GRADIENT_RTOL, pairs, random_array

X, DY = tf.constant([0.3, -0.8]), tf.constant([1.0, 10.0])
DY64 = np.array([1.0, 10.0])

SURROGATES = {
    "identity": lambda x, slope: np.ones_like(x),
    "hard_tanh": lambda x, slope: (np.abs(slope * x) <= 1).astype(float),
    "sigmoid": lambda x, slope: slope * np.exp(-slope * x) / (1 + np.exp(-slope * x)) ** 2,
    "fast_sigmoid": lambda x, slope: 1 / (1 + slope * np.abs(x)) ** 2,
}


@pytest.mark.parametrize("slope", [0.5, 32.0])
@pytest.mark.parametrize(("surrogate", "dtype"), pairs(SURROGATES, [dtype for dtype in DTYPES if not dtype.is_complex]))
def test_surrogates(surrogate, slope, dtype, rng, gradient):
    x, dy = random_array(rng, (5,), dtype), random_array(rng, (5,), dtype)
    # The derivative of hard_tanh includes both ends.
    x[:2] = 1 / slope, -1 / slope
    function = cg.straight_through(tf.sign, surrogate, slope=slope)
    np.testing.assert_array_equal(function(tf.constant(x)).numpy().astype(float), np.sign(x.astype(float)))
    (dx,) = gradient(function, [x], tf.constant(dy))
    rounding = 20 if surrogate in ("sigmoid", "fast_sigmoid") else 1
    np.testing.assert_allclose(
        dx.numpy().astype(float),
        SURROGATES[surrogate](x.astype(float), slope) * dy.astype(float),
        rtol=rounding * GRADIENT_RTOL[dtype],
        atol=GRADIENT_RTOL[dtype],
    )


def test_far_from_zero_the_derivative_of_the_sigmoid_is_not_rounded_to_zero(gradient):
    (dx,) = gradient(cg.straight_through(tf.sign, "sigmoid"), [np.array([-50.0, 50.0])], np.array([1.0, 10.0]))
    np.testing.assert_allclose(dx, np.exp(-50.0) * np.array([1, 10]), rtol=1e-12)


def cubed(x):
    return tf.square(x) * x


SURROGATE_FUNCTIONS = {
    "of TensorFlow": (tf.tanh, lambda x: 1 - np.tanh(x) ** 2, lambda x: -2 * np.tanh(x) * (1 - np.tanh(x) ** 2)),
    "of the user": (cubed, lambda x: 3 * x**2, lambda x: 6 * x),
    "not elementwise": (lambda x: x * tf.reduce_sum(x), None, None),
    "with a custom gradient": (
        cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: dy * tf.exp(x))),
        lambda x: np.exp(x),
        lambda x: np.exp(x),
    ),
}


@pytest.mark.core
@pytest.mark.parametrize(("name", "mode"), pairs(SURROGATE_FUNCTIONS, MODES, quick=2))
def test_a_surrogate_function_is_differentiated(name, mode):
    """First and second derivatives come from the surrogate, the value from the function."""
    surrogate, first, second = SURROGATE_FUNCTIONS[name]
    x, dy = np.array([0.3, -0.8, 1.7]), np.array([1.0, 10.0, 100.0])
    value, dx, ddx = MODES[mode](cg.straight_through(tf.sign, surrogate), x, dy)
    np.testing.assert_array_equal(value, np.sign(x))
    if first is None:
        np.testing.assert_allclose(dx, dy * x.sum() + (dy * x).sum(), rtol=1e-12)
        np.testing.assert_allclose(ddx, (dy**2).sum() + dy * dy.sum(), rtol=1e-12)
    else:
        np.testing.assert_allclose(dx, dy * first(x), rtol=1e-12)
        np.testing.assert_allclose(ddx, dy**2 * second(x), rtol=1e-12)


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


@pytest.mark.parametrize("mode", RUNS)
@pytest.mark.parametrize("name", READING)
def test_a_variable_counts_as_it_was_at_the_call(name, mode):
    v = tf.Variable(3.0, trainable=name == "surrogate")

    def run():
        v.assign(3.0)
        with tf.GradientTape() as outer:
            outer.watch(X)
            with tf.GradientTape() as tape:
                tape.watch(X)
                y = READING[name](v)(X)
            v.assign(50.0)
            dx = tape.gradient(y, X, output_gradients=DY)
        return dx, outer.gradient(dx, X, output_gradients=DY)

    dx, ddx = RUNS[mode](run)()
    np.testing.assert_allclose(dx, DY * 6.0 * X, rtol=1e-6)
    np.testing.assert_allclose(ddx, DY**2 * 6.0, rtol=1e-6)


@pytest.mark.parametrize("name", READING)
def test_a_loaded_model_reads_a_variable_at_the_call(name, tmp_path):
    model = tf.Module()
    model.v = tf.Variable(3.0)
    model.f = tf.function(READING[name](model.v), input_signature=[tf.TensorSpec([None])])
    tf.saved_model.save(model, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = loaded.f(X)
    loaded.v.assign(50.0)
    np.testing.assert_allclose(tape.gradient(y, X, output_gradients=DY), DY * 6.0 * X, rtol=1e-6)


@pytest.mark.parametrize("mode", RUNS)
def test_a_surrogate_that_closes_over_its_argument(mode):
    (dx,) = gradients(mode, lambda x: cg.straight_through(tf.sign, lambda u: u * x)(x), [X], DY)
    np.testing.assert_allclose(dx, DY * X)
