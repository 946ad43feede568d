"""Behaviour of decorators that TensorFlow's own tests check in loops, with handles of variables and lists of tensors.

Each test runs with both, as those of custom_gradient/test_tensorflow_behaviour.py.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.upstream import OURS_AND_THEIRS, as_list, vjp


@OURS_AND_THEIRS
def test_a_loop_asks_for_no_gradient_of_what_it_captures_only(api):  # [testSkipsUnnecessaryCaptureGradients]
    @api.custom_gradient
    def trap(t):
        def grad_fn(dy):
            tf.debugging.assert_equal(0, 1, "nobody should ask for this")
            return dy

        return t, grad_fn

    y = tf.constant(1.0)

    def loop(x):
        return tf.while_loop(lambda s: s < 10.0, lambda s: s + 2.0 * x + trap(y), (tf.constant(0.0),))[0]

    (dx,) = tf.function(lambda x: vjp(loop, x))(tf.constant(0.0))
    assert as_list(dx) == 20.0


def accumulated_shapes(graph):
    """The shapes of the elements of the lists that the loops of a graph keep for their gradients."""
    loops = [op for op in graph.get_operations() if op.type in ("While", "StatelessWhile")]
    assert loops
    lists = [op for op in graph.get_operations() if op.type == "EmptyTensorList"]
    return sorted(tf.get_static_value(op.inputs[0]).tolist() for op in lists)


@OURS_AND_THEIRS
@pytest.mark.parametrize("read", [tf.shape, tf.size, tf.rank], ids=["shape", "size", "rank"])
def test_a_loop_keeps_no_tensor_whose_shape_alone_is_read(api, read):  # [testDoNotAccumulateForwardTensors...]
    @api.custom_gradient
    def function(x):
        big = tf.tile(x, [1000])
        return tf.reduce_sum(big), lambda dy: dy * tf.cast(tf.reduce_prod(read(big)), tf.float32) * tf.ones([1])

    def loop(x):
        body = lambda i, total: (i + 1, total + function(tf.reshape(total, [1])))  # noqa: E731
        return tf.while_loop(lambda i, _: i < 3, body, (0, tf.reduce_sum(x)), maximum_iterations=3)[1]

    traced = tf.function(lambda x: vjp(loop, x)).get_concrete_function(tf.TensorSpec([None]))
    assert all(shape == [] for shape in accumulated_shapes(traced.graph))


@OURS_AND_THEIRS
@pytest.mark.parametrize("read", ["TensorListLength", "TensorListElementShape"])
def test_a_loop_keeps_no_list_whose_length_alone_is_read(api, read):  # [...ForTensorListReductionOps]
    def loop(x):
        def body(i, total):
            @api.custom_gradient
            def function(x):
                handle = tf.raw_ops.TensorListReserve(
                    element_shape=tf.constant([4]), num_elements=i + 5, element_dtype=tf.float32
                )

                def grad_fn(dy):
                    if read == "TensorListLength":
                        size = tf.raw_ops.TensorListLength(input_handle=handle)
                    else:
                        shape = tf.raw_ops.TensorListElementShape(input_handle=handle, shape_type=tf.int32)
                        size = tf.reduce_prod(shape)
                    return dy * tf.cast(size, tf.float32)

                return tf.identity(x), grad_fn

            return i + 1, function(total)

        return tf.while_loop(lambda i, _: i < 2, body, (0, x), maximum_iterations=2)[1]

    traced = tf.function(lambda x: vjp(loop, x)).get_concrete_function(tf.TensorSpec([]))
    kept = [op.get_attr("element_dtype") for op in traced.graph.get_operations() if op.type == "EmptyTensorList"]
    assert tf.variant not in kept
    (dx,) = traced(tf.constant(1.0))
    assert as_list(dx) == {"TensorListLength": 30.0, "TensorListElementShape": 16.0}[read]


@OURS_AND_THEIRS
def test_the_shape_of_slices_is_known_to_grad_fn(api):  # resource variables: [testShapePassedToGradient]
    seen = []

    @api.custom_gradient
    def scatter_update(handle, indices, values):
        update = tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=indices, updates=values)
        with tf.control_dependencies([update]):
            updated = tf.identity(handle)

        def grad_fn(dy):
            seen.append((dy.dtype, tf.get_static_value(dy.dense_shape).tolist()))
            return [dy, None, None]

        return updated, grad_fn

    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable(
            "v", [10, 2], tf.float64, tf.compat.v1.zeros_initializer(), use_resource=True
        )
        updates = tf.tile(tf.cast(tf.range(9, -1, -1), tf.float64)[:, None], [1, 2])
        handle = scatter_update(variable.handle, tf.range(10), updates)
        gathered = tf.raw_ops.ResourceGather(resource=handle, indices=[3, 3, 5], dtype=tf.float64)
        assert tf.gradients(gathered, updates) == [None]
        dy = np.array([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
        (slices,) = tf.gradients(gathered, variable.handle, grad_ys=tf.constant(dy))
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            value, found = session.run([gathered, slices])
    assert seen == [(tf.float64, [10, 2])] * 2
    np.testing.assert_array_equal(value, [[6.0, 6.0], [6.0, 6.0], [4.0, 4.0]])
    np.testing.assert_array_equal(found.indices, [3, 3, 5])
    np.testing.assert_array_equal(found.values, dy)


@OURS_AND_THEIRS
@pytest.mark.parametrize("mode", ["eager", "traced", "jit"])
@pytest.mark.parametrize("read", ["gather", "read"])
def test_the_handle_of_a_variable(api, mode, read):
    variable = tf.Variable(np.arange(6.0).reshape(3, 2))
    weights = tf.constant([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]], tf.float64)

    def tripled(dy):
        return tf.IndexedSlices(3.0 * dy.values, dy.indices, dy.dense_shape) if read == "gather" else 3.0 * dy

    same = api.custom_gradient(lambda handle: (tf.identity(handle), tripled))

    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(variable.handle)
            handle = same(variable.handle)
            if read == "gather":
                y = tf.raw_ops.ResourceGather(resource=handle, indices=[0, 2, 2], dtype=tf.float64)
            else:
                y = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float64)
            y = tf.reduce_sum(tf.ensure_shape(y, [3, 2]) * weights)
        return y, tape.gradient(y, variable.handle)

    value, found = {"eager": lambda f: f, "traced": tf.function}.get(
        mode, functools.partial(tf.function, jit_compile=True)
    )(gradient)()
    expected = np.array([[3.0, 6.0], [30.0, 60.0], [300.0, 600.0]])
    if read == "gather":
        assert isinstance(found, tf.IndexedSlices)
        expected = np.array([[3.0, 6.0], [0.0, 0.0], [330.0, 660.0]])
    np.testing.assert_array_equal(tf.convert_to_tensor(found), expected)
    rows = variable.numpy()[[0, 2, 2]] if read == "gather" else variable.numpy()
    assert value.numpy() == np.sum(rows * weights.numpy())


@OURS_AND_THEIRS
@pytest.mark.parametrize("mode", ["eager", "traced", "jit"])
def test_a_list_of_tensors(api, mode):
    """A variant, whose gradient is a variant."""
    same = api.custom_gradient(lambda handle: (tf.identity(handle), lambda dy: dy))

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            handle = tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=tf.constant([2]))
            y = tf.raw_ops.TensorListStack(
                input_handle=same(handle), element_shape=tf.constant([2]), element_dtype=tf.float32
            )
            y = tf.reduce_sum(y * tf.constant([[1.0, 2.0], [10.0, 20.0]]))
        return tape.gradient(y, x)

    run = {"eager": lambda f: f, "traced": tf.function}.get(mode, functools.partial(tf.function, jit_compile=True))
    assert as_list(run(gradient)(tf.ones([2, 2]))) == [[1.0, 2.0], [10.0, 20.0]]


@pytest.mark.parametrize("read", ["gather", "read"])
def test_the_handle_of_a_variable_of_a_loaded_model(read, tmp_path):
    """There the upstream gradient is dense, in the dtype and the shape of the contents."""
    model = tf.Module()
    model.variable = tf.Variable(np.arange(6.0).reshape(3, 2))
    same = cg.custom_gradient(lambda handle: (tf.identity(handle), lambda dy: 3.0 * dy))

    @tf.function(input_signature=[])
    def function():
        handle = same(model.variable.handle)
        if read == "gather":
            y = tf.raw_ops.ResourceGather(resource=handle, indices=[0, 2, 2], dtype=tf.float64)
        else:
            y = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float64)
        return tf.ensure_shape(y, [3, 2])

    model.function = function
    tf.saved_model.save(model, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    dy = np.array([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
    with tf.GradientTape() as tape:
        y = loaded.function()
    found = tape.gradient(y, loaded.variable, output_gradients=tf.constant(dy))
    expected = 3 * dy if read == "read" else [[3.0, 6.0], [0.0, 0.0], [330.0, 660.0]]
    np.testing.assert_array_equal(tf.convert_to_tensor(found), expected)


def test_a_trace_without_a_gradient_of_a_handle():
    """There the rule is traced, and nothing else asks for it."""
    variable = tf.Variable([1.0, 2.0])
    same = cg.custom_gradient(lambda handle: (tf.identity(handle), lambda dy: dy))
    read = tf.function(lambda: tf.raw_ops.ReadVariableOp(resource=same(variable.handle), dtype=tf.float32))
    assert as_list(read()) == [1.0, 2.0]


@OURS_AND_THEIRS
def test_a_handle_of_unknown_contents_takes_any_gradient(api):
    function = api.custom_gradient(lambda x, handle: (2.0 * x, lambda dy: (3.0 * dy, tf.ones([7]))))

    def gradient(x, handle):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x, handle)
        return tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0]))

    run = tf.function(lambda x: gradient(x, tf.raw_ops.StackV2(max_size=1, elem_type=tf.float32)))
    assert as_list(run(tf.ones([2]))) == [3.0, 30.0]


def test_a_gradient_of_a_handle_may_be_of_unknown_shape():
    variable, dy = tf.Variable([1.0, 2.0]), tf.constant([1.0, 10.0])
    same = cg.custom_gradient(lambda handle: (tf.identity(handle), lambda dy: 3.0 * tf.boolean_mask(dy, dy > 0.0)))

    @tf.function
    def gradient(dy):
        with tf.GradientTape() as tape:
            tape.watch(variable.handle)
            y = tf.raw_ops.ReadVariableOp(resource=same(variable.handle), dtype=tf.float32)
        return tape.gradient(y, variable.handle, output_gradients=dy)

    assert as_list(gradient(dy)) == [3.0, 30.0]


def test_a_gradient_of_a_handle_that_does_not_fit_its_contents():
    variable = tf.Variable([1.0, 2.0])
    wrong = cg.custom_gradient(lambda handle: (tf.identity(handle), lambda dy: tf.cast(dy, tf.int32)))
    larger = cg.custom_gradient(lambda handle: (tf.identity(handle), lambda dy: tf.concat([dy, dy], 0)))

    def gradient(function):
        with tf.GradientTape() as tape:
            tape.watch(variable.handle)
            y = tf.raw_ops.ReadVariableOp(resource=function(variable.handle), dtype=tf.float32)
        return tape.gradient(y, variable.handle)

    for run in (gradient, tf.function(gradient)):
        with pytest.raises(TypeError, match="must return a gradient of dtype float32 for 'handle', got int32"):
            run(wrong)
        with pytest.raises(ValueError, match=r"wrong shape for 'handle'; expected \(2,\), got \(4,\)"):
            run(larger)
