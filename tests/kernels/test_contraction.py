"""The kernels' arithmetic without TensorFlow: `cc/lib` for all vector registers, and the GPU kernels on emulated CUDA.

Both are compared with NumPy in float64.
"""

import functools
import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from ..support.tensors import DTYPES, assert_gradient_close, pairs, random_array
from . import contraction, emulated_cuda
from .contraction import FORMS, UNTOUCHED, Fenced, check, expected, fences, within_fences


@pytest.fixture(params=[*contraction.KINDS, "gpu"])
def contract(request):
    """Writes a gradient into an array, with one kind of vector registers or with the GPU kernels."""
    if request.param == "gpu":
        return emulated_cuda.contract
    if request.param not in contraction.kinds_here():
        pytest.skip(f"this machine has no {request.param}")
    return functools.partial(contraction.contract, vectors=request.param)


@pytest.mark.parametrize(("form", "dtype"), pairs(FORMS, DTYPES))
def test_every_length_at_any_address_within_fences(form, dtype, contract, rng):
    (shapes, wrt), memory = FORMS[form], fences(1 << 19)
    # Twice as many numbers as one turn of the longest loop takes: 32, in 16-bit sums. Then around segments of GPUs.
    for n in (*range(65), 171, 257, 1001):
        given = [random_array(rng, shape, dtype) for shape in shapes(n)[:2]]
        offsets = n % 4, n % 4 + 1, n % 4 + 2  # So that vectors start at each possible misalignment.
        for place in (Fenced.at_start, Fenced.at_end):
            within_fences(contract, memory, given, shapes(n)[2], dtype, place, offsets, wrt)


def test_out_may_be_an_operand(contract, dtype, rng):
    for n, place in itertools.product((1, 17, 1000), (0, 1)):
        lhs, rhs = random_array(rng, [n], dtype), random_array(rng, [n], dtype)
        operands = [lhs.copy(), rhs.copy()]
        contract(*operands, operands[place], "x")
        check(operands[place], lhs, rhs, "x", dtype)
        np.testing.assert_array_equal(operands[1 - place], [lhs, rhs][1 - place])


# Lhs, rhs and out. Sums are cut into blocks, tiles or parts, and rows are short, long, aligned or not.
LARGE = [
    ([70_007], [70_007], [1]),
    ([70_007], [1], [1]),
    # The sums of a single column can be packed. The sums of many columns are not, on either side of a cut.
    ([600, 17], [600, 17], [1, 17]),
    ([300, 8193], [300, 8193], [1, 8193]),
    ([20_009, 3], [20_009, 3], [1, 3]),
    ([20_009, 3], [20_009, 3], [20_009, 1]),
    ([700, 40], [1, 40], [700, 1]),
    ([5, 20_011], [5, 20_011], [1, 20_011]),
    ([5, 20_011], [5, 20_011], [5, 1]),
    ([5, 40_960], [5, 40_960], [5, 1]),
    ([700, 501], [700, 501], [1, 501]),
    ([3000, 64], [3000, 64], [1, 64]),
    ([3000, 1], [3000, 64], [1, 64]),
    ([3, 100, 1001], [3, 100, 1001], [3, 1, 1]),
    ([10, 3, 50, 64], [10, 3, 50, 64], [10, 1, 50, 1]),
    ([10, 3, 50, 64], [10, 3, 50, 64], [1, 3, 1, 64]),
    ([30, 200, 2], [30, 200, 2], [30, 1, 1]),
    ([70_007], [70_007], [70_007]),
    ([100, 64], [1, 64], [100, 64]),
    ([100, 63], [1, 63], [100, 63]),
    ([100, 1001], [1, 1001], [100, 1001]),
    # Short sums: alone, inside others, and with different numbers of loops in a group.
    *(([1003, 4, 4, 4], [1003, 4, 4, 4], out) for out in ([1003, 1, 1, 4], [1003, 1, 4, 1], [1, 4, 1, 4])),
    ([5003, 2, 100], [5003, 2, 100], [5003, 1, 100]),
    ([70, 3, 501, 3], [70, 3, 501, 3], [70, 1, 501, 1]),
    ([20, 9, 40, 30], [20, 9, 40, 30], [20, 1, 40, 1]),
    ([3, 11_003, 2], [3, 11_003, 2], [3, 11_003, 1]),
    ([11_003, 3, 2], [11_003, 3, 2], [1, 3, 1]),
    # Several groups in one packed row, with a sum over the rows.
    ([1003, 2, 2, 2], [1003, 2, 2, 2], [1, 2, 1, 2]),
    ([5003, 2, 3, 2], [5003, 2, 3, 2], [1, 2, 1, 2]),
    ([1001, 50, 2, 3, 2], [1001, 50, 2, 3, 2], [1001, 1, 2, 1, 2]),
]


def on_cpu(i, lhs, rhs, out):
    """In one piece, in five, and each column alone."""
    kind = contraction.kinds_here()[i % len(contraction.kinds_here())]
    contraction.contract(lhs, rhs, out, "x", kind, (1, 5, max(2, out.shape[-1]))[i])


def on_gpu(i, *arrays):
    emulated_cuda.contract(*arrays, "x", order=i, max_blocks=(emulated_cuda.MANY, 3, 1)[i])


@pytest.mark.parametrize("contract_in", [on_cpu, on_gpu])
@pytest.mark.parametrize(("shapes", "dtype"), pairs(LARGE, DTYPES))
def test_blocks_tiles_and_parts_leave_no_seam(shapes, dtype, contract_in, rng):
    """All vector registers give the same bits in any number of pieces, and GPUs with any order and number of blocks."""
    *operands, out_shape = shapes
    lhs, rhs = (random_array(rng, shape, dtype) for shape in operands)
    results = set()
    for i in range(3):
        out = np.zeros(out_shape, dtype.as_numpy_dtype)
        contract_in(i, lhs, rhs, out)
        results.add(out.tobytes())
    value, _ = expected(lhs, rhs, out_shape, "x")
    terms = np.prod(np.broadcast_shapes(*operands)) / np.prod(out_shape)
    assert_gradient_close(out, value, dtype, scale=4 * math.sqrt(terms))
    assert len(results) == 1


@pytest.mark.parametrize(("form", "dtype"), pairs(FORMS, DTYPES, quick=2))
def test_all_vectors_and_all_cuts_give_the_same_bits(form, dtype, rng):
    """Includes sizes around 16 columns, up to which rows are packed, and outputs that are cut within a row.

    GPUs add in another order, but what is not summed has the same bits there.
    """
    shapes, wrt = FORMS[form]
    for n in (1, 2, 3, 15, 16, 17, 33, 1000):
        lhs, rhs = (random_array(rng, shape, dtype) for shape in shapes(n)[:2])
        results = set()
        for kind, pieces in itertools.product(contraction.kinds_here(), (1, 2, 3, 7)):
            out = np.zeros(shapes(n)[2], dtype.as_numpy_dtype)
            contraction.contract(lhs, rhs, out, wrt, kind, pieces)
            results.add(out.tobytes())
        if "sum" not in form:
            emulated_cuda.contract(lhs, rhs, out := np.zeros_like(out), wrt)
            results.add(out.tobytes())
        assert len(results) == 1


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.size == 2], ids=lambda d: d.name)
def test_16_bit_products_are_rounded_to_the_nearest_ties_to_even(dtype, contract, rng):
    """float has them exactly, and NumPy rounds them: all numbers times some, one of which is 1. A nan stays a nan."""
    numbers = np.arange(1 << 16, dtype=np.uint16).view(dtype.as_numpy_dtype)
    for factor in [*rng.permutation(numbers[np.isfinite(numbers.astype(np.float32))])[:6], 1.0, 0.5, 1.0 / 3]:
        factor = np.asarray(factor).astype(dtype.as_numpy_dtype)
        out = np.zeros_like(numbers)
        contract(numbers, factor[None], out, "x")
        with np.errstate(all="ignore"):
            exact = numbers.astype(np.float32) * np.float32(factor)
            product = exact.astype(dtype.as_numpy_dtype)
        known = ~np.isnan(exact)
        np.testing.assert_array_equal(out.view(np.uint16)[known], product.view(np.uint16)[known])
        assert np.all(np.isnan(out[~known].astype(np.float32)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "out_shape"), [([300_003], [1]), ([30_003, 2], [1, 2]), ([30_003, 40], [1, 40])], ids=str
)
def test_sums_are_more_accurate_than_one_addition_after_the_other(shape, out_shape, dtype, rng):
    lhs, out = rng.uniform(size=shape).astype(dtype), np.zeros(out_shape, dtype)
    contraction.contract(lhs, np.ones(shape, dtype), out, "x", contraction.kinds_here()[-1])
    columns = lhs.reshape(shape[0], -1).T
    exact = [math.fsum(column) for column in columns]
    naive = [np.cumsum(column, dtype=dtype)[-1] for column in columns]
    error = np.max(np.abs(out.ravel().astype(np.float64) - exact))
    assert error < 0.25 * np.max(np.abs(np.array(naive, np.float64) - exact))


@pytest.mark.parametrize(("dtype", "offset"), [(tf.float16, 5), (tf.float32, 0), (tf.complex128, 1)], ids=str)
def test_large_outputs_are_written_past_the_caches_at_any_address(dtype, offset, rng):
    """For outputs of 16 MiB and more. Odd pieces begin at every alignment."""
    n = (1 << 24) // dtype.size + 77
    some = random_array(rng, [1013], dtype)
    lhs = np.resize(some, n)
    memory = np.full((n + 16) * dtype.size, UNTOUCHED, np.uint8)
    out = memory[offset * dtype.size : (offset + n) * dtype.size].view(dtype.as_numpy_dtype)
    contraction.contract(lhs, some[3:4], out, "x", contraction.kinds_here()[-1], pieces=7)
    small = np.zeros_like(some)
    contraction.contract(some, some[3:4], small, "x")
    np.testing.assert_array_equal(out.view(np.uint8), np.resize(small, n).view(np.uint8))
    assert np.all(memory[: offset * dtype.size] == UNTOUCHED)
    assert np.all(memory[(offset + n) * dtype.size :] == UNTOUCHED)
