"""What the package needs from TensorFlow's private names, if no test of a public function shows it."""

import gc

import numpy as np
import pytest
import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.custom_gradient import captures

from ..support.tensors import address


def test_a_tensor_with_the_same_buffer_is_on_no_tape_and_recording_goes_on():
    x = tf.random.uniform([1000])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        unseen = tf_internal.same_buffer(x)
        seen = 2.0 * unseen + x
    assert unseen is not x
    assert address(unseen) == address(x)
    assert unseen.device == x.device
    assert tape.gradient(seen, unseen) is None
    np.testing.assert_array_equal(tape.gradient(seen, x), np.ones(1000))


def test_the_graph_of_a_rule_captures_the_shape_of_an_outer_tensor_and_nothing_of_its_own():
    large = tf.range(200.0)  # TensorFlow captures small constants by their values.

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def run(x):
        graph = captures.RuleGraph("rule")
        with graph.as_default():
            zeros_of_outer = tf.zeros_like(x)
            own = tf.compat.v1.placeholder(tf.float32, [None])
            shape, zeros = tf.raw_ops.Shape(input=own), tf.raw_ops.ZerosLike(x=own)
            of_eager = tf.raw_ops.Shape(input=large)
        captured = [outer for outer, _ in graph.captures]
        assert [tensor.op.type for tensor in captured if tensor is not large] == ["Shape"]
        assert captured[0].op.inputs[0] is x
        assert captured[-1] is large
        assert {tensor.graph for tensor in (zeros_of_outer, shape, zeros, of_eager)} == {graph}
        assert shape.op.inputs[0] is own
        assert zeros.op.inputs[0] is own
        return x

    run.get_concrete_function()


def test_recording_and_watching_are_seen_as_tapes_do_them():
    x, other = tf.constant(1.0), tf.constant(1.0)
    assert not tf_internal.could_possibly_record()
    with tf.GradientTape() as tape:
        tape.watch(x)
        assert tf_internal.could_possibly_record()
        assert tf_internal.possible_gradient_types([x])
        assert not tf_internal.possible_gradient_types([other])
        with tape.stop_recording():
            assert not tf_internal.could_possibly_record()
        with tf_internal.stop_recording():
            assert not tf_internal.could_possibly_record()
    with tf.autodiff.ForwardAccumulator(x, tf.constant(1.0)):
        assert tf_internal.could_possibly_record()
        assert tf_internal.possible_gradient_types([x])
        assert not tf_internal.possible_gradient_types([other])


def test_control_dependencies_of_a_part_of_a_graph_leave_those_of_the_graph():
    with tf.Graph().as_default() as graph:
        before = graph._add_control_dependencies, graph.experimental_acd_manager
        with tf_internal.control_dependencies_added(graph) as order:
            assert graph._add_control_dependencies
            assert graph.experimental_acd_manager is order
        assert (graph._add_control_dependencies, graph.experimental_acd_manager) == before


def test_which_ops_are_ordered_and_which_only_read():
    with tf.Graph().as_default():
        variable = tf.Variable(0.0, use_resource=True)
        read, constant, printed = (
            tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32).op,
            tf.constant(0.0).op,
            tf.print(1),
        )
        written = tf.raw_ops.AssignVariableOp(resource=variable.handle, value=1.0)
        drawn = tf.raw_ops.RandomUniform(shape=[1], dtype=tf.float32).op
        every = [read, written, printed, drawn, constant]
        assert [tf_internal.is_ordered(op) for op in every] == [True, True, True, False, False]
        assert [tf_internal.is_read(op) for op in every] == [True, False, False, False, False]
        tf_internal.wait_for(printed, [constant])
        assert printed.control_inputs == [constant]


def test_python_functions_are_found_by_the_name_that_they_got():
    with tf.Graph().as_default() as graph:
        tf_internal.add_python_function(graph, "a name", lambda x: 2 * x)
        (doubled,) = tf.raw_ops.PyFunc(input=[tf.constant(21.0)], token="a name", Tout=[tf.float32])
        with tf.compat.v1.Session() as session:
            assert session.run(doubled) == 42.0
    assert tf_internal.python_function(b"a name")(3) == 6
    del graph, doubled, session
    gc.collect()
    assert tf_internal.python_function(b"a name") is None


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_accesses_of_variables_are_noted_also_those_of_inner_calls_and_branches(traced):
    frozen, branched, called, v = (tf.Variable(1.0, trainable=trainable) for trainable in (False, False, False, True))
    inner = tf.function(lambda: called + 1.0)

    def run():
        noted, outside = [], []
        with tf_internal.variable_accesses(outside):
            with tf_internal.variable_accesses(noted):
                frozen + v + inner() + tf.cond(v > 0.0, lambda: branched + 0.0, lambda: 0.0)
            with tf_internal.variable_accesses([]):
                pass
        found = {id(variable) for variable in noted}
        assert found == {id(frozen), id(branched), id(called), id(v)}
        assert found == {id(variable) for variable in outside}
        assert traced or not hasattr(tf.compat.v1.get_default_graph(), "watch_variable")
        assert sorted([v, frozen], key=tf_internal.creation_order)[0] is frozen
        return tf.constant(0.0)

    (tf.function(run, autograph=False) if traced else run)()


@tf.custom_gradient
def two_results(x, y):
    def grad_fn(dx, dy):
        return dx, dy

    return (x + y, x * y), grad_fn


def test_the_name_and_the_results_of_a_custom_gradient_of_tensorflow_are_found():
    with tf.Graph().as_default():
        (op,) = {tensor.op for tensor in two_results(tf.constant(1.0), tf.constant(2.0))}
        assert tf_internal.name_of_python_gradient(op) == "two_results"
        assert tf_internal.num_results_of_python_gradient(op) == 2


def test_an_op_of_a_loaded_model_has_no_such_variables(tmp_path):
    model = tf.Module()
    model.run = tf.function(lambda x: two_results(x, x), input_signature=[tf.TensorSpec([])])
    tf.saved_model.save(model, tmp_path, options=tf.saved_model.SaveOptions(experimental_custom_gradients=True))
    graph = tf.saved_model.load(tmp_path).run.get_concrete_function().graph
    (name,) = [op.get_attr("f").name for op in graph.get_operations() if "PartitionedCall" in op.type]
    operations = tf_internal.find_function(graph, name).graph.get_operations()
    (op,) = [op for op in operations if tf_internal.has_python_gradient(op)]
    assert tf_internal.find_gradient_function(op) is not None
    assert tf_internal.name_of_python_gradient(op) == ""
    assert tf_internal.num_results_of_python_gradient(op) is None
