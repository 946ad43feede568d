"""Derivatives of the first three orders with fx_gx_manually_stopped, against the contrib formula and known numbers."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import assert_all_close, vjp
from ..support.reference import contrib_formula
from ..support.tensors import pairs, random_array


def derivatives(function, args, upstreams):
    """The value, and for each upstream the gradients of the tensors before, contracted with it, by all arguments.

    No path and a path that carries zeros are the same derivative here; other tests tell them apart.
    """
    if not upstreams:
        return [[tf.sin(function(*args))]]  # A nonlinear op, so that the upstream also has derivatives.
    with tf.GradientTape() as tape:
        tape.watch(args)
        orders = derivatives(function, args, upstreams[:-1])
        target = tf.add_n([tf.reduce_sum(t * w) for t, w in zip(orders[-1], upstreams[-1], strict=True)])
    return [*orders, tape.gradient(target, args, unconnected_gradients="zero")]


SHAPES = [
    # fx, gx, x, axis
    ([3], [3], [3], ()),
    ([2, 3], [2, 3], [3], ()),
    ([], [], [3], ()),
    ([], [], [2, 3], None),
    ([2], [2], [2, 3], -1),
    ([4, 2], [2], [2, 3], [1]),
    ([2], [2], [3, 2, 2], [0, 2]),
    ([4], [], [2], 0),
]


@pytest.mark.parametrize(("shapes", "traced"), pairs(SHAPES, [False, True]))
def test_every_alignment_differentiates_as_the_contrib_formula(shapes, traced, rng):
    """With gx along S the formula is fx + gx * (sum_x - stop(sum_x)); fx has the shape of the result."""
    fx_shape, gx_shape, x_shape, axis = shapes

    def function(fx, gx, x):
        return cg.embed_gradient(fx, gx * tf.reduce_sum(gx), tf.sin(x), axis, fx_gx_manually_stopped=True)

    def formula(fx, gx, x):
        contrib_axis = None if not fx_shape else axis
        return contrib_formula(fx, gx * tf.reduce_sum(gx), tf.sin(x), contrib_axis, fx_gx_manually_stopped=True)

    args = [tf.constant(random_array(rng, shape)) for shape in (fx_shape, gx_shape, x_shape)]
    upstreams = [[random_array(rng, fx_shape)]] + [[random_array(rng, a.shape) for a in args] for _ in range(2)]
    run = tf.function(derivatives, autograph=False) if traced else derivatives
    expected = derivatives(formula, args, upstreams)
    for order, by_formula in zip(run(function, args, upstreams), expected, strict=True):
        assert_all_close(order, by_formula, rtol=1e-11, atol=1e-11)
    # All three orders for fx, gx and x, but for the first of gx.
    assert sum(np.any(gradient != 0) for order in expected[1:] for gradient in order) == 8


def test_a_gx_of_an_unstopped_x_counts_twice_at_second_order():
    """As in the formula, and with the alternatives on the page "Shapes"."""
    x = tf.constant([0.3, -1.2], tf.float64)

    def second(gx_of):
        def h():
            return cg.embed_gradient(tf.stop_gradient(tf.sin(x)), gx_of(x), x, fx_gx_manually_stopped=True)

        return vjp(lambda: vjp(h, x)[1], x, tf.constant([1.0, 10.0], tf.float64))[1]

    np.testing.assert_allclose(second(tf.cos), 2 * -np.sin([0.3, -1.2]) * [1, 10])
    assert second(lambda x: tf.cos(tf.stop_gradient(x))) is None
    half = second(lambda x: (tf.cos(x) + tf.stop_gradient(tf.cos(x))) / 2)
    np.testing.assert_allclose(half, -np.sin([0.3, -1.2]) * [1, 10])
