"""The kernel of CustomGradientEmbedGrad on sizes at which its loops change, for each operand, against NumPy."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tf_cg_ops._src.core import library

from ..support.processes import run_python
from ..support.reference import widen
from ..support.tensors import address, assert_gradient_close, random_array

# Around the number of lanes (8) and the size of a tile (256) of the kernel, and more than one thread takes.
LENGTHS = [0, 1, 2, 7, 8, 9, 15, 16, 17, 255, 256, 257, 511, 513, 100_003]


def contract(lhs, rhs, shape, wrt="x", **attributes):
    return library.custom_gradient_embed_grad(lhs, rhs, tf.constant(shape, tf.int64), wrt=wrt, **attributes)


def test_elementwise_products(device, dtype, rng):
    for n in LENGTHS:
        a, b = random_array(rng, [n], dtype), random_array(rng, [n], dtype)
        assert_gradient_close(contract(a, b, [n], "x"), widen(a) * np.conj(widen(b)), dtype)
        assert_gradient_close(contract(a, b, [n], "fx"), widen(a) * widen(b), dtype)
        assert_gradient_close(contract(a, b, [n], "gx"), widen(a) * np.conj(widen(b)), dtype)


@pytest.mark.parametrize("rows", [1, 3, 300])
def test_a_jacobian_summed_over_rows_or_columns(rows, device, rng):
    """dx = dy @ gx runs down the columns, dy = gx @ x along the rows of a [rows, n] Jacobian."""
    for n in LENGTHS[:-1]:
        jacobian, dy, x = random_array(rng, [rows, n]), random_array(rng, [rows]), random_array(rng, [n])
        atol = 1e-12 * max(1, rows, n)
        dx, dfx = contract(dy, jacobian, [n], "x", all_axes=True), contract(jacobian, x, [rows], "fx", all_axes=True)
        np.testing.assert_allclose(dx, dy @ jacobian, rtol=1e-12, atol=atol)
        np.testing.assert_allclose(dfx, jacobian @ x, rtol=1e-12, atol=atol)


def test_sums_are_the_same_bits_in_every_run_for_any_number_of_threads(tmp_path):
    script = """
import sys
import numpy as np, tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
from tf_cg_ops._src.core import library
rng = np.random.default_rng(5)
for shape, out in [((3_000_001,), []), ((3001, 700), [700]), ((700, 3001), [700, 1])]:
    a, b = (tf.constant(rng.normal(size=shape), tf.float32) for _ in range(2))
    print({library.custom_gradient_embed_grad(a, b, tf.constant(out, tf.int64), wrt="x").numpy().tobytes().hex()
           for _ in range(3)})
"""
    one = run_python(script, 1, cwd=tmp_path).stdout
    assert len(one.split()) == 3
    for threads in (2, 8):
        assert run_python(script, threads, cwd=tmp_path).stdout == one, threads


@pytest.mark.parametrize("reused", [0, 1])
def test_the_upstream_buffer_is_reused_where_nobody_else_holds_it(reused, rng):
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
    assert address(out) == where.numpy()


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


def test_an_operand_that_lives_on_is_left_alone(rng):
    a, b = tf.constant(random_array(rng, [1000])), tf.constant(random_array(rng, [1000]))
    before = a.numpy().copy(), b.numpy().copy()
    out = contract(a, b, [1000])
    assert address(out) not in (address(a), address(b))
    np.testing.assert_array_equal(a, before[0])
    np.testing.assert_array_equal(b, before[1])


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
