"""`straight_through` reads variables at the call, and differentiates a surrogate by its argument only."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, gradients

X, DY = tf.constant([0.3, -0.8]), tf.constant([1.0, 10.0])
READING = {
    "surrogate": lambda v: cg.straight_through(tf.sign, lambda x: v * x**2),
    "derivative": lambda v: cg.straight_through(tf.sign, derivative=lambda x: 2.0 * v * x),
}


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("mode", RUNS)
@pytest.mark.parametrize("name", READING)
def test_a_variable_counts_as_it_was_at_the_call(name, mode, trainable):
    v = tf.Variable(3.0, trainable=trainable)

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
    model.f = tf.function(READING[name](model.v), input_signature=[tf.TensorSpec([2])])
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
