"""Gradients in the process that traced a graph call `grad_fn` there; other processes run the traced rule."""

import gc
import pathlib
import re
import weakref

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, gradients, tape_vjp
from ..support.processes import run_python
from ..support.tensors import address

X = np.array([0.5, -1.0, 2.0])
DY = np.array([1.0, 10.0, -3.0])


# grad_fn is called for each gradient, in the current graph


def test_grad_fn_is_called_in_the_graph_of_the_gradient():
    """It can depend on the state of the program at that time."""
    graphs = []
    factor = 2.0

    @cg.custom_gradient
    def function(x):
        def grad_fn(dy):
            graphs.append(tf.compat.v1.get_default_graph())
            return factor * dy

        return tf.identity(x), grad_fn

    with tf.Graph().as_default() as graph:
        x = tf.constant([1.0, 2.0])
        y = function(x)
        assert graphs[0] is not graph  # The rule for the file.
        factor = 5.0
        (dx,) = tf.gradients(y, x, grad_ys=tf.constant([1.0, 10.0]))
        tf.gradients(y, x)
        assert graphs[1:] == [graph, graph]
        with tf.compat.v1.Session() as session:
            assert session.run(dx).tolist() == [5.0, 50.0]


def test_collectives_in_a_strategy(tmp_path):
    """In a process of its own, because logical devices are made before TensorFlow starts."""
    program = pathlib.Path(__file__).with_name("collectives.py").read_text()
    result = run_python(program, cwd=tmp_path)
    assert result.stdout.splitlines()[-1] == str([[[3.0, 6.0]] * 2, [[3.0, 30.0]] * 2])


def test_a_live_rule_is_gone_with_its_graph():
    kept = tf.Module()
    gone = weakref.ref(kept)

    def with_kept(kept):
        return cg.custom_gradient(lambda x: (tf.identity(x), lambda dy: dy if kept else None))

    gradients("traced", with_kept(kept), [tf.constant(X)], tf.constant(DY))
    del kept
    gc.collect()
    assert gone() is None


def test_the_capture_of_the_graph_at_hand_is_its_own_again():
    """While grad_fn is called, the graph captures tensors from the forward graph; afterwards it is as before."""
    graphs = []
    outside = tf.constant(DY)

    @cg.custom_gradient
    def function(x):
        def grad_fn(dy):
            graphs.append(tf.compat.v1.get_default_graph())
            return dy * outside + 0.0 * x

        return tf.identity(x), grad_fn

    def nested(x):
        return tf.cond(x[0] > 0, lambda: tf.cond(x[1] < 0, lambda: function(x), lambda: x), lambda: x)

    (dx,) = gradients("traced", nested, [tf.constant(X)], tf.constant(X))
    np.testing.assert_allclose(dx, X * DY)
    assert len(graphs) > 1
    for graph in graphs:
        assert graph.capture.__self__ is graph
        captures = [id(inside) for _, inside in graph.captures]
        assert len(set(captures)) == len(captures)


# The traced rule


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
        np.testing.assert_allclose(tape_vjp(run, [x], tf.constant(DY))[1][0], 6 * DY)
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


@pytest.mark.parametrize("read", ["shape", "zeros_like"])
def test_a_traced_rule_captures_the_shape_and_not_the_tensor(read, tmp_path):
    """So a loop of a loaded model does not keep a tensor either if the rule only reads its shape."""
    captured = []

    @cg.custom_gradient
    def function(x):
        big = tf.tile(x, [1000])

        def grad_fn(dy):
            number = getattr(tf, read)(big)
            return dy + 0.0 * tf.cast(tf.reduce_sum(number), tf.float32)

        return tf.reduce_sum(big, keepdims=True) / 1000.0, grad_fn

    def loop(x):
        def body(i, total):
            total = total + function(total)
            op = total.op.inputs[1].op
            captured.append([t.dtype for t in op.inputs[len(op.outputs) + len(op.get_attr("Tinputs")) :]])
            return i + 1, total

        return tf.while_loop(lambda i, _: i < 3, body, (0, x), (tf.TensorShape([]), tf.TensorShape([None])))[1]

    model = tf.Module()
    model.loop = tf.function(loop, input_signature=[tf.TensorSpec([None])])
    tf.saved_model.save(model, tmp_path)
    assert captured[0]
    assert all(dtype.is_integer for dtype in captured[0])
    loaded = tf.saved_model.load(tmp_path)
    (dx,) = gradients("eager", loaded.loop, [tf.constant([2.0])], None)
    assert dx.numpy().tolist() == [8.0]


# The value


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_results_share_the_buffer_of_y(mode):
    def run(x):
        y = tf.exp(x)
        return y, cg.custom_gradient(lambda x: (y, lambda dy: dy))(x)

    y, result = RUNS[mode](run)(tf.constant(X))
    assert address(result) == address(y)
