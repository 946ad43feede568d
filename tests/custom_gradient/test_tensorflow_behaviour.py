"""Behaviour of tf.custom_gradient that TensorFlow's own tests check: loops, handles of variables, lists of Tensors.

TensorFlow's tests have the names in brackets.
"""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, gradients, tape_vjp, vjp

X, DY = tf.constant([1.0, 2.0, 3.0]), tf.constant([1.0, 10.0, 100.0])


def test_a_loop_asks_for_no_gradient_of_what_it_captures_only():  # [testSkipsUnnecessaryCaptureGradients]
    def grad_fn(dy):
        tf.debugging.assert_equal(0, 1, "this gradient is not needed")
        return dy

    trap, y = cg.custom_gradient(lambda t: (t, grad_fn)), tf.constant(1.0)

    def loop(x):
        return tf.while_loop(lambda s: s < 10.0, lambda s: s + 2.0 * x + trap(y), (tf.constant(0.0),))[0]

    assert gradients("traced", loop, [tf.constant(0.0)], None)[0].numpy() == 20.0


def big(x, i):
    return tf.tile(x, [i + 5])


def list_of_four(x, i):
    return tf.raw_ops.TensorListReserve(element_shape=[4], num_elements=i + 5, element_dtype=tf.float32)


# What step i makes, what the gradient reads of it, and the product of the numbers of both steps.
READS = {
    "shape": (big, lambda t: tf.reduce_prod(tf.shape(t)), 30.0),
    "size": (big, tf.size, 30.0),
    "rank": (big, tf.rank, 1.0),
    "zeros": (big, lambda t: tf.reduce_sum(tf.zeros_like(t) + 1.0), 30.0),
    "length": (list_of_four, lambda t: tf.raw_ops.TensorListLength(input_handle=t), 30.0),
    "element shape": (
        list_of_four,
        lambda t: tf.raw_ops.TensorListElementShape(input_handle=t, shape_type=tf.int32)[0],
        16.0,
    ),
}


@pytest.mark.parametrize("read", READS)  # [testDoNotAccumulateForwardTensors..., ...ForTensorListReductionOps]
def test_a_loop_keeps_nothing_of_which_only_the_shape_is_read(read, tmp_path):
    """Neither does a loop of a loaded model: the traced rule captures the shape, too."""
    make, number_of, expected = READS[read]
    rules = []

    def loop(x):
        def body(i, total):
            @cg.custom_gradient
            def function(x):
                made = make(x, i)
                return tf.identity(x), lambda dy: dy * tf.cast(number_of(made), tf.float32)

            total = function(total)
            rules.append(total.op)
            return i + 1, total

        return tf.while_loop(lambda i, _: i < 2, body, (0, x), maximum_iterations=2)[1]

    traced = tf.function(lambda x: tape_vjp(loop, [x], None)[1]).get_concrete_function(tf.TensorSpec([1]))
    ops = traced.graph.get_operations()
    assert any(op.type in ("While", "StatelessWhile") for op in ops)
    # For tf.zeros_like, TensorFlow keeps the tensor in this process.
    lists = [op for op in ops if op.type == "EmptyTensorList" and read != "zeros"]
    assert all(op.get_attr("element_dtype").is_integer and tf.get_static_value(op.inputs[0]).size < 2 for op in lists)
    assert all(t.dtype.is_integer for t in rules[0].inputs[len(rules[0].outputs) + len(rules[0].get_attr("Tinputs")) :])
    model = tf.Module()
    model.loop = tf.function(loop, input_signature=[tf.TensorSpec([1])])
    tf.saved_model.save(model, tmp_path)
    for dx in (traced(tf.ones([1])), gradients("eager", tf.saved_model.load(tmp_path).loop, [tf.ones([1])], None)):
        assert dx[0].numpy().tolist() == [expected]


# Handles of variables, and lists of Tensors

DY_OF_ROWS = np.array([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
TRIPLED = {"read": 3.0 * DY_OF_ROWS, "gather": [[3.0, 6.0], [0.0, 0.0], [330.0, 660.0]]}


def rows_of(handle, read):
    """All rows of a variable in [3, 2], or the first one and twice the last one."""
    if read == "gather":
        y = tf.raw_ops.ResourceGather(resource=handle, indices=[0, 2, 2], dtype=tf.float64)
    else:
        y = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float64)
    return tf.ensure_shape(y, [3, 2])


def with_rule(rule):
    return cg.custom_gradient(lambda handle: (tf.identity(handle), rule))


def gradient_by_handle(function, variable, read="read", dy=None):
    return vjp(lambda: rows_of(function(variable.handle), read), variable.handle, dy)[1]


@pytest.mark.parametrize("mode", [*RUNS, "loaded"])
@pytest.mark.parametrize("read", TRIPLED)
def test_the_handle_of_a_variable(mode, read, tmp_path):
    """In a loaded model the upstream gradient is dense, in the dtype and the shape of the contents."""
    model = tf.Module()
    model.variable = tf.Variable(np.arange(6.0).reshape(3, 2))

    def tripled(dy):
        is_sliced = isinstance(dy, tf.IndexedSlices)
        return tf.IndexedSlices(3.0 * dy.values, dy.indices, dy.dense_shape) if is_sliced else 3.0 * dy

    dy, same = tf.constant(DY_OF_ROWS), with_rule(tripled)
    if mode == "loaded":
        model.function = tf.function(lambda: rows_of(same(model.variable.handle), read), input_signature=[])
        tf.saved_model.save(model, tmp_path)
        model = tf.saved_model.load(tmp_path)
        found = vjp(model.function, model.variable, dy)[1]
    else:
        found = RUNS[mode](lambda: gradient_by_handle(same, model.variable, read, dy))()
        assert isinstance(found, tf.IndexedSlices) == (read == "gather")
    np.testing.assert_array_equal(tf.convert_to_tensor(found), TRIPLED[read])


@pytest.mark.parametrize("mode", RUNS)
def test_a_list_of_tensors(mode):
    """A variant, whose gradient is a variant."""

    def through_a_list(x):
        handle = with_rule(lambda dy: dy)(tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=tf.constant([2])))
        return tf.raw_ops.TensorListStack(input_handle=handle, element_shape=tf.constant([2]), element_dtype=tf.float32)

    dy = tf.constant([[1.0, 2.0], [10.0, 20.0]])
    np.testing.assert_array_equal(gradients(mode, through_a_list, [tf.ones([2, 2])], dy), [dy])


def test_a_handle_of_unknown_contents_takes_any_gradient():
    function = cg.custom_gradient(lambda x, handle: (2.0 * x, lambda dy: (3.0 * dy, tf.ones([7]))))

    def call(x):
        return function(x, tf.raw_ops.StackV2(max_size=1, elem_type=tf.float32))

    np.testing.assert_array_equal(gradients("traced", call, [X], DY), [3.0 * DY])


def test_gradients_of_a_handle_have_the_dtype_and_the_shape_of_its_contents():
    variable = tf.Variable(np.ones([3, 2]))
    unknown = with_rule(lambda dy: 3.0 * tf.reshape(tf.boolean_mask(dy, dy > 0.0), [-1, 2]))
    dy = tf.constant(DY_OF_ROWS)
    np.testing.assert_array_equal(tf.function(gradient_by_handle)(unknown, variable, "read", dy), TRIPLED["read"])
    for run in (gradient_by_handle, tf.function(gradient_by_handle)):
        with pytest.raises(TypeError, match="must return a gradient of dtype float64 for 'handle', got int32"):
            run(with_rule(lambda dy: tf.cast(dy, tf.int32)), variable)
        with pytest.raises(ValueError, match=r"wrong shape for 'handle'; expected \(3, 2\), got \(6, 2\)"):
            run(with_rule(lambda dy: tf.concat([dy, dy], 0)), variable)
