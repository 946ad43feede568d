"""compat.tfp_math.custom_gradient: TFP's promise for every pair of shapes, as a true vector-Jacobian product."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tf_cg_ops.compat.tfp_math import custom_gradient

from ..support.modes import VJP_MODES, assert_all_close, eager, tape_vjp, vjp
from ..support.reference import tfp_formula
from ..support.tensors import pairs, random_array

# fx, x, and dx for a dy that is not uniform.
ELEMENTWISE, LEADING, MEAN = "elementwise", "leading", "mean"
SHAPES = [
    ((2, 3), (2, 3), ELEMENTWISE),
    ((), (), ELEMENTWISE),
    ((), (3,), LEADING),
    ((), (2, 3), LEADING),
    ((3,), (3, 4), LEADING),
    ((2, 3), (2, 3, 2, 2), LEADING),
    ((1,), (1, 4), LEADING),
    ((3,), (), MEAN),
    ((3,), (4,), MEAN),
    ((3,), (2, 3), MEAN),
    ((2, 3), (4,), MEAN),
    ((3, 1), (3, 4), MEAN),
    ((1,), (4,), MEAN),
]


def expected_dx(dy, gx, kind):
    if kind == MEAN:
        return np.mean(dy) * gx
    return dy.reshape(dy.shape + (1,) * (gx.ndim - dy.ndim)) * gx


ROWS = [*itertools.product(SHAPES, [False, True])]


@pytest.mark.parametrize(("row", "mode"), pairs(ROWS, VJP_MODES))
def test_every_pair_of_shapes(row, mode, rng):
    """The true product. For a uniform dy, it is also TFP's formula, and keeps its promise."""
    (fx_shape, x_shape, kind), stopped = row
    fx, gx, x = (random_array(rng, shape) for shape in (fx_shape, x_shape, x_shape))
    dy = random_array(rng, fx_shape)
    value, (dfx, dgx, dx) = VJP_MODES[mode](lambda fx, gx, x: custom_gradient(fx, gx, x, stopped), [fx, gx, x], dy)
    np.testing.assert_array_equal(value, fx)
    np.testing.assert_allclose(dx, expected_dx(dy, gx, kind), rtol=1e-12)
    if stopped:
        assert_all_close([dfx, dgx], [dy, np.zeros(x_shape)])
    else:
        assert (dfx, dgx) == (None, None)
    _, (formula,) = eager(lambda x: tfp_formula(fx, [gx], [x], stopped), [x], np.ones(fx_shape))
    assert_all_close([formula, expected_dx(np.ones(fx_shape), gx, kind)], [gx, gx], rtol=1e-12)


@pytest.mark.parametrize("fx_shape", [(2, 3), ()], ids=str)
def test_a_list_of_different_shapes(fx_shape, gradient, rng):
    """One x of each kind in one call, with a non-uniform upstream; and TFP's own use, a log-likelihood."""
    fx, dy = random_array(rng, fx_shape), random_array(rng, fx_shape)
    kinds = [((2, 3), ELEMENTWISE), ((2, 3, 4), LEADING), ((5,), MEAN), ((), MEAN), ((2, 3, 1, 2), LEADING)]
    xs = [random_array(rng, shape) for shape, _ in kinds]
    gxs = [random_array(rng, shape) for shape, _ in kinds]
    dxs = gradient(lambda *xs: custom_gradient(fx, gxs, list(xs)), xs, dy)
    for dx, gx, (_, kind) in zip(dxs, gxs, kinds, strict=True):
        np.testing.assert_allclose(dx, expected_dx(dy, gx, kind) if fx_shape else dy * gx, rtol=1e-12)


@pytest.mark.parametrize("fx_of", [lambda x, y: x * y, lambda x, y: tf.reduce_sum(x * y)], ids=["vector", "scalar"])
def test_second_derivatives_are_those_of_the_formula(fx_of, rng):
    """For a uniform upstream, manually stopped, with a gx that depends on the other input."""
    args = [tf.constant(random_array(rng, [3])) for _ in range(2)]
    upstreams = [tf.constant(numbers, tf.float64) for numbers in ([1.0, 10.0, 100.0], [3.0, 5.0, 7.0])]

    def second(embed):
        function = lambda x, y: embed(fx_of(tf.stop_gradient(x), y), [tf.sin(y)], [x], True)  # noqa: E731
        return vjp(lambda: tape_vjp(function, args, None)[1], args, upstreams)[1]

    assert_all_close(second(custom_gradient), second(tfp_formula), rtol=1e-12)


@pytest.mark.parametrize(("size", "traced"), [(60_000, True), (70_000, False), (1_000_000, True)])
def test_the_mean_over_more_elements_than_float16_counts(size, traced):
    """From 65,505 elements on, float16 has no number for their size."""

    def run(fx, x):
        return tape_vjp(lambda x: custom_gradient(fx, tf.constant([3.0], tf.float16), x), [x], tf.ones_like(fx))[1][0]

    if traced:
        run = tf.function(run, input_signature=[tf.TensorSpec(None, tf.float16)] * 2)
    dx = run(tf.ones([size], tf.float16), tf.constant([2.0], tf.float16))
    np.testing.assert_allclose(dx, [3.0], rtol=3e-3)


def test_empty_values_give_zeros_where_tfp_gives_nan():
    """Even if a dimension is huge."""
    small, huge = tf.constant([1.0, 2.0]), tf.zeros([0, 2**40])
    for fx, x in ((tf.zeros([0]), small), (huge, huge), (tf.zeros([0]), huge), (tf.zeros([3]), huge)):
        _, (dx,) = tape_vjp(lambda x, fx=fx: custom_gradient(fx, x, x), [x], fx)
        np.testing.assert_array_equal(dx, tf.zeros_like(x))


# The pairs of shapes of gx and x that TFP takes. It compares two vectors of sizes, and one of them can broadcast.
BROADCAST_BY_TFP = [
    ((), (), (2,)),
    ((2,), (), (2,)),
    ((), (2,), ()),
    ((), (2, 2), (2,)),
    ((2,), (2,), (2, 2)),
    ((3,), (2, 2), (2,)),
    ((2, 2), (2,), (2, 2)),
    ((), (2,), (2, 2, 2)),
]


@pytest.mark.parametrize(("shapes", "mode"), pairs(BROADCAST_BY_TFP, ["eager", "unknown_rank", "unknown_shape", "jit"]))
def test_gx_of_another_shape_as_far_as_tfp_takes_it(shapes, mode, rng):
    theirs = pytest.importorskip("tensorflow_probability").math.custom_gradient
    fx, gx, x = (random_array(rng, shape) for shape in shapes)
    dy = np.full(fx.shape, 0.7)  # TFP is only right for a uniform upstream.
    _, expected = eager(lambda fx, gx, x: theirs(fx, gx, x, True), [fx, gx, x], dy)
    value, found = VJP_MODES[mode](lambda fx, gx, x: custom_gradient(fx, gx, x, True), [fx, gx, x], dy)
    np.testing.assert_array_equal(value, fx)
    assert_all_close(found, expected, rtol=1e-12, atol=1e-12)
