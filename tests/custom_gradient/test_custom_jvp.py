"""custom_jvp: tangents come from the rule, gradients from its transpose."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import eager, gradients, traced
from ..support.tensors import random_array

pytestmark = pytest.mark.core


def jvp(function, args, tangents):
    with tf.autodiff.ForwardAccumulator(args, tangents) as accumulator:
        y = function(*args)
    return tf.nest.map_structure(accumulator.jvp, y)


def test_a_complex_rule(rng):
    """The transpose conjugates, as TensorFlow's gradients do."""
    square = cg.custom_jvp(lambda z: z**2)
    square.defjvp(lambda primals, tangents: (primals[0] ** 2, 2 * primals[0] * tangents[0]))
    z, dy = random_array(rng, [3], tf.complex128), random_array(rng, [3], tf.complex128)
    for run in (eager, traced):
        _, (dz,) = run(square, [z], dy)
        np.testing.assert_allclose(dz, run(tf.square, [z], dy)[1][0], rtol=1e-13)


def test_only_floats_and_complex_numbers_have_a_zero_tangent(rng):
    seen = []

    @cg.custom_jvp
    def function(x, *constants):
        return 2.0 * x

    @function.defjvp
    def rule(primals, tangents):
        seen.append(tangents[1:])
        return function(*primals), 2.0 * tangents[0]

    constants = 1.5, 2j, np.float32(3.0), np.ones([2], np.complex64), 1, True, "text", None, np.arange(3)
    gradients("eager", lambda x: function(x, *constants), [tf.constant(random_array(rng, [3]))], None)
    number, imaginary, single, array, *others = seen[0]
    assert (number, imaginary) == (0.0, 0j)
    assert (single.dtype, single.shape, float(single)) == (tf.float32, [], 0.0)
    assert (array.dtype, array.shape, array.numpy().tolist()) == (tf.complex64, [2], [0j, 0j])
    assert others == [None] * 5


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_a_gather_keeps_its_gradient_sliced(mode):
    rows = cg.custom_jvp(lambda table: tf.gather(table, [2, 0]))
    rows.defjvp(lambda primals, tangents: (tf.gather(primals[0], [2, 0]), 5 * tf.gather(tangents[0], [2, 0])))
    table, dy = tf.ones([4, 2]), tf.constant([[1.0, 2.0], [10.0, 20.0]])

    (dx,) = gradients(mode, rows, [table], dy)
    assert isinstance(dx, tf.IndexedSlices)
    expected = [[50.0, 100.0], [0.0, 0.0], [5.0, 10.0], [0.0, 0.0]]
    np.testing.assert_array_equal(tf.convert_to_tensor(dx), expected)


def test_the_rule_runs_only_for_a_derivative():
    calls = []
    function = cg.custom_jvp(tf.sin)
    function.defjvp(lambda primals, tangents: calls.append(1) or (primals[0], tangents[0]))
    x = tf.constant([1.0])
    function(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    assert not calls
    tape.gradient(y, x)
    assert len(calls) == 1
    jvp(function, [x], [x])
    assert len(calls) == 2


# Rules that differentiate: no tape records while an accumulator computes a tangent, except in a rule

X, T = np.array([0.4, -1.1, 2.0]), np.array([1.0, 10.0, -100.0])


def by_tapes(x, t, unconnected="none"):
    """The tangent of a sine by two tapes."""
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.sin(x)
        dy = tf.zeros_like(y)
        outer.watch(dy)
        dx = inner.gradient(y, x, dy, unconnected_gradients=unconnected)
    return outer.gradient(dx, dy, t, unconnected_gradients=unconnected)


def jacobian(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.sin(x)
    return tape.jacobian(y, x)


def with_rule(rule):
    function = cg.custom_jvp(lambda x: tf.sin(x))
    function.defjvp(lambda primals, tangents: rule(function, *primals, *tangents))
    return function


SINE = with_rule(lambda f, x, t: (tf.sin(x), by_tapes(x, t)))
WITH_TAPES = {
    "operations": with_rule(lambda f, x, t: (tf.sin(x), tf.cos(x) * t)),
    "tapes": SINE,
    "tapes with zeros": with_rule(lambda f, x, t: (tf.sin(x), by_tapes(x, t, "zero"))),
    "tapes and itself": with_rule(lambda f, x, t: (f(x), by_tapes(x, t))),
    "an accumulator": with_rule(lambda f, x, t: (f(x), jvp(SINE, [x], [t]))),
    "a jacobian": with_rule(lambda f, x, t: (f(x), tf.linalg.matvec(jacobian(x), t))),
}
FORWARD_MODES = {
    "eager": lambda run, f: run(f),
    "inside": lambda run, f: tf.function(lambda: run(f))(),
    "jit": lambda run, f: tf.function(lambda: run(f), jit_compile=True)(),
    "around": lambda run, f: run(tf.function(f)),
}


def vjp(function, x, dy):
    return gradients("eager", function, [x], dy)[0]


# What each order computes at X with the tangent or upstream T, and the derivative of the sine in it.
ORDERS = {
    "forward": (lambda f, x, t: jvp(f, [x], [t]), np.cos(X) * T),
    "reverse": (vjp, np.cos(X) * T),
    "forward over forward": (lambda f, x, t: jvp(lambda x: jvp(f, [x], [t]), [x], [t]), -np.sin(X) * T**2),
    "forward over reverse": (lambda f, x, t: jvp(lambda x: vjp(f, x, t), [x], [t]), -np.sin(X) * T**2),
    "reverse over forward": (lambda f, x, t: vjp(lambda x: jvp(f, [x], [t]), x, t), -np.sin(X) * T**2),
}


@pytest.mark.parametrize("mode", FORWARD_MODES)
@pytest.mark.parametrize("rule", WITH_TAPES)
def test_a_rule_differentiates(rule, mode):
    for order, (compute, expected) in ORDERS.items():
        if (order, mode) != ("reverse over forward", "around"):  # TensorFlow has no such derivative of a tf.function.
            found = FORWARD_MODES[mode](lambda f, c=compute: c(f, tf.constant(X), tf.constant(T)), WITH_TAPES[rule])
            np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=order)


@pytest.mark.parametrize("mode", FORWARD_MODES)
@pytest.mark.parametrize("is_x_watched", [True, False])
def test_a_rule_with_tapes_that_calls_a_function_of_a_watched_variable(is_x_watched, mode):
    """The accumulator watches the variable in the rule, too, but needs no tangents there."""
    factor = tf.Variable([2.0, 3.0, 5.0], dtype=tf.float64)
    scaled = cg.custom_jvp(lambda x: tf.sin(x) * factor)

    @scaled.defjvp
    def rule(primals, tangents, variables, variable_tangents):
        (x,), (t,), (factor_tangent,) = primals, tangents, variable_tangents
        dy = tf.sin(x) * factor_tangent
        return scaled(x), dy if t is None else dy + variables[0] * by_tapes(x, t)

    def run(function):
        x, t, of_factor = tf.constant(X), tf.constant(T), tf.ones_like(factor)
        sources = ([x, factor], [t, of_factor]) if is_x_watched else (factor, of_factor)
        with tf.autodiff.ForwardAccumulator(*sources) as accumulator:
            y = function(x)
        tangent = accumulator.jvp(y)
        assert accumulator.jvp(tangent) is None
        return tangent

    found = FORWARD_MODES[mode](run, scaled)
    np.testing.assert_allclose(found, np.sin(X) + is_x_watched * factor.numpy() * np.cos(X) * T, rtol=1e-12)
