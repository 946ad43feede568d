"""Which variables a function reads, and when its rule reads them, beyond the values and gradients of cases.py."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, gradients

pytestmark = pytest.mark.core

X, DY = tf.constant([1.0, 2.0]), tf.constant([1.0, 10.0])


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "traced"])
def test_a_variable_created_inside(wrap):
    made = []

    @cg.custom_gradient
    def function(x):
        if not made:
            made.append(tf.Variable([1.0, 1.0]))
        return x * made[0], lambda dy, variables: (2.0 * dy, [3.0 * dy])

    run = wrap(lambda x: function(x))
    for _ in range(2):  # Shared by the calls after the first.
        run(X)
        np.testing.assert_allclose(gradients("eager", lambda x, _: run(x), [X, made[0]], DY), [2 * DY, 3 * DY])


def test_reference_variables_of_tensorflow_1_are_arguments():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        v = tf.compat.v1.get_variable("v", [2], initializer=tf.ones_initializer(), use_resource=False)
        x = tf.constant([1.0, 2.0])
        y = cg.custom_gradient(lambda x, v: (x * v, lambda dy: (3.0 * dy, 5.0 * dy)))(x, v)
        found = tf.gradients(y, [x, v], grad_ys=tf.constant([1.0, 10.0]))
        session.run(tf.compat.v1.global_variables_initializer())
        np.testing.assert_allclose(session.run(found), [[3.0, 30.0], [5.0, 50.0]])


@pytest.mark.parametrize("mode", RUNS)
def test_a_grad_fn_reads_what_a_variable_holds_when_it_runs(mode):
    """As with tf.custom_gradient. Nobody watches the variable, which is not trainable, so no gradient is wanted for it."""
    v = tf.Variable([2.0, 3.0], trainable=False)
    product = cg.custom_gradient(lambda x: (x * v, lambda dy: dy * v))

    def run(x):
        v.assign([2.0, 3.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = product(x)
        v.assign([100.0, 1000.0])
        return tape.gradient(y, x, output_gradients=DY)

    np.testing.assert_array_equal(RUNS[mode](run)(X), DY * [100.0, 1000.0])


def test_a_watched_variable_is_an_error_for_a_grad_fn_that_takes_none():
    v = tf.Variable([3.0, 4.0], trainable=False, name="frozen")
    function = cg.custom_gradient(lambda x: (x * v, lambda dy: dy))

    with pytest.raises(TypeError, match=r"reads variables that are not among its arguments \('frozen:0'\)"):
        gradients("traced", lambda v: function(X), [v], DY)
    np.testing.assert_allclose(function(X), [3.0, 8.0])


def test_a_function_that_was_traced_before_a_variable_was_watched():
    """A trace does not know the tapes of later calls. Traced under the tape, it has the gradient."""
    v = tf.Variable([3.0, 4.0], trainable=False)
    product = cg.custom_gradient(lambda x: (x * v, lambda dy, variables=(): (dy, [5.0 * dy]) if variables else dy))
    traced_now, traced_before = tf.function(product), tf.function(product)
    traced_before(X)
    (dv,) = gradients("eager", lambda v: traced_now(X), [v], DY)
    np.testing.assert_allclose(dv, 5.0 * DY)
    assert gradients("eager", lambda v: traced_before(X), [v], DY) == [None]
