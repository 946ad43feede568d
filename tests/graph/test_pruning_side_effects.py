"""Pruning keeps side effects, their order, and names."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.core import library

from ..support.observed import COUNTS, ORDER, OURS, bits, counted, ops_of, ops_that_ran, start_counting

tf1 = tf.compat.v1
X = np.array([0.5, -1.0, 2.0])


def effect(x, name="effect"):
    return counted(x, name, stateful=True)


def embedded(x):
    return cg.embed_gradient(fx=tf.sin(x), gx=counted(tf.cos(x)), x=x)


def run(fetch, config=None):
    """Runs the fetch, a function of a placeholder, in a session. Returns its value and the ops that ran."""
    with tf1.Graph().as_default(), tf1.Session(config=config) as session:
        x = tf1.placeholder(tf.float64, [3])
        fetches = fetch(x)
        session.run(tf1.global_variables_initializer())
        run_metadata = tf1.RunMetadata()
        start_counting()
        value = session.run(fetches, {x: X}, tf1.RunOptions(output_partition_graphs=True), run_metadata)
        return value, set(ops_of(run_metadata))


def behind_gx(x):
    return cg.embed_gradient(fx=tf.sin(x), gx=counted(effect(x)), x=x)


def before_gx(x):
    slope = effect(x)
    with tf1.control_dependencies([slope]):
        return cg.embed_gradient(fx=tf.sin(x), gx=counted(tf.cos(x)), x=x)


def before_the_op(x):
    fx, gx = tf.sin(x), counted(tf.cos(x))
    with tf1.control_dependencies([effect(x)]):
        return library.custom_gradient_embed(fx, [gx], [x])


def in_a_branch_behind_gx(x):
    slope = tf.cond(x[0] > 0, lambda: effect(x), lambda: x)
    return cg.embed_gradient(fx=tf.sin(x), gx=slope, x=x)


def behind_a_rule(x):
    slope = effect(x)
    return cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: dy * slope))(x)


EFFECTS = [behind_gx, before_gx, before_the_op, in_a_branch_behind_gx, behind_a_rule]


@pytest.mark.parametrize("function", EFFECTS)
def test_effects_before_a_value_come_before_what_reads_it(function, control_flow):
    """In a session, data and control dependencies alone decide what runs, and in which order. In a function, all runs."""

    def read(x):
        return effect(function(x), "reader")

    def wait(x):
        with tf1.control_dependencies([function(x)]):
            return effect(x, "reader")

    for fetch in (read, wait):
        _, ops = run(fetch)
        assert ORDER == ["effect", "reader"]
        # The op stays if the effect is in a branch. TensorFlow drops it if its output is not read.
        assert bool(OURS & ops) == (fetch is read and function is in_a_branch_behind_gx)
    run(function)
    assert ORDER == ["effect"]
    start_counting()
    value = tf.function(function)(tf.constant(X))
    assert ORDER == ["effect"]
    np.testing.assert_allclose(value, np.sin(X), rtol=1e-15)


def test_an_effect_that_comes_before_the_value_anyway_costs_no_op(tmp_path):
    _, ops = ops_that_ran(tmp_path, lambda x: embedded(x + tf.random.normal([3], dtype=tf.float64)), tf.constant(X))
    assert "RandomStandardNormal" in ops
    assert not (OURS | {"PyFuncStateless", "Cos", "Identity", "IdentityN"}) & set(ops)


def test_a_variable_is_read_before_it_is_assigned():
    variable = tf.Variable(X)

    @tf.function
    def function():
        h = cg.embed_gradient(fx=variable.read_value(), gx=counted(variable * 2.0), x=tf.constant(X))
        variable.assign_add(X)
        return h, variable * cg.embed_gradient(fx=variable.read_value(), gx=counted(variable * 2.0), x=tf.constant(X))

    start_counting()
    before, after = function()
    assert not COUNTS
    np.testing.assert_array_equal(before, X)
    np.testing.assert_array_equal(after, (2 * X) ** 2)


def test_a_reference_is_read_before_it_is_assigned():
    """An op that reads a TensorFlow 1 variable directly could see the later value."""

    def fetch(x):
        variable = tf1.Variable(X, use_resource=False)
        # Passes the reference itself, not a read of it.
        h = library.custom_gradient_embed(variable.op.outputs[0], [counted(x)], [x])
        with tf1.control_dependencies([h]):
            assigned = tf1.assign_add(variable, X)
        with tf1.control_dependencies([assigned]):
            return assigned, h, tf.identity(h)

    for is_placed_when_pruned in (False, True):  # A graph that was placed after pruning is not pruned again.
        config = tf1.ConfigProto()
        config.graph_options.place_pruned_graph = is_placed_when_pruned
        (assigned, *values), ops = run(fetch, config)
        assert COUNTS["gx"] == is_placed_when_pruned
        assert not OURS & ops
        np.testing.assert_array_equal(assigned, 2 * X)
        assert bits(values[0]) == bits(values[1])


def test_names_in_a_session_may_be_fed_and_fetched():
    with tf1.Graph().as_default() as graph, tf1.Session() as session:
        x, gx = tf1.placeholder(tf.float64, [3], "x"), tf1.placeholder(tf.float64, [3], "gx")
        h = cg.embed_gradient(fx=tf.sin(x), gx=gx, x=x)
        tf.identity(h * 2.0, "z")
        assert h.op.type == "CustomGradientEmbed"
        # gx is a placeholder without a value, so no op can need it.
        np.testing.assert_array_equal(session.run("z:0", {"x:0": X}), 2 * np.sin(X))
        np.testing.assert_array_equal(session.run("z:0", {h.name: X}), 2 * X)
        np.testing.assert_array_equal(session.run(["z:0", "gx:0"], {"x:0": X, "gx:0": X})[1], X)
        assert session.run(h.op, {"x:0": X}) is None
        handle = session.partial_run_setup([h.name, "z:0"], ["x:0"])
        np.testing.assert_array_equal(session.partial_run(handle, h.name, {"x:0": X}), np.sin(X))
        np.testing.assert_array_equal(session.partial_run(handle, "z:0"), 2 * np.sin(X))
        # The session's graph has not changed, and can grow.
        dx = tf.gradients(graph.get_tensor_by_name("z:0"), x)
        np.testing.assert_array_equal(session.run(dx, {x: X, gx: X})[0], 2 * X)


@pytest.mark.parametrize("name", ["PyFuncStateless", "CustomGradientEmbed"])
def test_control_outputs_of_a_function_stay(name):
    """The author of the function wants them to run."""
    traced = tf.function(embedded, experimental_attributes={"_noinline": True})
    with tf.Graph().as_default():
        traced(tf1.placeholder(tf.float64, [3]))
        graph_def = tf1.get_default_graph().as_graph_def()
    [function] = graph_def.library.function
    function.signature.control_output.append("wanted")
    function.control_ret["wanted"] = name
    with tf1.Graph().as_default(), tf1.Session() as session:
        tf1.import_graph_def(graph_def, name="")
        start_counting()
        np.testing.assert_allclose(session.run("PartitionedCall:0", {"Placeholder:0": X}), np.sin(X), rtol=1e-15)
        assert COUNTS["gx"] == (1 if name == "PyFuncStateless" else 0)


@pytest.mark.parametrize("control_flow", [False], indirect=True)
def test_a_loop_of_tensorflow_1_that_hands_on_a_constant_ends(control_flow):
    """The op stays in a loop whose value reads nothing that changes, because otherwise the loop would run for ever."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float64, [3])
        body = lambda i, v: (i + 1, cg.embed_gradient(x, v * 2.0, v))  # noqa: E731
        loop = tf1.while_loop(lambda i, v: i < 3, body, [0, x])
        count, value = session.run(loop, {x: X}, tf1.RunOptions(timeout_in_ms=60_000))
    assert count == 3
    np.testing.assert_array_equal(value, X)


# What is merged with other numbers where a Switch lets x pass, and what it is.
GATES = {
    "gx": (lambda x, passed: library.custom_gradient_embed(tf.sin(x), [passed * 2.0], [x]), np.sin),
    "another result": (
        lambda x, passed: cg.custom_gradient(lambda x, z: ((x * 1.0, z * 2.0), lambda dx, dz: (dx, dz)))(passed, x)[1],
        lambda x: 2.0 * x,
    ),
}


@pytest.mark.parametrize("name", GATES)
def test_a_value_behind_a_gate_stays_behind_it(name):
    """A Merge takes the input that arrives. If gx, or another result, does not arrive, the value must not, either."""
    function, by_hand = GATES[name]
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float64, [3])
        switch = tf.raw_ops.Switch(data=x, pred=x[0] > 0.0)
        merged = tf.raw_ops.Merge(inputs=[function(x, switch.output_true), switch.output_false * 10.0]).output
        for _ in range(20):
            np.testing.assert_allclose(session.run(merged, {x: X}), by_hand(X), rtol=1e-15)
            np.testing.assert_array_equal(session.run(merged, {x: -X}), -10.0 * X)


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
    """Returns x late, through an operation without side effects."""
    late = tf.numpy_function(lambda x: (threading.Event().wait(0.2), x)[1], [x], x.dtype, stateful=False)
    return tf.ensure_shape(late, x.shape)


@every_function
def test_an_assignment_that_waits_for_the_value_comes_after_what_it_waited_for(function):
    """Another op that reads the variable would see the later value."""
    config = tf1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True  # The optimizer would remove the late operation.
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
    """Its Switches have different predicates. If both block, another value must arrive."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float64, [3])
        first, second = (tf.raw_ops.Switch(data=x, pred=tf.reduce_sum(x) > bound) for bound in (9.0, 8.0))
        if both:  # The branches of one predicate. One of them runs.
            second = tf.raw_ops.Switch(data=x, pred=first.output_true.op.inputs[1])
            slope = tf.raw_ops.Merge(inputs=[first.output_true, second.output_false]).output
        else:
            slope = tf.raw_ops.Merge(inputs=[first.output_true, second.output_true]).output
        h = by_embed_gradient(x, slope)
        other = tf.raw_ops.Merge(inputs=[h, counted(3.0 * first.output_false)])
        value = session.run(h if both else other.output, {x: X})
        np.testing.assert_allclose(value, np.sin(X) if both else 3 * X, rtol=1e-15)


def test_pruning_is_independent_of_the_length_of_a_chain():
    """Everything comes after one effect, as after a TensorFlow 1 pipeline."""
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
