"""A function that was written for keras.ops.custom_gradient, whose gradient function is grad(*args, upstream=None)."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, tape_vjp

X, DY = np.array([0.0, 1.0, 100.0]), np.array([1.0, 10.0, 100.0])
DX = DY / (1.0 + np.exp(-X))


@cg.custom_gradient
def log1pexp(x):
    e = keras.ops.exp(x)

    def grad(*args, upstream=None):
        if upstream is None:
            (upstream,) = args
        return keras.ops.multiply(upstream, 1.0 - 1.0 / keras.ops.add(1.0, e))

    return keras.ops.log(1.0 + e), grad


def derive(function, x=X):
    return tape_vjp(function, [tf.constant(x)], tf.constant(DY))[1][0]


@pytest.mark.parametrize("run", RUNS)
def test_it_has_its_gradient(run):
    np.testing.assert_allclose(RUNS[run](lambda: derive(log1pexp))(), DX)


def test_it_has_its_gradient_after_a_reload_in_loops_too(tmp_path):
    model = tf.Module()
    model.f = tf.function(log1pexp, input_signature=[tf.TensorSpec([3], tf.float64)])
    tf.saved_model.save(model, tmp_path)
    f = tf.saved_model.load(tmp_path).f
    np.testing.assert_allclose(derive(f), DX)
    loop = tf.function(lambda x: tf.while_loop(lambda i, x: i < 1, lambda i, x: (i + 1, f(x)), (0, x))[1])
    np.testing.assert_allclose(derive(loop), DX)


def test_it_has_its_gradient_in_a_functional_model():
    inputs = keras.Input([3], dtype="float64")
    model = keras.Model(inputs, log1pexp(inputs))
    np.testing.assert_allclose(derive(model, X[None])[0], DX)
