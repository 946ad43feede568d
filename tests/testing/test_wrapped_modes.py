"""The modes of check_gradient that put the function into a loop, a conditional or a SavedModel."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.testing import check_gradient

MODES = ["while_loop", "cond", "saved_model"]
X = np.array([0.3, -0.7, 1.2])
WEIGHT = tf.Variable([2.0, 3.0, 4.0], dtype=tf.float64)


@cg.custom_gradient
def sine(x):
    return tf.sin(x), lambda dy: dy * tf.cos(x)


@cg.custom_gradient
def weighted(x, n):
    def grad_fn(_, dy, variables):
        return (dy * WEIGHT * n, None), [dy * x * n]

    return {"y": WEIGHT * x * n, "which": tf.argmax(x)}, grad_fn


@pytest.mark.parametrize("mode", MODES)
def test_a_right_gradient_passes(mode):
    report = check_gradient(sine, [X], modes=[mode], second_order=True)
    assert {(c.mode, c.order) for c in report.comparisons} == {(mode, order) for order in ("value", "first", "second")}
    assert not check_gradient(weighted, [X, 3], modes=[mode]).failures


def wrong_in(what):
    """A gradient that is wrong where the graph that computes it belongs to this."""

    @cg.custom_gradient
    def faulty(x):
        def grad_fn(dy):
            name = tf.compat.v1.get_default_graph().name if not tf.executing_eagerly() else ""
            return dy * tf.cos(x) * (-1.0 if what in name else 1.0)

        return tf.sin(x), grad_fn

    return faulty


def test_a_gradient_that_is_wrong_in_a_loop_alone_is_found_there():
    modes = ["eager", "function", "while_loop"]
    with pytest.raises(AssertionError, match=r"is wrong in mode 'while_loop'; .*the sign is wrong"):
        check_gradient(wrong_in("while"), [X], modes=modes)


def test_a_gradient_that_cannot_be_traced_is_found_in_a_saved_model():
    @cg.custom_gradient
    def faulty(x):
        def grad_fn(dy):
            return tf.constant(dy.numpy() * np.cos(x.numpy()))

        return tf.sin(x), grad_fn

    with pytest.raises(
        AssertionError, match="could not be computed in mode 'saved_model'; expected numbers, got Runtime"
    ):
        check_gradient(faulty, [X], modes=["eager", "saved_model"])


def test_python_functions_cannot_be_saved():
    function = cg.numpy_function(lambda x: (np.sin(x), np.cos(x)))
    check_gradient(function, [X], modes=["eager", "function", "while_loop", "cond"])
    with pytest.raises(AssertionError, match="could not be computed in mode 'saved_model'"):
        check_gradient(function, [X], modes=["saved_model"])
