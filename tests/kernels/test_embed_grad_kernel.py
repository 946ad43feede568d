"""The kernel of CustomGradientEmbedGrad on sizes at which its loops change, for each operand, against NumPy."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tf_cg_ops._src.core import library

from ..support.tensors import address, random_array


def contract(lhs, rhs, shape, wrt="x", **attributes):
    return library.custom_gradient_embed_grad(lhs, rhs, tf.constant(shape, tf.int64), wrt=wrt, **attributes)


@pytest.mark.parametrize("reused", [0, 1])
def test_the_buffer_of_an_operand_is_reused_where_nobody_else_holds_it(reused, rng):
    """In a graph, the output reuses the buffer of an operand that dies, so the sequence below allocates nothing."""
    n = 1_000_003
    kept = tf.constant(random_array(rng, [n]))

    @tf.function
    def run(start):
        dying = start + 1.0
        where = tf.py_function(address, [dying], tf.int64)
        with tf.control_dependencies([where]):
            operands = [dying, kept] if reused == 0 else [kept, dying]
            out = contract(*operands, [n])
        return where, out

    start = random_array(rng, [n])
    where, out = run(tf.constant(start))
    np.testing.assert_array_equal(out, (start + 1.0) * kept)
    assert address(out) == where.numpy() != address(kept)
    assert address(contract(kept, kept, [n])) != address(kept)


def test_a_dying_operand_of_the_same_size_is_not_overwritten_while_it_is_read(rng):
    """dx has as many elements as the operand, but each element needs the whole operand; threads share the rows."""
    gx, matrix = tf.constant(random_array(rng, [5000])), tf.constant(random_array(rng, [2000, 2000]))

    @tf.function
    def run(dying_dy, dying_gx):
        return contract(dying_dy + 1.0, gx, [5000], all_axes=True), contract(matrix, dying_gx + 1.0, [2000, 1])

    dy, row = random_array(rng, [5000]), random_array(rng, [1, 2000])
    by_sum, by_product = run(dy, row)
    np.testing.assert_allclose(by_sum, np.sum(dy + 1.0) * gx, rtol=1e-10)
    np.testing.assert_allclose(by_product, matrix.numpy() @ (row + 1.0).T, rtol=1e-10, atol=1e-10)


def test_zero_x_is_zero_whatever_the_operands_hold_and_so_are_sums_over_nothing(device, dtype):
    bad = tf.cast(tf.constant([np.inf, -np.inf, np.nan, 0.0, 1.0]), dtype)
    for wrt in ("fx", "gx"):
        np.testing.assert_array_equal(contract(bad, bad, [5], wrt, zero_x=True).numpy(), np.zeros(5))
    nothing = tf.zeros([0, 3], dtype)
    np.testing.assert_array_equal(contract(nothing, nothing, [3]).numpy(), np.zeros(3))
    np.testing.assert_array_equal(contract(nothing, nothing, []).numpy(), 0.0)
    assert contract(nothing, tf.ones([], dtype), [0, 3]).shape == [0, 3]


@pytest.mark.parametrize(
    ("fx", "gx", "x", "axis", "dtype"),
    [
        ([3], [3], [3], [], tf.float64),
        ([2, 3], [2, 3], [3], [], tf.complex128),
        ([2], [2, 3], [2, 3], [-1], tf.float64),
        ([2], [2], [2, 3], [1], tf.complex128),
        ([], [3], [3], [], tf.complex128),
    ],
    ids=str,
)
def test_the_gradient_of_the_gradient_op_matches_numeric_derivatives(fx, gx, x, axis, dtype, device, rng):
    shapes = {"fx": fx, "gx": gx, "x": x}
    for wrt in shapes:
        given = [tf.constant(random_array(rng, shapes[role], dtype)) for role in shapes if role != wrt]
        call = functools.partial(contract, shape=shapes[wrt], wrt=wrt, axis=axis, fx_gx_manually_stopped=True)
        theoretical, numeric = tf.test.compute_gradient(tf.function(call), given)
        for t, n in zip(theoretical, numeric, strict=True):
            np.testing.assert_allclose(t, n, rtol=1e-6, atol=1e-8)


def test_int32_shapes_work_too(device, dtype):
    ones = tf.ones([4], dtype)
    out = library.custom_gradient_embed_grad(ones, ones, tf.constant([], tf.int32), wrt="x")
    assert out.numpy().astype(np.complex64) == 4
