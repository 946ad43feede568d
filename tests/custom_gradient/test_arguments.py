"""Arguments and results of a decorated function: structures, keywords, methods, composite tensors, Python objects."""

import collections
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import MODES, VJP_MODES, assert_orders
from ..support.tensors import address, pairs

pytestmark = pytest.mark.core

X, Y, DY = np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([1.0, 10.0])


@cg.custom_gradient
def weighted(x, y, *, a=2.0, b=3.0):
    """dx = 10 a dy, dy = 100 b dy; a and b are numbers or tensors."""

    def grad_fn(dy):
        return 10.0 * a * dy, 100.0 * b * dy, 7.0 * tf.reduce_sum(dy), 9.0 * tf.reduce_sum(dy)

    return a * x + b * y, grad_fn


CALLS = {
    "positions": lambda x, y: weighted(x, y, a=2.0, b=3.0),
    "keywords": lambda x, y: weighted(b=3.0, y=y, a=2.0, x=x),
    "tensors": lambda x, y: weighted(x, y=y, b=tf.constant(3.0, y.dtype), a=tf.constant(2.0, y.dtype)),
}


@pytest.mark.parametrize(("call", "mode"), pairs(CALLS, MODES, quick=2))
def test_keywords_in_any_mix_have_the_same_gradient(call, mode):
    actual = MODES[mode](lambda x: CALLS[call](x, 5.0 * x), X, DY)
    # d/dx of a x + b 5x by the rule: 10 a + 5 * 100 b.
    assert_orders(actual, [2 * X + 15 * X, DY * (20 + 1500), np.zeros(2)])


def test_tensors_passed_by_keyword_have_gradients(gradient):
    a, b = tf.constant(4.0, tf.float64), tf.constant(6.0, tf.float64)
    dx, da, db = gradient(lambda x, a, b: weighted(x, Y, b=b, a=a), [X, a, b], DY)
    np.testing.assert_allclose(dx, 40 * DY)
    assert (float(da), float(db)) == (77.0, 99.0)


def test_nested_structures_of_arguments_and_results(gradient):
    Pair = collections.namedtuple("Pair", ["first", "second"])

    @cg.custom_gradient
    def function(tree, pair):
        total = tree["a"] + tree["b"][0] + pair.first * pair.second
        result = {"sum": total, "parts": (2.0 * total, [3.0 * total])}

        def grad_fn(dparts0, dparts1, dsum):  # In the order of tf.nest, which sorts the keys.
            dy = dsum + 10.0 * dparts0 + 100.0 * dparts1
            return {"a": dy, "b": [2.0 * dy]}, Pair(3.0 * dy, None)

        return result, grad_fn

    def run(a, b, c):
        result = function({"b": [b], "a": a}, Pair(second=b, first=c))
        assert list(result) == ["sum", "parts"]
        return result["sum"] + result["parts"][0] * 5.0 + result["parts"][1][0] * 7.0

    da, db, dc = gradient(run, [X, Y, X], DY)
    np.testing.assert_allclose(da, 751 * DY)
    np.testing.assert_allclose(db, 2 * 751 * DY)
    np.testing.assert_allclose(dc, 3 * 751 * DY)


def test_arguments_that_are_not_tensors(gradient):
    @cg.custom_gradient
    def function(x, mode, count, nothing, callback, array):
        assert mode == "fast"
        assert nothing is None
        y = callback(x) * count + array
        return y, lambda dy: (17.0 * dy, None, None, None, None, None)

    (dx,) = gradient(lambda x: function(x, "fast", 3, None, tf.sin, np.ones(2)), [X], DY)
    np.testing.assert_allclose(dx, 17 * DY)


def test_outputs_without_a_gradient(gradient):
    """The upstream gradient of an integer is zeros, and of None it is None."""

    @cg.custom_gradient
    def function(x):
        def grad_fn(dy, dcount, dnone, dtext, dnumber):
            assert (dnone, dtext) == (None, None)
            assert dcount.dtype == dnumber.dtype == tf.int32
            return 6.0 * dy

        return (2.0 * x, tf.size(x), None, "text", 3), grad_fn

    def run(x):
        y, count, nothing, text, _ = function(x)
        assert (nothing, text) == (None, "text")
        assert count.dtype == tf.int32
        return y

    (dx,) = gradient(run, [X], DY)
    np.testing.assert_allclose(dx, 6 * DY)


def test_the_same_tensor_twice_collects_both_gradients(gradient):
    @cg.custom_gradient
    def function(x, y):
        return x * y, lambda dy: (3.0 * dy, 50.0 * dy)

    (dx,) = gradient(lambda x: function(x, x), [X], DY)
    np.testing.assert_allclose(dx, 53 * DY)


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
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = through_numpy(x)
    np.testing.assert_allclose(y, np.sin(X))
    for _ in range(2):
        np.testing.assert_allclose(tape.gradient(y, x, output_gradients=DY), 7 * DY)


def test_a_rule_runs_once_for_the_file_and_once_for_each_gradient_that_is_asked_for():
    traced = []

    @cg.custom_gradient
    def function(x):
        def grad_fn(dy):
            traced.append(tf.executing_eagerly())
            return 2.0 * dy

        return x, grad_fn

    run = tf.function(lambda x: function(x) + function(2.0 * x))
    run(tf.constant(X))
    assert traced == [False, False]  # Once for each of the two calls in the graph.
    for _ in range(3):
        x = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = run(x)
        np.testing.assert_allclose(tape.gradient(y, x, output_gradients=DY), 6 * DY)
    assert traced == [False] * 4  # Once more when the graph of the gradient is built, not at each step.
    function(tf.constant(X))
    assert len(traced) == 4


def test_a_result_without_an_upstream_has_zeros_of_its_shape_where_that_is_unknown():
    """An integer, and a result that is not used."""
    upstreams = []

    @cg.custom_gradient
    def function(x):
        def grad_fn(dy, dcounts, dunused):
            upstreams.append((dcounts, dunused))
            ones = tf.ones_like(dunused) + tf.cast(tf.ones_like(dcounts), dunused.dtype)
            return 3.0 * dy + tf.reduce_sum(ones)

        return (2.0 * x, tf.cast(x, tf.int32), tf.concat([x, x[:1]], 0)[:-1]), grad_fn

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float64)] * 2)
    def run(x, dy):
        return tf.gradients(function(x)[0], x, dy)[0]

    np.testing.assert_allclose(run(X, DY), 3 * DY + 2 * len(X))
    assert upstreams
    assert all(dcounts.dtype == tf.int32 and dunused.dtype == tf.float64 for dcounts, dunused in upstreams)


def test_the_names_of_rules_in_a_graph_are_plain_identifiers():
    function = cg.custom_gradient(lambda x: (2.0 * x, lambda dy: dy))
    function.__name__ = "größe <of> x.y"
    tf_function = tf.function(function, input_signature=[tf.TensorSpec([2])])
    names = [f.signature.name for f in tf_function.get_concrete_function().graph.as_graph_def().library.function]
    assert [name for name in names if re.fullmatch(r"\w*rule_of\w*", name, re.ASCII)] == names
    assert names


@cg.custom_gradient
def with_options(x, k=2.0, training=False, name=None):
    """Its grad_fn returns a gradient only for x."""
    return x * float(k), lambda dy: 10.0 * k * dy if training else float(k) * dy


@pytest.mark.parametrize("mode", VJP_MODES)
def test_grad_fn_may_leave_out_what_holds_no_tensor(mode):
    def run(x):
        """A tf.function passes keywords and defaults by position."""
        itself = tf.function(with_options)
        return with_options(x, k=3.0) + itself(x) + itself(x, training=True, name="n")

    _, (dx,) = VJP_MODES[mode](run, [X], DY)
    np.testing.assert_allclose(dx, (3.0 + 2.0 + 20.0) * DY)


def test_a_keyword_that_holds_a_tensor_is_not_left_out(gradient):
    scaled = cg.custom_gradient(lambda x, k, w: (x * k * w, lambda dy: dy))
    message = "grad_fn of '<lambda>' returned 1 gradient; expected 3 (one per input: 'x', 'k', 'w')."
    with pytest.raises(ValueError, match=re.escape(message)):
        gradient(lambda x, w: scaled(x, k=3.0, w=w), [X, X], DY)
