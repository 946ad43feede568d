"""compat.bayesflow.custom_gradient: the contrib function's cases in our own words, and its formula at random shapes."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tf_cg_ops.compat.bayesflow import custom_gradient

from ..support.modes import VJP_MODES, assert_all_close, eager, tape_vjp
from ..support.reference import contrib_formula
from ..support.tensors import pairs, random_array


def test_value_and_derivative_that_are_both_zero_stay_zero_and_finite(gradient):
    """At x = 0, f = x**2 / 2 and its derivative x are zero, so a formula that divides by one of them fails."""
    (dx,) = gradient(lambda x: custom_gradient(x**2 / 2, x, x), [np.array([0.0, -0.0])], np.array([1.0, 10.0]))
    np.testing.assert_array_equal(dx, np.zeros(2))


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


ROWS = [*itertools.product(CASES, [False, True])]


@pytest.mark.parametrize(("row", "mode"), pairs(ROWS, VJP_MODES))
def test_shapes_and_gradients_are_those_of_the_formula(row, mode, rng):
    (fx_shape, gx_shape, x_shape, axis), stopped = row
    args = [random_array(rng, shape) for shape in (fx_shape, gx_shape, x_shape)]
    dy = random_array(rng, contrib_formula(*args, axis).shape)
    value, gradients = VJP_MODES[mode](lambda fx, gx, x: custom_gradient(fx, gx, x, axis, stopped), args, dy)
    expected_value, expected = eager(lambda fx, gx, x: contrib_formula(fx, gx, x, axis, stopped), args, dy)
    assert value.shape == expected_value.shape
    np.testing.assert_allclose(value, expected_value, rtol=1e-12)
    assert [g is None for g in gradients] == [g is None for g in expected]
    assert_all_close([g for g in gradients if g is not None], [g for g in expected if g is not None], 1e-12, 1e-12)


def test_an_axis_known_at_run_time_only(rng):
    x, dy, gx = random_array(rng, [2, 3, 4]), random_array(rng, [3]), random_array(rng, [3])

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float64)] * 3 + [tf.TensorSpec(None, tf.int32)])
    def run(x, gx, dy, axis):
        return tape_vjp(lambda x: custom_gradient(gx, gx, x, axis), [x], dy)

    value, (dx,) = run(x, gx, dy, [0, -1])
    np.testing.assert_array_equal(value, gx)
    np.testing.assert_allclose(dx, np.broadcast_to((dy * gx)[None, :, None], x.shape))


def test_static_shapes_are_kept_where_the_batch_is_unknown():
    @tf.function(input_signature=[tf.TensorSpec([None, 3, 4])])
    def run(x):
        h = custom_gradient(tf.reduce_sum(x, -1), tf.reduce_max(x, -1), x, axis=-1)
        assert h.shape.as_list() == [None, 3]
        return h

    assert run(tf.ones([5, 3, 4])).shape == [5, 3]
