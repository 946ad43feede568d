"""compat.bayesflow.custom_gradient: the contrib function's cases in our own words, and its formula at random shapes."""

import inspect
import re

import numpy as np
import pytest
import tensorflow as tf

from tf_cg_ops.compat.bayesflow import custom_gradient

from ..support.modes import VJP_MODES, tape_vjp
from ..support.reference import contrib_formula
from ..support.tensors import address, pairs, random_array


def test_the_signature_is_that_of_the_contrib_function():
    parameters = inspect.signature(custom_gradient).parameters
    assert {name: p.default for name, p in parameters.items() if p.default is not inspect.Parameter.empty} == {
        "axis": (),
        "fx_gx_manually_stopped": False,
        "name": None,
    }
    assert list(parameters) == ["fx", "gx", "x", "axis", "fx_gx_manually_stopped", "name"]


def test_scalar_domain_gives_the_product_of_upstream_and_gx(mode, rng):
    """f maps each number to a number; here its derivative is wrong on purpose, so that no other rule can give it."""
    x, dy = random_array(rng, [6]), random_array(rng, [6])
    value, (dx,) = mode(lambda x: custom_gradient(x**2, 20 * x + 1, x), [x], dy)
    np.testing.assert_array_equal(value, x**2)
    np.testing.assert_allclose(dx, dy * (20 * x + 1))


def test_tensor_domain_spreads_one_derivative_over_a_row(mode, rng):
    x, dy = random_array(rng, [3, 4]), random_array(rng, [3])
    value, (dx,) = mode(lambda x: custom_gradient(tf.reduce_sum(x**3, -1), tf.reduce_max(x, -1), x, axis=-1), [x], dy)
    np.testing.assert_allclose(value, np.sum(x**3, -1))
    np.testing.assert_allclose(dx, np.repeat((dy * x.max(-1))[:, None], 4, axis=1))


def test_value_and_derivative_that_are_both_zero_stay_zero_and_finite(mode):
    """At x = 0 both f = x**2 / 2 and its derivative x vanish: a formula that divides by one of them breaks here."""
    x, dy = np.array([0.0, -0.0, 0.0]), np.array([1.0, 10.0, -5.0])
    value, (dx,) = mode(lambda x: custom_gradient(x**2 / 2, x, x), [x], dy)
    np.testing.assert_array_equal(value, np.zeros(3))
    np.testing.assert_array_equal(dx, np.zeros(3))


def test_a_vector_of_variables_trains_as_with_the_derivative():
    """Two variables stacked into x: the gradients reach each of them."""
    u, v = tf.Variable(0.5, dtype=tf.float64), tf.Variable(-2.0, dtype=tf.float64)
    with tf.GradientTape() as tape:
        x = tf.stack([u, v])
        h = custom_gradient(tf.sin(x), tf.constant([3.0, 7.0], tf.float64), x)
    gradients = tape.gradient(h, [u, v], output_gradients=tf.constant([1.0, 10.0], tf.float64))
    np.testing.assert_allclose(gradients, [3.0, 70.0])


def test_a_side_variable_gets_no_gradient(mode, rng):
    x, y, dy = random_array(rng, [4]), random_array(rng, [4]), random_array(rng, [4])
    _, (dx, dy_side) = mode(lambda x, y: custom_gradient(x * y, y, x), [x, y], dy)
    np.testing.assert_allclose(dx, dy * y)
    assert dy_side is None


def test_manually_stopped_lets_the_caller_decide(mode, rng):
    """z reaches the value only through the unstopped fx; gx holds no path of first order."""
    x, z, dy = random_array(rng, [4]), random_array(rng, [4]), random_array(rng, [4])

    def function(x, z):
        fx = tf.stop_gradient(x**2) + tf.sin(z)
        gx = tf.stop_gradient(2 * x) * z
        return custom_gradient(fx, gx, x, fx_gx_manually_stopped=True)

    _, (dx, dz) = mode(function, [x, z], dy)
    np.testing.assert_allclose(dx, dy * 2 * x * z)
    np.testing.assert_allclose(dz, dy * np.cos(z))


CASES = [
    # fx, gx, x, axis
    ((), (), (), ()),
    ((3,), (3,), (3,), ()),
    ((), (), (2, 3), ()),
    ((), (3,), (2, 1), ()),
    ((2, 3), (), (3,), ()),
    ((), (), (3,), None),
    ((4,), (), (2, 3), None),
    ((), (4,), (3,), None),
    ((2,), (2,), (2, 5), -1),
    ((2,), (), (2, 5), [1]),
    ((), (2,), (2, 5), 1),
    ((4, 2), (2,), (2, 5), (1,)),
    ((2,), (3, 2), (2, 5), [-1]),
    ((2,), (2, 2), (2, 5), 1),
    ((3,), (3,), (2, 3, 4), [0, 2]),
    ((1,), (1,), (2, 3, 4), [0, -1]),
    ((0,), (0,), (0, 3), 1),
    ((2,), (2,), (2, 0), 1),
]


@pytest.mark.parametrize("mode_name", list(VJP_MODES))
@pytest.mark.parametrize(("case", "stopped"), pairs(CASES, [False, True]))
def test_shapes_and_gradients_are_those_of_the_formula(case, mode_name, stopped, rng):
    fx_shape, gx_shape, x_shape, axis = case
    args = [random_array(rng, shape) for shape in (fx_shape, gx_shape, x_shape)]
    dy = random_array(rng, contrib_formula(*args, axis).shape)
    mode = VJP_MODES[mode_name]
    value, gradients = mode(lambda fx, gx, x: custom_gradient(fx, gx, x, axis, stopped), args, dy)
    expected_value, expected = mode(lambda fx, gx, x: contrib_formula(fx, gx, x, axis, stopped), args, dy)
    assert value.shape == expected_value.shape
    np.testing.assert_allclose(value, expected_value, rtol=1e-12)
    for actual, wanted in zip(gradients, expected, strict=True):
        assert (actual is None) == (wanted is None)
        if wanted is not None:
            np.testing.assert_allclose(actual, wanted, rtol=1e-12, atol=1e-12)


def test_an_axis_known_at_run_time_only(rng):
    x, dy, gx = random_array(rng, [2, 3, 4]), random_array(rng, [3]), random_array(rng, [3])

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float64)] * 3 + [tf.TensorSpec(None, tf.int32)])
    def run(x, gx, dy, axis):
        return tape_vjp(lambda x: custom_gradient(gx, gx, x, axis), [x], dy)

    value, (dx,) = run(x, gx, dy, [0, -1])
    np.testing.assert_array_equal(value, gx)
    np.testing.assert_allclose(dx, np.broadcast_to((dy * gx)[None, :, None], x.shape))


def test_the_buffer_is_shared_where_fx_has_the_shape_of_the_result(rng):
    fx = tf.constant(random_array(rng, [100]))
    assert address(custom_gradient(fx, fx, fx)) == address(fx)
    x = tf.constant(random_array(rng, [100, 3]))
    assert address(custom_gradient(fx, fx, x, axis=-1)) == address(fx)


def test_lists_are_tensors_as_in_the_contrib_function():
    h = custom_gradient([1.0, 2.0], [3.0, 4.0], [5.0, 6.0])
    np.testing.assert_array_equal(h, [1.0, 2.0])


def test_errors_name_this_function():
    v = tf.ones([3])
    with pytest.raises(
        ValueError,
        match="^"
        + re.escape(
            "compat.bayesflow.custom_gradient: the shapes do not broadcast together; expected sizes that are equal or 1, "
            "got fx of shape (3,), gx of shape (4,) and reduce_sum(x, axis) of shape (3,). Reshape fx and gx to the shape "
            "of reduce_sum(x, axis)."
        ),
    ):
        custom_gradient(v, tf.ones([4]), v)
    for axis in ([2], [1, -1], [-3]):
        with pytest.raises(
            ValueError,
            match="^"
            + re.escape(
                "compat.bayesflow.custom_gradient: axis does not name dimensions of x; expected distinct values in "
                f"[-rank, rank) of x, got axis {axis} for x of shape (3, 2). Name each event dimension once."
            ),
        ):
            custom_gradient(v, v, tf.ones([3, 2]), axis=axis)
    with pytest.raises(TypeError, match=r"^compat.bayesflow.custom_gradient: axis is a bool; "):
        custom_gradient(v, v, v, True)


def test_static_shapes_are_kept_where_the_batch_is_unknown():
    @tf.function(input_signature=[tf.TensorSpec([None, 3, 4])])
    def run(x):
        h = custom_gradient(tf.reduce_sum(x, -1), tf.reduce_max(x, -1), x, axis=-1)
        assert h.shape.as_list() == [None, 3]
        return h

    assert run(tf.ones([5, 3, 4])).shape == [5, 3]


def test_shapes_that_do_not_fit_at_run_time():
    @tf.function(input_signature=[tf.TensorSpec(None)] * 3)
    def run(fx, gx, x):
        return custom_gradient(fx, gx, x, axis=-1)

    message = (
        "compat.bayesflow.custom_gradient: the shapes do not broadcast together; expected sizes that are equal or 1, "
        "got two of fx, gx and reduce_sum(x, axis) with the shapes that follow. Reshape fx and gx to the shape of "
        "reduce_sum(x, axis).] [3] [2]"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        run(tf.ones([3]), tf.ones([3]), tf.ones([2, 5]))
