"""Pruning keeps the order of effects that only gx waited for: assignments, reads, and very many of them."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.observed import COUNTS, OURS, counted, ops_of, ops_that_ran, start_counting

tf1 = tf.compat.v1
X = np.array([0.5, -1.0, 2.0])


def by_embed_gradient(x, slope):
    return cg.embed_gradient(fx=tf.sin(x), gx=2.0 * slope, x=x)


def by_custom_gradient(x, slope):
    return cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: dy * slope))(x)


every_function = pytest.mark.parametrize("function", [by_embed_gradient, by_custom_gradient])


@every_function
def test_an_assignment_to_a_reference_stays(function):
    """These operations are not declared to be stateful."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float64, [3])
        variable = tf1.Variable(X, use_resource=False)
        h = function(x, tf1.assign_add(variable, X))
        with tf1.control_dependencies([h]):
            after = variable.read_value()
        session.run(tf1.global_variables_initializer())
        np.testing.assert_allclose(session.run(h, {x: X}), np.sin(X), rtol=1e-15)
        np.testing.assert_array_equal(session.run(variable), 2 * X)
        np.testing.assert_array_equal(session.run(after, {x: X}), 3 * X)


def wait(x):
    """x, late, through an operation without side effects."""
    late = tf.numpy_function(lambda x: (threading.Event().wait(0.2), x)[1], [x], x.dtype, stateful=False)
    return tf.ensure_shape(late, x.shape)


@every_function
def test_an_assignment_that_waits_for_the_value_comes_after_what_it_waited_for(function):
    """Another reader of the variable would see the later value."""
    config = tf1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True  # It takes what is late away.
    with tf1.Graph().as_default(), tf1.Session(config=config) as session:
        x = tf1.placeholder(tf.float64, [3])
        variable = tf1.Variable(X, use_resource=True)
        with tf1.control_dependencies([wait(x)]):
            read = variable.read_value()
        h = function(x, counted(read))
        with tf1.control_dependencies([h]):
            assigned = variable.assign_add(X)
        session.run(tf1.global_variables_initializer())
        start_counting()
        before, after = session.run([read, assigned], {x: X})
        assert not COUNTS
        np.testing.assert_array_equal(before, X)
        np.testing.assert_array_equal(after, 2 * X)


@pytest.mark.parametrize("both", [False, True])
def test_a_value_stays_behind_a_merge_that_may_get_nothing(both):
    """Its Switches have predicates of their own, and both may be shut; then another value has to arrive."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float64, [3])
        first, second = (tf.raw_ops.Switch(data=x, pred=tf.reduce_sum(x) > bound) for bound in (9.0, 8.0))
        if both:  # The branches of one predicate: one of them runs.
            second = tf.raw_ops.Switch(data=x, pred=first.output_true.op.inputs[1])
            slope = tf.raw_ops.Merge(inputs=[first.output_true, second.output_false]).output
        else:
            slope = tf.raw_ops.Merge(inputs=[first.output_true, second.output_true]).output
        h = by_embed_gradient(x, slope)
        other = tf.raw_ops.Merge(inputs=[h, counted(3.0 * first.output_false)])
        value = session.run(h if both else other.output, {x: X})
        np.testing.assert_allclose(value, np.sin(X) if both else 3 * X, rtol=1e-15)


def test_each_of_many_gradients_after_many_effects(tmp_path):
    """Each value would wait for each effect: there are too many to make them all wait, and then ops stay."""

    def function(x):
        slope = tf.add_n([tf.random.uniform([3], dtype=tf.float64) for _ in range(500)])
        return tf.add_n([cg.embed_gradient(fx=x * i, gx=slope * i, x=x) for i in range(500)])

    ops = ops_that_ran(tmp_path, function, tf.constant(X))
    assert ops["RandomUniform"] == 500
    assert 0 < ops["CustomGradientEmbed"] < 450


def test_pruning_is_independent_of_the_length_of_a_chain():
    """All of it comes after one effect, as after a pipeline of TensorFlow 1."""
    with tf1.Graph().as_default() as graph:
        start = tf.random.uniform([3], dtype=tf.float64)
        cg.embed_gradient(fx=start, gx=start, x=start, name="op_0")
    graph_def = graph.as_graph_def()
    [op] = [node for node in graph_def.node if node.op == "CustomGradientEmbed"]
    for i in range(1, 10_000):
        added = graph_def.node.add()
        added.CopyFrom(op)
        added.name, added.input[:] = f"op_{i}", [f"op_{i - 1}"] * 3
    with tf1.Graph().as_default(), tf1.Session() as session:
        tf1.import_graph_def(graph_def, name="")
        run_metadata = tf1.RunMetadata()
        session.run("op_9999:0", None, tf1.RunOptions(output_partition_graphs=True), run_metadata)
    assert not OURS & set(ops_of(run_metadata))
