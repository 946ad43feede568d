"""The kernel of CustomGradientEmbedGrad on sizes at which its loops change, for each operand, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tf_cg_ops._src.core import library

from ..support.tensors import DTYPES, address, assert_gradient_close, random_array

pytestmark = pytest.mark.core

# Around the length of the lanes (8) and of the tile (256) of the kernel, and past what one thread takes.
LENGTHS = [0, 1, 2, 7, 8, 9, 15, 16, 17, 255, 256, 257, 511, 513, 100_003]


def contract(lhs, rhs, shape, wrt="x", **attributes):
    return library.custom_gradient_embed_grad(lhs, rhs, tf.constant(shape, tf.int64), wrt=wrt, **attributes)


def conj(array):
    return np.conj(array) if np.iscomplexobj(array) else array


def wide(array):
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


@pytest.mark.parametrize("n", LENGTHS)
def test_elementwise_products(n, dtype, rng):
    a, b = random_array(rng, [n], dtype), random_array(rng, [n], dtype)
    assert_gradient_close(contract(a, b, [n], "x"), wide(a) * conj(wide(b)), dtype)
    assert_gradient_close(contract(a, b, [n], "fx"), wide(a) * wide(b), dtype)
    assert_gradient_close(contract(a, b, [n], "gx"), wide(a) * conj(wide(b)), dtype)


@pytest.mark.parametrize("n", LENGTHS)
def test_scalar_factor_on_either_side(n, dtype, rng):
    a, s = random_array(rng, [n], dtype), random_array(rng, [], dtype)
    assert_gradient_close(contract(s, a, [n]), wide(s) * conj(wide(a)), dtype)
    assert_gradient_close(contract(a, s, [n]), wide(a) * conj(wide(s)), dtype)


@pytest.mark.parametrize("n", LENGTHS)
def test_sum_down_to_a_scalar(n, dtype, rng):
    a, b = random_array(rng, [n], dtype), random_array(rng, [n], dtype)
    assert_gradient_close(contract(a, b, []), np.sum(wide(a) * conj(wide(b))), dtype, scale=4 * max(1, n) ** 0.5)


@pytest.mark.parametrize("wrt", ["fx", "x"])
@pytest.mark.parametrize("n", LENGTHS[:-1])
@pytest.mark.parametrize("rows", [1, 3, 300])
def test_a_jacobian_summed_over_rows_or_columns(rows, n, wrt, rng):
    """dx = dy @ gx runs down the columns, dy = gx @ x along the rows of one [rows, n] Jacobian."""
    jacobian, dy, x = random_array(rng, [rows, n]), random_array(rng, [rows]), random_array(rng, [n])
    if wrt == "x":
        actual, expected = contract(dy, jacobian, [n], "x", all_axes=True), dy @ jacobian
    else:
        actual, expected = contract(jacobian, x, [rows], "fx", all_axes=True), jacobian @ x
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12 * max(1, rows, n))


@pytest.mark.parametrize("wrt", ["fx", "gx", "x"])
def test_long_reductions_are_cut_into_blocks_without_a_seam(wrt, rng):
    """Reductions over 300,000 products for few elements of out, with two reduced loops that do not merge."""
    dims = {"b": 100, "k": 3, "n": 1000}
    shapes = {"fx": "bkn", "gx": "bkn", "x": "k"}  # x is [3, 1] and broadcasts over b and n.
    arrays = {role: random_array(rng, [dims[d] for d in dim]) for role, dim in shapes.items()}
    arrays["x"] = arrays["x"][:, None]
    given = [role for role in shapes if role != wrt]
    actual = contract(*(arrays[role] for role in given), arrays[wrt].shape, wrt)
    product = np.broadcast_to(arrays[given[0]] * arrays[given[1]], [100, 3, 1000])
    expected = product.sum((0, 2))[:, None] if wrt == "x" else product
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [[4096], [4096, 3]], ids=str)
def test_16_bit_sums_are_kept_in_float(dtype, shape):
    """In half a sum of ones stops at 2048, in bfloat16 at 256."""
    ones = tf.ones(shape, dtype)
    np.testing.assert_array_equal(contract(ones, ones, shape[1:]).numpy().astype(np.float32), 4096.0)


def test_float32_sums_are_better_than_sums_in_float32(rng):
    """Ten million tenths: plain float32 additions give about 1,087,937."""
    n = 10_000_000
    total = contract(tf.fill([n], 0.1), tf.ones([n]), []).numpy()
    assert total == np.float32(n * np.float64(np.float32(0.1)))


def test_products_of_float32_are_rounded_once(rng):
    a, b = random_array(rng, [999], tf.float32), random_array(rng, [999], tf.float32)
    np.testing.assert_array_equal(contract(a, b, [999]), a * b)


def test_broadcasting_along_an_inner_dimension(rng):
    dy, gx = random_array(rng, [5]), random_array(rng, [5, 7])
    np.testing.assert_allclose(contract(dy, gx, [5, 7], axis=[-1]), dy[:, None] * gx)


@pytest.mark.parametrize("n", [3, 256, 1000, 5000])
def test_equal_sums_are_spread_over_all_elements(n, rng):
    """Both operands are broadcast along x, so that every element of dx is the same sum."""
    dy, gx = random_array(rng, [700]), random_array(rng, [700, 1])
    np.testing.assert_allclose(contract(dy, gx, [n], axis=[-1]), np.full(n, dy @ gx[:, 0]), rtol=1e-12)
    np.testing.assert_allclose(
        contract(dy[:1], gx[:1, 0], [2, n, 1], axis=[0, 1]), np.full([2, n, 1], dy[0] * gx[0, 0])
    )


def test_results_do_not_depend_on_how_often_one_runs(rng):
    a, b = random_array(rng, [500, 999], tf.float32), random_array(rng, [500, 999], tf.float32)
    first = contract(a, b, []).numpy()
    assert all(contract(a, b, []).numpy() == first for _ in range(20))


def test_sums_are_the_same_bits_for_any_number_of_threads(tmp_path):
    from ..support.processes import run_python

    script = """
import sys
import numpy as np, tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
from tf_cg_ops._src.core import library
rng = np.random.default_rng(5)
for shape, out in [((3_000_001,), []), ((3001, 700), [700]), ((700, 3001), [700, 1])]:
    a, b = (tf.constant(rng.normal(size=shape), tf.float32) for _ in range(2))
    print(library.custom_gradient_embed_grad(a, b, tf.constant(out, tf.int64), wrt="x").numpy().tobytes().hex())
"""
    one = run_python(script, 1, cwd=tmp_path).stdout
    assert len(one.split()) == 3
    for threads in (2, 8):
        assert run_python(script, threads, cwd=tmp_path).stdout == one, threads


@pytest.mark.parametrize("reused", [0, 1])
def test_the_upstream_buffer_is_reused_where_nobody_else_holds_it(reused, rng):
    """In a graph, an operand that dies here gives its buffer: the sequence below then allocates nothing new."""
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
    """dx = sum(dy) * gx has as many elements as dy, but each of them needs all of dy."""
    n = 5000
    gx = tf.constant(random_array(rng, [n]))

    @tf.function
    def run(start):
        return contract(start + 1.0, gx, [n], all_axes=True)

    start = random_array(rng, [n])
    np.testing.assert_allclose(run(tf.constant(start)), np.sum(start + 1.0) * gx, rtol=1e-10)


def test_a_dying_derivative_of_the_same_size_is_not_overwritten_while_it_is_read(rng):
    """dx = dy @ gx has as many elements as gx, but each of them needs all of gx; the rows are shared among threads."""
    n = 2000
    dy = tf.constant(random_array(rng, [n, n]))

    @tf.function
    def run(start):
        return contract(dy, start + 1.0, [n, 1])

    start = random_array(rng, [1, n])
    expected = dy.numpy() @ (start + 1.0).T
    np.testing.assert_allclose(run(tf.constant(start)), expected, rtol=1e-10, atol=1e-10)


def test_an_operand_that_lives_on_is_left_alone(rng):
    a, b = tf.constant(random_array(rng, [1000])), tf.constant(random_array(rng, [1000]))
    before = a.numpy().copy(), b.numpy().copy()
    out = contract(a, b, [1000])
    assert address(out) not in (address(a), address(b))
    np.testing.assert_array_equal(a, before[0])
    np.testing.assert_array_equal(b, before[1])


@pytest.mark.parametrize("wrt", ["fx", "gx"])
def test_zero_x_is_zero_whatever_the_operands_hold(wrt):
    bad = tf.constant([np.inf, -np.inf, np.nan, 0.0, 1e300], tf.float64)
    np.testing.assert_array_equal(contract(bad, bad, [5], wrt, zero_x=True), np.zeros(5))


def test_sums_over_nothing_are_zero():
    np.testing.assert_array_equal(contract(tf.zeros([0, 3]), tf.zeros([0, 3]), [3]), np.zeros(3))
    np.testing.assert_array_equal(contract(tf.zeros([0]), tf.zeros([0]), []), 0.0)
    assert contract(tf.zeros([0]), tf.zeros([]), [0]).shape == [0]


@pytest.mark.parametrize("wrt", ["fx", "gx", "x"])
@pytest.mark.parametrize("dtype", [tf.float64, tf.complex128], ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("fx", "gx", "x", "axis"),
    [
        ([3], [3], [3], []),
        ([2, 3], [2, 3], [3], []),
        ([2], [2, 3], [2, 3], [-1]),
        ([2], [2], [2, 3], [1]),
        ([], [3], [3], []),
    ],
    ids=str,
)
def test_the_gradient_of_the_gradient_op_matches_numeric_derivatives(fx, gx, x, axis, dtype, wrt, rng):
    shapes = {"fx": fx, "gx": gx, "x": x}
    given = [tf.constant(random_array(rng, shapes[role], dtype)) for role in shapes if role != wrt]
    theoretical, numeric = tf.test.compute_gradient(
        lambda a, b: contract(a, b, shapes[wrt], wrt, axis=axis, fx_gx_manually_stopped=True), given
    )
    for t, n in zip(theoretical, numeric, strict=True):
        np.testing.assert_allclose(t, n, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_int32_shapes_work_too(dtype):
    ones = tf.ones([4], dtype)
    out = library.custom_gradient_embed_grad(ones, ones, tf.constant([], tf.int32), wrt="x")
    assert out.numpy().astype(np.complex64) == 4
