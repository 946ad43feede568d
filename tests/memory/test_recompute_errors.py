"""Functions that recompute_grad does recompute, beside those that it refuses (see tests/messages)."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS as MODES
from ..support.modes import vjp

X, COUNTER = tf.constant([1.0, 2.0]), tf.Variable([0.0, 0.0])


def loop(body):
    return lambda x: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, body(y)), (0, x), maximum_iterations=3)[1]


def gradient(function, x=X):
    return vjp(lambda: cg.recompute_grad(function)(x), x)[1]


def test_a_function_that_branches_on_a_tensor_as_the_message_says():
    function = tf.function(lambda x: x * x if x[0] > 0.0 else -x)
    np.testing.assert_allclose(gradient(function), 2.0 * X)
    np.testing.assert_allclose(gradient(function, -X), [-1.0, -1.0])


@pytest.mark.parametrize("mode", MODES)
def test_effects_in_a_loop_that_the_value_does_not_depend_on(mode):
    COUNTER.assign([0.0, 0.0])

    def body(x):
        COUNTER.assign_add([1.0, 1.0])
        return tf.sin(x)

    dx = MODES[mode](lambda: gradient(loop(body)))()
    x = X.numpy()
    np.testing.assert_allclose(dx, np.cos(x) * np.cos(np.sin(x)) * np.cos(np.sin(np.sin(x))), rtol=1e-5)
    np.testing.assert_array_equal(COUNTER, [3.0, 3.0])
