"""Derivatives of the first three orders with fx_gx_manually_stopped, against the contrib formula and known numbers."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.reference import contrib_formula
from ..support.tensors import pairs, random_array


def derivatives(function, args, upstreams, traced):
    """Repeated vector-Jacobian products: each order is the gradient of all of the order before, contracted.

    Returns the gradients of each order with respect to every argument, as arrays or None.
    """

    def run(*args):
        orders = []
        with tf.GradientTape(persistent=True) as third, tf.GradientTape(persistent=True) as second:
            second.watch(args)
            third.watch(args)
            with tf.GradientTape() as first:
                first.watch(args)
                # After a nonlinear op, so that the upstream also has derivatives.
                value = tf.sin(function(*args))
            gradients = first.gradient(value, args, output_gradients=upstreams[0])
            orders.append(gradients)
            scalar = contract(gradients, upstreams[1])
            gradients = [None] * len(args) if scalar is None else second.gradient(scalar, args)
            orders.append(gradients)
            scalar = contract(gradients, upstreams[2])
        orders.append([None] * len(args) if scalar is None else third.gradient(scalar, args))
        return orders

    def contract(gradients, weights):
        terms = [tf.reduce_sum(g * w) for g, w in zip(gradients, weights, strict=True) if g is not None]
        return tf.add_n(terms) if terms else None

    run = tf.function(run) if traced else run
    orders = run(*(tf.constant(a) for a in args))
    return [[None if g is None else g.numpy() for g in gradients] for gradients in orders]


def assert_same_derivatives(function, formula, args, out_shape, rng, traced):
    upstreams = [random_array(rng, out_shape)] + [[random_array(rng, a.shape) for a in args] for _ in range(2)]
    actual = derivatives(function, args, upstreams, traced)
    expected = derivatives(formula, args, upstreams, traced)
    seen = 0
    for order_actual, order_expected in zip(actual, expected, strict=True):
        for a, e in zip(order_actual, order_expected, strict=True):
            # No path and a path that carries zeros are the same derivative here; other tests tell them apart.
            a = np.zeros_like(e) if a is None and e is not None else a
            e = np.zeros_like(a) if e is None and a is not None else e
            if e is not None:
                np.testing.assert_allclose(a, e, rtol=1e-11, atol=1e-11)
                seen += int(np.any(e != 0))
    return seen


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

    args = [random_array(rng, shape) for shape in (fx_shape, gx_shape, x_shape)]
    seen = assert_same_derivatives(function, formula, args, fx_shape, rng, traced)
    assert seen == 8  # All three orders for fx, gx and x, but for the first of gx.


def test_a_gx_of_an_unstopped_x_counts_twice_at_second_order():
    """As in the formula, and with the alternatives on the page "Shapes"."""
    x = tf.constant([0.3, -1.2], tf.float64)

    def second(gx_of):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                fx = tf.stop_gradient(tf.sin(x))
                h = cg.embed_gradient(fx, gx_of(x), x, fx_gx_manually_stopped=True)
            dx = inner.gradient(h, x)
        return outer.gradient(dx, x, output_gradients=tf.constant([1.0, 10.0], tf.float64))

    np.testing.assert_allclose(second(tf.cos), 2 * -np.sin([0.3, -1.2]) * [1, 10])
    assert second(lambda x: tf.cos(tf.stop_gradient(x))) is None

    def half(x):
        return (tf.cos(x) + tf.stop_gradient(tf.cos(x))) / 2

    np.testing.assert_allclose(second(half), -np.sin([0.3, -1.2]) * [1, 10])
