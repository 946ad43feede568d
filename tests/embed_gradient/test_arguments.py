"""Arguments of embed_gradient: lists, kinds of axis, dtypes, variables, plain numbers, names."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support import modes, reference
from ..support.tensors import pairs, random_array

pytestmark = pytest.mark.core


def vjp(function, x, dy):
    return modes.vjp(lambda: function(x), x, dy)[1]


SEVERAL = {
    "tuples": (tuple, [2, 3], [(2, 3)] * 4, [(2, 3), (3,), (2, 1), ()], ()),
    "an axis from the end of each x": (list, [4], [(4, 3), (4, 3), (4, 2)], [(4, 3), (3,), (1, 2)], -1),
}


@pytest.mark.parametrize("case", SEVERAL)
def test_several_x_of_different_shapes(case, rng):
    container, fx_shape, gx_shapes, x_shapes, axis = SEVERAL[case]
    fx, dy = random_array(rng, fx_shape), random_array(rng, fx_shape)
    xs = [tf.constant(random_array(rng, shape)) for shape in x_shapes]
    gxs = [random_array(rng, shape) for shape in gx_shapes]
    dxs = vjp(lambda xs: cg.embed_gradient(fx, container(gxs), container(xs), axis), xs, tf.constant(dy))
    for dx, gx, shape in zip(dxs, gxs, x_shapes, strict=True):
        np.testing.assert_allclose(dx, reference.vjp(dy, gx, shape, axis), rtol=1e-12)


ONE = [1, -1, [1], (1,), range(1, 2), np.int64(1), np.array(1), np.array([-1])]
ONE += [tf.constant(1), tf.constant([1], tf.int64), tf.Variable([1])]
NONE = [(), [], np.array([], np.int32), tf.constant([], tf.int32)]


@pytest.mark.parametrize("axis", [*ONE, *NONE], ids=lambda axis: f"{type(axis).__name__}-{np.ravel(axis)[:1]}")
def test_every_way_to_write_an_axis(axis, rng):
    shape = [3, 4] if np.size(axis) == 0 else [3]
    fx, gx, dy = (random_array(rng, shape) for shape in [shape, (3, 4), shape])
    x = tf.constant(random_array(rng, [3, 4]))
    dx = vjp(lambda x: cg.embed_gradient(fx, gx, x, axis), x, tf.constant(dy))
    np.testing.assert_allclose(dx, dy.reshape(3, -1) * gx)


def test_an_axis_that_is_a_constant_in_the_graph_stays_static():
    @tf.function
    def run(fx, gx, x):
        return cg.embed_gradient(fx, gx, x, axis=tf.constant([-1]))

    specs = [tf.TensorSpec([None], tf.float32)] + [tf.TensorSpec([None, 4], tf.float32)] * 2
    types = {op.type for op in run.get_concrete_function(*specs).graph.get_operations()}
    assert "Transpose" not in types


def test_a_variable_as_x():
    v = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        h = cg.embed_gradient(v**2, 2 * v, v)
        itself = cg.embed_gradient(v, 1.0, v)
    np.testing.assert_array_equal(tape.gradient(h, v, tf.constant([1.0, 10.0])), [2.0, 40.0])
    v.assign([7.0, 8.0])  # An assignment does not change the memory of the values.
    np.testing.assert_array_equal(h, [1.0, 4.0])
    np.testing.assert_array_equal(itself, [1.0, 2.0])


def test_a_variable_in_mixed_precision_is_read_in_the_compute_dtype():
    import keras

    class Scale(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=[2], initializer="ones")

        def call(self, x):
            return cg.embed_gradient(tf.sign(x), x, self.scale)

    layer = Scale(dtype="mixed_float16")
    x = tf.constant([[0.5, -3.0]], tf.float16)
    with tf.GradientTape() as tape:
        h = layer(x)
    assert h.dtype == tf.float16
    gradient = tape.gradient(h, layer.scale.value, output_gradients=tf.constant([[1.0, 10.0]], tf.float16))
    assert gradient.dtype == tf.float32
    np.testing.assert_array_equal(gradient, [0.5, -30.0])


def test_numbers_and_arrays_follow_the_tensors_or_fx():
    x = tf.constant([1.0, 2.0], tf.float16)
    assert cg.embed_gradient(np.array([3.0, 4.0]), 1, x).dtype == tf.float16
    assert cg.embed_gradient([1.0, 2.0], np.float64(3.0), x).dtype == tf.float16
    assert cg.embed_gradient(np.ones(2), 1, 2).dtype == tf.float64
    assert cg.embed_gradient(1.0, 2.0, np.ones([])).dtype == tf.float32


def test_the_name_is_the_operations_name():
    with tf.Graph().as_default():
        h = cg.embed_gradient(tf.ones([2]), 1.0, tf.ones([2]), name="surrogate")
    assert h.op.name == "surrogate"
    assert h.op.type == "CustomGradientEmbed"


# An axis from a zero that is known at run time only, and what it is.
AT_RUN_TIME = {
    "a Tensor": (lambda zero: tf.stack([zero, -1]), [0, -1]),
    "an empty Tensor": (lambda zero: zero + np.zeros([0], np.int32), []),
    "a Tensor in a list": (lambda zero: [zero, -1], [0, -1]),
}


@pytest.mark.parametrize(("name", "mode"), pairs(AT_RUN_TIME, ["tf1", "eager", "unknown_rank"], quick=2))
def test_an_axis_at_run_time(name, mode, rng):
    axis_of, axis = AT_RUN_TIME[name]
    x, gx, dy = (random_array(rng, shape) for shape in ([2, 3, 4], [2, 3, 4], [3] if axis else [2, 3, 4]))

    def function(x):
        zero = tf.cast(tf.reduce_any(tf.math.is_nan(x)), tf.int32)
        return cg.embed_gradient(dy, gx, x, axis_of(zero))

    _, (dx,) = modes.VJP_MODES[mode](function, [x], dy)
    np.testing.assert_allclose(dx, reference.vjp(dy, gx, x.shape, axis), rtol=1e-12)


def test_reference_variables_of_tensorflow_1():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        v = tf.compat.v1.Variable([1.0, 2.0], use_resource=False)
        h = cg.embed_gradient(v**2, 2 * v, v)
        gradient = tf.gradients(h, v, grad_ys=tf.constant([1.0, 10.0]))[0]
        session.run(v.initializer)
        value, dv = session.run([h, gradient])
    np.testing.assert_array_equal([value, dv], [[1.0, 4.0], [2.0, 40.0]])


@pytest.mark.parametrize(("axis", "batch"), [((), (0, 2**40)), (-1, (0,)), (None, ())], ids=str)
def test_huge_dimensions_of_an_empty_tensor(axis, batch):
    """The gradient is empty, although neither the sizes nor their products fit into 32 bits."""
    x, fx = tf.zeros((0, 2**40)), tf.zeros(batch)

    def run(x):
        return vjp(lambda x: cg.embed_gradient(fx, x, x, axis), x, fx)

    for function in (run, tf.function(run, input_signature=[tf.TensorSpec(None)])):
        assert function(x).shape == x.shape
