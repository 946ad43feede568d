"""A gradient function can differentiate: with a tape, an accumulator or tf.gradients, wherever its arguments come from.

In a loop, a branch or another function, TensorFlow calls it in a graph that captures the tensors that it reads.
"""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import by_jacobians, by_tangents, gradients, tape_vjp
from ..support.tensors import pairs

X = np.array([0.5, -1.2, 2.0])
DY = np.array([1.0, -10.0, 100.0])


def value(x):
    return tf.sin(x) * x


def slope(x):
    """The derivative of `value`, in NumPy."""
    return np.cos(x) * x + np.sin(x)


# Ways to differentiate `value` in a gradient function


def tape(x, dy, function=value):
    return tape_vjp(function, [x], dy)[1][0]


decorated_sine = cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: dy * tf.cos(x)))
WAYS = {
    "tape": tape,
    "tape after another use": lambda x, dy: tf.zeros_like(x) * tf.cos(x) + tape(x, dy),
    "tape in a function": lambda x, dy: tf.function(lambda dy: tape(x, dy))(dy),
    "tape around a decorated function": lambda x, dy: tape(x, dy, lambda x: decorated_sine(x) * x),
    "jacobian": lambda x, dy: by_jacobians(value, [x], dy)[1][0],
    "tf.gradients": lambda x, dy: tf.gradients(value(x), x, dy),
}


# Functions with the value and the gradient of `value`


def with_grad_fn(differentiate):
    return cg.custom_gradient(lambda x: (value(x), lambda dy: differentiate(x, dy)))


def with_a_tape_of_the_forward_pass(persistent=False, has_jacobian=False, effect=lambda: None):
    @cg.custom_gradient
    def function(x):
        with tf.GradientTape(persistent=persistent) as outer:
            outer.watch(x)
            y = value(x)

        def grad_fn(dy):
            effect()
            if has_jacobian:
                return tf.linalg.matvec(outer.jacobian(y, x), dy, transpose_a=True)
            return outer.gradient(y, x, output_gradients=dy)

        return y, grad_fn

    return function


FUNCTIONS = {
    **{way: functools.partial(with_grad_fn, differentiate) for way, differentiate in WAYS.items()},
    "tape of the forward pass": with_a_tape_of_the_forward_pass,
    "jacobian of the forward pass": lambda: with_a_tape_of_the_forward_pass(has_jacobian=True),
    "straight_through": lambda: cg.straight_through(value, derivative=lambda x: tape(x, tf.ones_like(x))),
}


def loop(body, x):
    return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, body(y)), (0, x), maximum_iterations=2)[1]


# Where the function is called, and the derivative there. In most places, x is from outside.
PLACES = {
    "alone": (lambda f, x: f(x), slope),
    "branch": (lambda f, x: tf.cond(x[0] > 0.0, lambda: f(x), lambda: -x), slope),
    "loop": (lambda f, x: loop(lambda y: y + f(x), x), lambda x: 1.0 + 2.0 * slope(x)),
    "loop over a tensor in it": (
        lambda f, x: loop(lambda y: y + f(2.0 * x), x),
        lambda x: 1.0 + 4.0 * slope(2.0 * x),
    ),
    "branch in a loop": (
        lambda f, x: loop(lambda y: tf.cond(x[0] > 0.0, lambda: f(y), lambda: -x), x),
        lambda x: slope(x) * slope(np.sin(x) * x),
    ),
    "vectorized_map": (lambda f, x: tf.vectorized_map(lambda number: number * f(x), tf.ones_like(x))[2], slope),
    "recompute_grad": (
        lambda f, x: cg.recompute_grad(lambda x: tf.cond(x[0] > 0.0, lambda: f(x), lambda: -x))(x),
        slope,
    ),
}


@pytest.mark.parametrize(("kind", "place"), pairs(FUNCTIONS, PLACES, quick=2))
def test_a_gradient_function_differentiates_everywhere(kind, place):
    wrap, derivative = PLACES[place]
    run = tf.function(functools.partial(wrap, FUNCTIONS[kind]()), autograph=False)
    for mode in "eager", "traced":
        (dx,) = gradients(mode, run, [tf.constant(X)], tf.constant(DY))
        np.testing.assert_allclose(tf.convert_to_tensor(dx), DY * derivative(X), rtol=1e-10, err_msg=mode)


@pytest.mark.parametrize("place", PLACES)
def test_a_jacobian_and_tangents_through_a_tape_in_grad_fn(place):
    wrap, derivative = PLACES[place]
    for differentiate in by_jacobians, by_tangents:
        # Anew each time: after a Jacobian, TensorFlow has no tangents of the same loop.
        function = tf.function(functools.partial(wrap, with_grad_fn(tape)), autograph=False)
        _, (dx,) = differentiate(function, [tf.constant(X)], tf.constant(DY))
        np.testing.assert_allclose(dx, DY * derivative(X), rtol=1e-10)


@pytest.mark.parametrize(("place", "mode"), [("alone", "eager"), ("branch", "traced"), ("vectorized_map", "traced")])
def test_a_tape_in_the_rule_of_a_second_derivative(place, mode):
    """The rule is copied into the batch of tf.vectorized_map."""
    cosine = cg.custom_gradient(lambda x: (tf.cos(x), lambda dy: 3.0 * tape(x, dy, tf.cos)))
    sine = cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: dy * cosine(x)))

    def call(x):
        return tf.vectorized_map(sine, x) if place == "vectorized_map" else PLACES[place][0](sine, x)

    dx = functools.partial(tape, dy=tf.constant(DY), function=call)
    (second,) = gradients(mode, dx, [tf.constant(X)], tf.constant(DY))
    np.testing.assert_allclose(second, -3.0 * DY**2 * np.sin(X), rtol=1e-10)


# A tape of the forward pass that can be used once: the trace for a file has used it


def test_a_tape_of_the_forward_pass_serves_several_gradients_of_a_graph():
    """TensorFlow allows one."""

    def run(x):
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            y = with_a_tape_of_the_forward_pass()(x)
        return [outer.gradient(y, x, output_gradients=factor * DY) for factor in (1.0, 2.0)]

    found = tf.function(run, autograph=False)(tf.constant(X))
    np.testing.assert_allclose(found, [DY * slope(X), 2.0 * DY * slope(X)], rtol=1e-10)


@pytest.mark.parametrize("place", ["alone", "loop"])
def test_a_tape_that_was_used_up_is_an_error_if_side_effects_would_run_twice(place):
    calls = tf.Variable(0, trainable=False)
    wrap, derivative = PLACES[place]

    def gradient(persistent):
        function = with_a_tape_of_the_forward_pass(persistent, effect=lambda: calls.assign_add(1))
        return gradients("traced", functools.partial(wrap, function), [tf.constant(X)], tf.constant(DY))[0]

    message = (
        "custom_gradient: grad_fn of 'function' has side effects, so a tape of the forward pass that it uses must be "
        "tf.GradientTape(persistent=True), got a tape that is not persistent."
    )
    with pytest.raises(RuntimeError, match=re.escape(message)):
        gradient(persistent=False)
    np.testing.assert_allclose(gradient(persistent=True), DY * derivative(X), rtol=1e-10)
    assert calls.numpy() == (2 if place == "loop" else 1)


def test_reading_a_variable_before_the_tape_is_not_a_side_effect():
    variable = tf.Variable(2.0, trainable=False)
    function = with_a_tape_of_the_forward_pass(effect=variable.read_value)
    (dx,) = gradients("traced", function, [tf.constant(X)], tf.constant(DY))
    np.testing.assert_allclose(dx, DY * slope(X), rtol=1e-10)
