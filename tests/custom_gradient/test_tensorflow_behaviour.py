"""Behaviour of TensorFlow's decorators that its own tests check, run with both decorators.

TensorFlow's tests have the names in brackets.
"""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, run_in_a_fresh_process

OURS_AND_THEIRS = pytest.mark.parametrize("api", [cg, tf], ids=["ours", "tensorflow"])

X, DY = tf.constant([1.0, 2.0, 3.0]), tf.constant([1.0, 10.0, 100.0])


def vjp(function, *args, dy=None):
    with tf.GradientTape() as tape:
        tape.watch(args)
        y = function(*args)
    return tape.gradient(y, args, output_gradients=dy)


def as_list(tensor):
    return tf.convert_to_tensor(tensor).numpy().tolist()


# Loops


@OURS_AND_THEIRS
def test_a_loop_asks_for_no_gradient_of_what_it_captures_only(api):  # [testSkipsUnnecessaryCaptureGradients]
    @api.custom_gradient
    def trap(t):
        def grad_fn(dy):
            tf.debugging.assert_equal(0, 1, "this gradient is not needed")
            return dy

        return t, grad_fn

    y = tf.constant(1.0)

    def loop(x):
        return tf.while_loop(lambda s: s < 10.0, lambda s: s + 2.0 * x + trap(y), (tf.constant(0.0),))[0]

    (dx,) = tf.function(lambda x: vjp(loop, x))(tf.constant(0.0))
    assert as_list(dx) == 20.0


def big(x, i):
    return tf.tile(x, [i + 5])


def list_of_four(x, i):
    return tf.raw_ops.TensorListReserve(element_shape=[4], num_elements=i + 5, element_dtype=tf.float32)


# What step i makes, what the gradient reads of it, and the product of the numbers of both steps.
READS = {
    "shape": (big, lambda t: tf.reduce_prod(tf.shape(t)), 30.0),
    "size": (big, tf.size, 30.0),
    "rank": (big, tf.rank, 1.0),
    "length": (list_of_four, lambda t: tf.raw_ops.TensorListLength(input_handle=t), 30.0),
    "element shape": (
        list_of_four,
        lambda t: tf.raw_ops.TensorListElementShape(input_handle=t, shape_type=tf.int32)[0],
        16.0,
    ),
}


@OURS_AND_THEIRS
@pytest.mark.parametrize("read", READS)  # [testDoNotAccumulateForwardTensors..., ...ForTensorListReductionOps]
def test_a_loop_keeps_nothing_of_which_only_the_shape_is_read(api, read):
    make, number_of, expected = READS[read]

    def loop(x):
        def body(i, total):
            @api.custom_gradient
            def function(x):
                made = make(x, i)
                return tf.identity(x), lambda dy: dy * tf.cast(number_of(made), tf.float32)

            return i + 1, function(total)

        return tf.while_loop(lambda i, _: i < 2, body, (0, x), maximum_iterations=2)[1]

    traced = tf.function(lambda x: vjp(loop, x)).get_concrete_function(tf.TensorSpec([1]))
    ops = traced.graph.get_operations()
    assert any(op.type in ("While", "StatelessWhile") for op in ops)
    lists = [op for op in ops if op.type == "EmptyTensorList"]
    assert all(op.get_attr("element_dtype").is_integer and tf.get_static_value(op.inputs[0]).size < 2 for op in lists)
    (dx,) = traced(tf.constant([1.0]))
    assert as_list(dx) == [expected]


# Handles of variables, and lists of tensors


DY_OF_ROWS = np.array([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
TRIPLED = {"read": 3.0 * DY_OF_ROWS, "gather": [[3.0, 6.0], [0.0, 0.0], [330.0, 660.0]]}


def rows_of(handle, read):
    """All rows of a variable in [3, 2], or the first one and twice the last one."""
    if read == "gather":
        y = tf.raw_ops.ResourceGather(resource=handle, indices=[0, 2, 2], dtype=tf.float64)
    else:
        y = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float64)
    return tf.ensure_shape(y, [3, 2])


def gradient_by_handle(function, variable, read, dy=None):
    with tf.GradientTape() as tape:
        tape.watch(variable.handle)
        y = rows_of(function(variable.handle), read)
    return tape.gradient(y, variable.handle, output_gradients=dy)


@pytest.mark.parametrize(
    ("api", "run"),
    [(cg, "eager"), (cg, "traced"), (cg, "jit"), (tf, "traced")],
    ids=lambda p: getattr(p, "__name__", p),
)
@pytest.mark.parametrize("read", TRIPLED)
def test_the_handle_of_a_variable(api, run, read):
    variable = tf.Variable(np.arange(6.0).reshape(3, 2))

    def tripled(dy):
        return tf.IndexedSlices(3.0 * dy.values, dy.indices, dy.dense_shape) if read == "gather" else 3.0 * dy

    same = api.custom_gradient(lambda handle: (tf.identity(handle), tripled))
    found = RUNS[run](lambda: gradient_by_handle(same, variable, read, tf.constant(DY_OF_ROWS)))()
    assert isinstance(found, tf.IndexedSlices) == (read == "gather")
    np.testing.assert_array_equal(tf.convert_to_tensor(found), TRIPLED[read])


@OURS_AND_THEIRS
@pytest.mark.parametrize("run", RUNS)
def test_a_list_of_tensors(api, run):
    """A variant, whose gradient is a variant."""
    same = api.custom_gradient(lambda handle: (tf.identity(handle), lambda dy: dy))

    def through_a_list(x):
        handle = tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=tf.constant([2]))
        return tf.raw_ops.TensorListStack(
            input_handle=same(handle), element_shape=tf.constant([2]), element_dtype=tf.float32
        )

    dy = tf.constant([[1.0, 2.0], [10.0, 20.0]])
    (dx,) = RUNS[run](lambda x: vjp(through_a_list, x, dy=dy))(tf.ones([2, 2]))
    assert as_list(dx) == as_list(dy)


@pytest.mark.parametrize("read", TRIPLED)
def test_the_handle_of_a_variable_of_a_loaded_model(read, tmp_path):
    """There the upstream gradient is dense, in the dtype and the shape of the contents."""
    model = tf.Module()
    model.variable = tf.Variable(np.arange(6.0).reshape(3, 2))
    same = cg.custom_gradient(lambda handle: (tf.identity(handle), lambda dy: 3.0 * dy))
    model.function = tf.function(lambda: rows_of(same(model.variable.handle), read), input_signature=[])
    tf.saved_model.save(model, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    with tf.GradientTape() as tape:
        y = loaded.function()
    found = tape.gradient(y, loaded.variable, output_gradients=tf.constant(DY_OF_ROWS))
    np.testing.assert_array_equal(tf.convert_to_tensor(found), TRIPLED[read])


@OURS_AND_THEIRS
def test_a_handle_of_unknown_contents_takes_any_gradient(api):
    function = api.custom_gradient(lambda x, handle: (2.0 * x, lambda dy: (3.0 * dy, tf.ones([7]))))

    @tf.function
    def run(x):
        stack = tf.raw_ops.StackV2(max_size=1, elem_type=tf.float32)
        return vjp(lambda x: function(x, stack), x, dy=DY)[0]

    assert as_list(run(X)) == [3.0, 30.0, 300.0]


def test_gradients_of_a_handle_have_the_dtype_and_the_shape_of_its_contents():
    variable = tf.Variable(np.ones([3, 2]))

    def with_rule(rule):
        return cg.custom_gradient(lambda handle: (tf.identity(handle), rule))

    unknown = with_rule(lambda dy: 3.0 * tf.reshape(tf.boolean_mask(dy, dy > 0.0), [-1, 2]))
    dy = tf.constant(DY_OF_ROWS)
    np.testing.assert_array_equal(tf.function(gradient_by_handle)(unknown, variable, "read", dy), TRIPLED["read"])
    for run in (gradient_by_handle, tf.function(gradient_by_handle)):
        with pytest.raises(TypeError, match="must return a gradient of dtype float64 for 'handle', got int32"):
            run(with_rule(lambda dy: tf.cast(dy, tf.int32)), variable, "read")
        with pytest.raises(ValueError, match=r"wrong shape for 'handle'; expected \(3, 2\), got \(6, 2\)"):
            run(with_rule(lambda dy: tf.concat([dy, dy], 0)), variable, "read")


@OURS_AND_THEIRS
def test_a_loaded_model_fails_in_tensorflow_only_if_the_gradient_function_reads_a_tensor_from_inside(api, tmp_path):
    model = tf.Module()

    def add(name, f):
        def loop(x):
            return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, f(x)), [0, x])[1]

        def cond(x):
            return tf.cond(x[0] > 0.0, lambda: f(x), lambda: x)

        for kind, function in (("loop", loop), ("cond", cond)):
            setattr(model, f"{name}_{kind}", tf.function(function, input_signature=[tf.TensorSpec([3])]))

    add("x", api.custom_gradient(lambda x: (x**2, lambda dy: 20.0 * dy * x)))
    add("nothing", api.custom_gradient(lambda x: (tf.identity(x), lambda dy: 5.0 * dy)))
    right = {
        "x_loop": as_list(400.0 * X**3 * DY),
        "x_cond": as_list(20.0 * X * DY),
        "nothing_loop": as_list(25.0 * DY),
        "nothing_cond": as_list(5.0 * DY),
    }
    found = run_in_a_fresh_process(model, {name: ([X.numpy()], DY.numpy()) for name in right}, tmp_path)
    found = {
        name: each.partition(":")[0] if isinstance(each, str) else each[1][0].tolist() for name, each in found.items()
    }
    assert found == right | ({} if api is cg else {"x_loop": "TypeError", "x_cond": "AssertionError"})
