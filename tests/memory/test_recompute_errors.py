"""Functions that recompute_grad can neither replay nor trace: errors that name the function and the op."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS as MODES
from ..support.modes import vjp
from ..support.tensors import pairs

X = tf.constant([1.0, 2.0])
COUNTER, GENERATOR = tf.Variable([0.0, 0.0]), tf.random.Generator.from_seed(1)


def loop(body):
    return lambda x: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, body(y)), (0, x), maximum_iterations=3)[1]


def count(x):
    return x * COUNTER.assign_add([1.0, 1.0])


STATEFUL = {
    "a variable that a loop writes": (loop(count), "ReadVariableOp"),
    "a generator in a loop": (loop(lambda x: x * GENERATOR.normal([2])), "RngReadAndSkip"),
    "a generator in a loop in a loop": (loop(loop(lambda x: x * GENERATOR.normal([2]))), "RngReadAndSkip"),
    "a variable that a branch writes": (
        lambda x: tf.cond(x[0] > 0.0, lambda: count(x), lambda: x),
        "ReadVariableOp",
    ),
    "a shuffle in a loop": (loop(lambda x: x * tf.random.shuffle(X)), "RandomShuffle"),
}


def gradient(function, x=X):
    return vjp(lambda: cg.recompute_grad(function)(x), x)[1]


@pytest.mark.parametrize(("case", "mode"), pairs(STATEFUL, MODES))
def test_a_stateful_op_in_a_loop_or_branch(case, mode):
    function, op_type = STATEFUL[case]
    message = (
        "recompute_grad: stateful ops of '<lambda>' in a loop or branch must be random ops or reads of variables .*, "
        f"got '.*' of type {op_type}. Run it before the loop"
    )
    with pytest.raises(NotImplementedError, match=message):
        MODES[mode](lambda: gradient(function))()


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_a_stateful_op_with_a_gradient(mode):
    def function(x):
        return tf.ensure_shape(tf.py_function(tf.sin, [x], tf.float32), [2])

    message = (
        "recompute_grad: stateful ops of 'function' must not have gradients, .* got 'EagerPyFunc' of type EagerPyFunc"
    )
    with pytest.raises(NotImplementedError, match=message):
        MODES[mode](lambda: gradient(function))()


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


def test_errors_of_the_function_come_unchanged():
    def function(x):
        raise AttributeError("'Thing' object has no attribute 'size'")

    with pytest.raises(AttributeError, match="'Thing' object has no attribute 'size'"):
        gradient(function)
