"""Recomputed functions with variables inside of recomputed functions and loops."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS as MODES
from ..support.modes import vjp

X, DY = tf.constant([1.0, 2.0, -0.5]), tf.constant([1.0, 10.0, -3.0])


def gradients(function, variable, mode):
    def step():
        return vjp(lambda: function(X), [X, variable], DY)

    return tf.nest.flatten(MODES[mode](step)())


@pytest.mark.parametrize("mode", MODES)
def test_a_function_with_variables_in_another_one(mode):
    variable = tf.Variable([0.5, -1.0, 2.0])

    def sine(x):
        return tf.sin(x * variable)

    def plain(x, inner=sine):
        return inner(inner(x) + variable) * x

    recomputed = cg.recompute_grad(lambda x: plain(x, cg.recompute_grad(sine)))
    for found, expected in zip(gradients(recomputed, variable, mode), gradients(plain, variable, mode), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_a_function_with_variables_in_a_loop_of_another_one(mode):
    variable = tf.Variable([0.5, -1.0, 2.0])

    def sine(x):
        return tf.sin(x * variable)

    def loop(x, inner=sine):
        return tf.while_loop(
            lambda i, x: i < 3, lambda i, x: (i + 1, inner(x) + x), (0, x), maximum_iterations=3, parallel_iterations=1
        )[1]

    recomputed = cg.recompute_grad(lambda x: loop(x, cg.recompute_grad(sine)))
    for found, expected in zip(gradients(recomputed, variable, mode), gradients(loop, variable, mode), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_a_variable_that_changes_between_the_passes_is_read_as_it_was(mode):
    variable = tf.Variable([0.5, -1.0, 2.0])
    recomputed = cg.recompute_grad(lambda x: cg.recompute_grad(lambda x: tf.sin(x * variable))(x))

    def step():
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = recomputed(X)
        variable.assign(tf.zeros([3]))
        return tape.gradient(y, [X, variable], output_gradients=DY)

    weights = variable.numpy()
    dx, dv = MODES[mode](step)()
    np.testing.assert_allclose(dx, DY * np.cos(X * weights) * weights, rtol=1e-5)
    np.testing.assert_allclose(dv, DY * np.cos(X * weights) * X, rtol=1e-5)
