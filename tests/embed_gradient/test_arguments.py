"""Arguments of embed_gradient: lists, kinds of axis, dtypes, variables, plain numbers, names."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support import reference
from ..support.tensors import assert_gradient_close, random_array

pytestmark = pytest.mark.core


def vjp(function, x, dy):
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = function(x)
    return tape.gradient(h, x, output_gradients=dy)


@pytest.mark.parametrize("container", [list, tuple])
def test_lists_and_tuples_of_different_shapes(container, rng):
    fx, dy = random_array(rng, [2, 3]), random_array(rng, [2, 3])
    shapes = [(2, 3), (3,), (2, 1), ()]
    xs = [tf.constant(random_array(rng, shape)) for shape in shapes]
    gxs = [random_array(rng, [2, 3]) for _ in shapes]
    with tf.GradientTape() as tape:
        tape.watch(xs)
        h = cg.embed_gradient(fx, container(gxs), container(xs))
    for dx, gx, shape in zip(tape.gradient(h, xs, tf.constant(dy)), gxs, shapes, strict=True):
        np.testing.assert_allclose(dx, reference.vjp(dy, gx, shape), rtol=1e-12)


def test_a_negative_axis_counts_from_the_end_of_each_x(rng):
    fx, dy = random_array(rng, [4]), random_array(rng, [4])
    xs = [tf.constant(random_array(rng, shape)) for shape in [(4, 3), (3,), (1, 2)]]
    gxs = [random_array(rng, shape) for shape in [(4, 3), (4, 3), (4, 2)]]
    with tf.GradientTape() as tape:
        tape.watch(xs)
        h = cg.embed_gradient(fx, gxs, xs, axis=-1)
    for dx, gx, x in zip(tape.gradient(h, xs, tf.constant(dy)), gxs, xs, strict=True):
        np.testing.assert_allclose(dx, reference.vjp(dy, gx, x.shape, -1), rtol=1e-12)


@pytest.mark.parametrize(
    "axis",
    [
        1,
        -1,
        [1],
        (1,),
        range(1, 2),
        np.int64(1),
        np.array(1),
        np.array([-1]),
        tf.constant(1),
        tf.constant([1], tf.int64),
        tf.Variable([1]),
    ],
    ids=lambda axis: f"{type(axis).__name__}-{np.ravel(axis)[0]}",
)
def test_every_way_to_write_an_axis(axis, rng):
    fx, gx, dy = (random_array(rng, shape) for shape in [(3,), (3, 4), (3,)])
    x = tf.constant(random_array(rng, [3, 4]))
    dx = vjp(lambda x: cg.embed_gradient(fx, gx, x, axis), x, tf.constant(dy))
    np.testing.assert_allclose(dx, dy[:, None] * gx)


@pytest.mark.parametrize(
    "axis", [(), [], np.array([], np.int32), tf.constant([], tf.int32)], ids=lambda a: type(a).__name__
)
def test_every_way_to_write_no_axis(axis, rng):
    fx, gx, dy = (random_array(rng, [3]) for _ in range(3))
    x = tf.constant(random_array(rng, [3]))
    np.testing.assert_allclose(vjp(lambda x: cg.embed_gradient(fx, gx, x, axis), x, tf.constant(dy)), dy * gx)


def test_an_axis_that_is_a_constant_in_the_graph_stays_static():
    @tf.function
    def run(fx, gx, x):
        return cg.embed_gradient(fx, gx, x, axis=tf.constant([-1]))

    specs = [tf.TensorSpec([None], tf.float32)] + [tf.TensorSpec([None, 4], tf.float32)] * 2
    types = {op.type for op in run.get_concrete_function(*specs).graph.get_operations()}
    assert "Transpose" not in types


def test_axis_none_with_unknown_rank(rng):
    @tf.function(input_signature=[tf.TensorSpec(None, tf.float64)] * 4)
    def run(fx, gx, x, dy):
        return vjp(lambda x: cg.embed_gradient(fx, gx, x, axis=None), x, dy)

    dy, gx = random_array(rng, [5]), random_array(rng, [5, 2, 3])
    np.testing.assert_allclose(run(dy, gx, random_array(rng, [2, 3]), dy), np.tensordot(dy, gx, 1))


def test_every_dtype_keeps_its_dtype(dtype, rng):
    fx, gx, x, dy = (random_array(rng, [2, 3], dtype) for _ in range(4))
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = cg.embed_gradient(tf.constant(fx), tf.constant(gx), x)
    assert h.dtype == dtype
    dx = tape.gradient(h, x, output_gradients=tf.constant(dy))
    assert dx.dtype == dtype
    assert_gradient_close(dx, reference.vjp(dy, gx, (2, 3)), dtype, scale=4)


def test_complex_gradients_are_those_of_a_holomorphic_function(rng):
    """With gx = f'(x) the result is TensorFlow's own gradient of f."""
    x, dy = tf.constant(random_array(rng, [5], tf.complex128)), tf.constant(random_array(rng, [5], tf.complex128))
    own = vjp(tf.exp, x, dy)
    embedded = vjp(lambda x: cg.embed_gradient(tf.exp(x), tf.exp(x), x), x, dy)
    np.testing.assert_allclose(embedded, own)


def test_a_variable_as_x():
    v = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        h = cg.embed_gradient(v**2, 2 * v, v)
    np.testing.assert_array_equal(tape.gradient(h, v, tf.constant([1.0, 10.0])), [2.0, 40.0])
    v.assign([7.0, 8.0])  # The value shares no memory that an assignment would change.
    np.testing.assert_array_equal(h, [1.0, 4.0])


def test_assigning_to_a_variable_leaves_a_value_that_shares_its_memory_alone():
    v = tf.Variable([1.0, 2.0])
    h = cg.embed_gradient(v, 1.0, v)
    v.assign_add([5.0, 5.0])
    np.testing.assert_array_equal(h, [1.0, 2.0])


def test_a_keras_variable_as_x():
    import keras

    v = keras.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        h = cg.embed_gradient(tf.sign(v.value), 0.5, v)
    np.testing.assert_array_equal(tape.gradient(h, v.value, tf.constant([1.0, 10.0])), [0.5, 5.0])


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


def test_numbers_and_arrays_follow_the_tensors():
    x = tf.constant([1.0, 2.0], tf.float16)
    h = cg.embed_gradient(np.array([3.0, 4.0]), 1, x)
    assert h.dtype == tf.float16
    assert cg.embed_gradient([1.0, 2.0], np.float64(3.0), x).dtype == tf.float16


def test_without_tensors_the_dtype_is_that_of_fx():
    assert cg.embed_gradient(np.ones(2), 1, 2).dtype == tf.float64
    assert cg.embed_gradient(1.0, 2.0, np.ones([])).dtype == tf.float32


def test_sparse_upstreams_from_gather_are_made_dense(mode, rng):
    x, gx, picks = random_array(rng, [6]), random_array(rng, [6]), np.array([4, 1, 4])
    dy = random_array(rng, [3])
    _, (dx,) = mode(lambda x: tf.gather(cg.embed_gradient(x, gx, x), picks), [x], dy)
    dense = np.zeros(6)
    np.add.at(dense, picks, dy)
    np.testing.assert_allclose(dx, dense * gx)


def test_the_name_is_the_operations_name():
    with tf.Graph().as_default():
        h = cg.embed_gradient(tf.ones([2]), 1.0, tf.ones([2]), name="surrogate")
    assert h.op.name == "surrogate"
    assert h.op.type == "CustomGradientEmbed"


def test_keywords_and_positions_are_those_of_the_documentation():
    x = tf.constant([1.0, 2.0])
    by_position = cg.embed_gradient(x, x, x, (), False, "name")
    by_keyword = cg.embed_gradient(fx=x, gx=x, x=x, axis=(), fx_gx_manually_stopped=False, name="name")
    np.testing.assert_array_equal(by_position, by_keyword)


@pytest.mark.parametrize("axis", [[0, 2], [-1], []], ids=str)
def test_an_axis_that_is_fed_to_a_session(axis, rng):
    x, gx = random_array(rng, [2, 3, 4]), random_array(rng, [2, 3, 4])
    batch = [size for i, size in enumerate(x.shape) if i not in reference.domain_axes(axis, 3)]
    dy = random_array(rng, batch)
    with tf.Graph().as_default():
        fed = [tf.compat.v1.placeholder(tf.float64) for _ in range(3)] + [tf.compat.v1.placeholder(tf.int64)]
        h = cg.embed_gradient(fed[0], fed[1], fed[2], fed[3])
        (dx,) = tf.gradients(h, fed[2], grad_ys=fed[0])
        with tf.compat.v1.Session() as session:
            actual = session.run(dx, dict(zip(fed, [dy, gx, x, axis], strict=True)))
    np.testing.assert_allclose(actual, reference.vjp(dy, gx, x.shape, axis), rtol=1e-12)


def test_an_axis_of_tensors_in_a_list(rng):
    """As in `axis=[i, -1]` with an i that is known at run time only."""
    x, gx, dy = random_array(rng, [2, 3, 4]), random_array(rng, [2, 3, 4]), random_array(rng, [3])

    @tf.function
    def run(x, i):
        return vjp(lambda x: cg.embed_gradient(dy, gx, x, axis=[i, -1]), x, dy)

    np.testing.assert_allclose(run(x, tf.constant(0)), reference.vjp(dy, gx, x.shape, [0, -1]), rtol=1e-12)
    eager = vjp(lambda x: cg.embed_gradient(dy, gx, x, axis=[tf.constant(0), -1]), tf.constant(x), dy)
    np.testing.assert_allclose(eager, reference.vjp(dy, gx, x.shape, [0, -1]), rtol=1e-12)


@pytest.mark.parametrize(
    "function",
    [cg.embed_gradient, cg.compat.bayesflow.custom_gradient, cg.compat.tfp_math.custom_gradient],
    ids=["embed_gradient", "bayesflow", "tfp_math"],
)
def test_reference_variables_of_tensorflow_1(function):
    with tf.Graph().as_default():
        v = tf.compat.v1.Variable([1.0, 2.0], use_resource=False)
        h = function(v**2, 2 * v, v)
        gradient = tf.gradients(h, v, grad_ys=tf.constant([1.0, 10.0]))[0]
        with tf.compat.v1.Session() as session:
            session.run(v.initializer)
            value, dv = session.run([h, gradient])
    np.testing.assert_array_equal(value, [1.0, 4.0])
    np.testing.assert_array_equal(dv, [2.0, 40.0])


HUGE = (0, 2**40)


@pytest.mark.parametrize("axis", [(), -1, None], ids=str)
def test_huge_dimensions_of_an_empty_tensor(axis):
    """Rightly nothing, though neither the sizes nor their products fit 32 bits."""
    x = tf.zeros(HUGE)
    fx = tf.zeros(reference_batch(HUGE, axis))
    for traced in (False, True):
        # The contrib function has one derivative for a whole domain.
        for function, gx in [(cg.embed_gradient, tf.zeros(HUGE)), (cg.compat.bayesflow.custom_gradient, fx)]:

            def run(x, function=function, gx=gx):
                return vjp(lambda x: function(fx, gx, x, axis), x, fx)

            assert (tf.function(run, input_signature=[tf.TensorSpec(None)]) if traced else run)(x).shape == HUGE


def reference_batch(shape, axis):
    domain = reference.domain_axes(axis, len(shape))
    return [size for i, size in enumerate(shape) if i not in domain]
