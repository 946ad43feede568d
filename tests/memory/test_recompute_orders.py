"""Derivatives of higher order of recomputed functions."""

import gc

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.rewrite import built_functions

from ..support.modes import RUNS as MODES
from ..support.modes import assert_all_close, vjp
from ..support.observed import COUNTS, counted, new_objects_alone, start_counting
from ..support.tensors import pairs

X = tf.constant([0.5, -1.0, 2.0], tf.float64)
Y = tf.constant([1.5, 0.25, -0.5], tf.float64)
V = tf.Variable([2.0, 0.5, -1.0], dtype=tf.float64)


@tf.custom_gradient
def of_tensorflow(x):
    return tf.sin(x), lambda dy: dy * tf.cos(x)


@tf.custom_gradient
def with_a_gradient_of_tensorflow(x):
    return tf.square(x), lambda dy: 2.0 * dy * of_tensorflow(x)


def with_a_random_gradient(x):
    """The gradient is random, with the derivative 0: its own derivative must not draw the numbers again."""

    @cg.custom_gradient
    def function(x):
        return tf.identity(x), lambda dy: dy * (1.0 + 0.0 * tf.random.uniform([], dtype=x.dtype)) * tf.square(x)

    return function(x)


# Functions of two Tensors.
FUNCTIONS = {
    "elementwise": lambda x, y: tf.sin(x * y) * tf.exp(x),
    "variable": lambda x, y: tf.sin(tf.gather(x * y, [2, 0, 2]) * V) * V * y,
    "custom gradient in the gradient": lambda x, y: with_a_gradient_of_tensorflow(x) * y,
    "kept": lambda x, y: cg.checkpoint_name(tf.exp(x * y), "kept") ** 2,
}


def derivatives(function, order, sources):
    """The value and the derivatives up to an order, each of the one before in fixed directions."""

    def run(*sources):
        if order == 0:
            return [function()]
        with tf.GradientTape() as tape:
            tape.watch([source for source in sources if not isinstance(source, tf.Variable)])
            found = derivatives(function, order - 1, sources)
            y = tf.add_n([tf.reduce_sum(tf.cast(tf.range(1, 4), tf.float64) * t) for t in found[-len(sources) :]])
        return [*found, *tape.gradient(y, sources, unconnected_gradients="zero")]

    return run(*sources)


@pytest.mark.parametrize(("name", "mode"), pairs(FUNCTIONS, ["traced", "eager"]))
def test_third_derivatives_are_those_of_the_plain_function(name, mode):
    plain = FUNCTIONS[name]
    function = cg.recompute_grad(plain, keep=["kept"] if name == "kept" else ())
    sources = [X, Y, V] if name == "variable" else [X, Y]
    found = MODES[mode](lambda: derivatives(lambda: function(X, Y), 3, sources))()
    assert_all_close(found, derivatives(lambda: plain(X, Y), 3, sources), rtol=1e-9, atol=1e-9)


def test_the_derivative_with_respect_to_the_upstream_gradient():
    function, dy = cg.recompute_grad(lambda x: tf.sin(x)), tf.identity(Y)
    _, ddy = vjp(lambda: vjp(lambda: function(X), X, dy)[1], dy, X)
    np.testing.assert_allclose(ddy, X * np.cos(X), rtol=1e-12)


def test_a_random_gradient_is_not_drawn_again():
    function = cg.recompute_grad(with_a_random_gradient)
    _, ddx = vjp(lambda: vjp(lambda: function(X), X)[1], X)
    np.testing.assert_allclose(ddx, 2.0 * X, rtol=1e-12)


def test_eager_mode_computes_the_gradients_that_a_tape_can_ask_for():
    @cg.custom_gradient
    def with_counted_gradient(x):
        return tf.sin(x), lambda dy: dy * counted(tf.cos(x))

    function = cg.recompute_grad(lambda x, y: with_counted_gradient(x) * y)
    for sources, count in [([Y], 0), ([X, Y], 1), ([Y], 0), ([X], 1)]:
        start_counting()
        found = derivatives(lambda: function(X, Y), 1, sources)
        assert COUNTS["gx"] == count
        assert_all_close(found, derivatives(lambda: tf.sin(X) * Y, 1, sources), rtol=1e-12)


def test_eager_mode_builds_one_graph_for_each_order():
    def graphs():
        found = [value for value in gc.get_objects() if type(value) is tf_internal.FuncGraph]
        return [graph for graph in found if graph.name != "call"]  # The trace of each call.

    built_functions._table.entries.cache_clear()
    function = cg.recompute_grad(lambda x, y: tf.sin(x * y) * tf.exp(x))
    counts = []
    for order in (1, 1, 2, 2, 3, 3):
        with new_objects_alone():
            derivatives(lambda: function(X, Y), order, [X])
            counts.append(len(graphs()))
    assert counts[1:] == [0, 1, 0, 1, 0]


@pytest.mark.filterwarnings("ignore:.* recomputation saves less than a tenth")
@pytest.mark.parametrize("memory", [None, "auto"])
def test_a_loop_made_of_functions_of_tensorflow_1(memory):
    """The functions of the loops in this loss have no graph, so they cannot be compared with earlier calls."""
    logits = tf.random.stateless_normal([2, 5, 4], [1, 2])

    def loss(x):
        labels = tf.constant([[1, 2], [3, 1]])
        return tf.nn.ctc_loss(labels, x, [2, 2], [5, 5], logits_time_major=False, blank_index=0)

    dy = tf.constant([1.0, 10.0])
    recomputed = cg.recompute_grad(loss, memory=memory)
    assert_all_close(*(vjp(lambda f=f: f(logits), logits, dy) for f in (recomputed, loss)), rtol=1e-6)
    report = cg.testing.audit(loss, [logits])
    assert [row.verdict for row in report.rows] == ["not checked"]
