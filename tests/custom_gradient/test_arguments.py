"""Arguments and results of a decorated function beyond the values and gradients of cases.py."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import vjp
from ..support.tensors import address

pytestmark = pytest.mark.core

X, DY = np.array([1.0, 2.0]), np.array([1.0, 10.0])


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_results_share_the_buffer_of_y(traced):
    def run(x):
        y = tf.exp(x)
        return y, cg.custom_gradient(lambda x: (y, lambda dy: dy))(x)

    y, result = (tf.function(run) if traced else run)(tf.constant(X))
    assert address(result) == address(y)


def test_an_array_as_the_value_has_a_gradient():
    x = tf.constant(X)
    through_numpy = cg.custom_gradient(lambda x: (np.sin(x.numpy()), lambda dy: 7.0 * dy))
    y, dx = vjp(lambda: through_numpy(x), x, DY)
    np.testing.assert_allclose([y, dx], [np.sin(X), 7 * DY])


def test_a_rule_runs_once_for_the_file_and_once_for_each_gradient_that_is_asked_for():
    traced = []

    @cg.custom_gradient
    def function(x):
        def grad_fn(dy):
            traced.append(tf.executing_eagerly())
            return 2.0 * dy

        return x, grad_fn

    run, x = tf.function(lambda x: function(x) + function(2.0 * x)), tf.constant(X)
    run(x)
    assert traced == [False, False]  # Once for each of the two calls in the graph.
    for _ in range(3):
        np.testing.assert_allclose(vjp(lambda: run(x), x, DY)[1], 6 * DY)
    assert traced == [False] * 4  # Once more when the graph of the gradient is built, not at each step.
    function(x)
    assert len(traced) == 4


def test_the_names_of_rules_in_a_graph_are_plain_identifiers():
    function = cg.custom_gradient(lambda x: (2.0 * x, lambda dy: dy))
    function.__name__ = "größe <of> x.y"
    tf_function = tf.function(function, input_signature=[tf.TensorSpec([2])])
    names = [f.signature.name for f in tf_function.get_concrete_function().graph.as_graph_def().library.function]
    assert [name for name in names if re.fullmatch(r"\w*rule_of\w*", name, re.ASCII)] == names
    assert names


def test_a_keyword_that_holds_a_tensor_is_not_left_out(gradient):
    scaled = cg.custom_gradient(lambda x, k, w: (x * k * w, lambda dy: dy))
    message = "grad_fn of '<lambda>' returned 1 gradient; expected 3 (one per input: 'x', 'k', 'w')."
    with pytest.raises(ValueError, match=re.escape(message)):
        gradient(lambda x, w: scaled(x, k=3.0, w=w), [X, X], DY)
