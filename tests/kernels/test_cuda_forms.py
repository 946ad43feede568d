"""The form of a GPU kernel for each computation; tensors keep their vectors at every address."""

import itertools

import numpy as np
import pytest

from ..support import contraction, emulated_cuda
from ..support.contraction import UNTOUCHED, check
from ..support.tensors import random_array

VECTOR_BYTES = 16
LIMIT = 2**31


@pytest.mark.parametrize(
    ("shapes", "kernel"),
    [
        (lambda n: [[n, 64], [1, 64], [n, 64]], "multiply"),
        (lambda n: [[n, 64], [n, 64], [n, 1]], "sum rows"),
        (lambda n: [[n, 64], [n, 64], [1, 64]], "sum columns"),
        (lambda n: [[64, n], [64, n], [64, 1]], "sum rows"),
    ],
)
def test_indices_above_31_bits_take_64(shapes, kernel):
    for n, is_narrow in ((LIMIT // 64, True), (LIMIT // 64 + 64, False)):
        schedule = emulated_cuda.schedule(shapes(n))
        assert schedule.kernel == kernel
        assert schedule.has_narrow_indices == is_narrow
    # Only the product is written element by element then; sums are of the same vectors, read singly.
    assert schedule.is_vectorized == (kernel != "multiply")


def test_a_flat_product_of_any_size_is_in_vectors():
    """It takes several launches."""
    for n in (LIMIT - 1, LIMIT, 5 * LIMIT):
        schedule = emulated_cuda.schedule([[n], [n], [n]])
        assert (schedule.kernel, schedule.is_vectorized, schedule.rhs_moves) == ("multiply flat", True, True)


def test_many_loops_take_64_bits():
    """A kernel has room for 16 loops with 32-bit indices."""
    for k, is_narrow in ((5, True), (6, False)):
        assert emulated_cuda.schedule([[2, 1, 1] * k, [1, 2, 1] * k, [1, 1, 2] * k]).has_narrow_indices == is_narrow


def test_the_operand_that_moves_is_on_the_left():
    """One form serves both orders."""
    schedule = emulated_cuda.schedule([[1], [100], [100]])
    assert (schedule.kernel, schedule.rhs_moves, schedule.swaps_operands) == ("multiply flat", False, True)
    schedule = emulated_cuda.schedule([[100], [1], [100]])
    assert (schedule.kernel, schedule.rhs_moves, schedule.swaps_operands) == ("multiply flat", False, False)


@pytest.mark.parametrize(
    ("shapes", "is_aligned"),
    [
        ([[100], [100], [100]], lambda lhs, rhs, out: lhs == rhs == out),
        ([[100], [1], [100]], lambda lhs, rhs, out: lhs == out),
        ([[100, 64], [1, 64], [100, 64]], lambda lhs, rhs, out: lhs == rhs == out == 0),
        # Out takes no part: the order of additions goes by the rows, wherever they are.
        ([[100, 64], [100, 64], [1, 64]], lambda lhs, rhs, out: lhs == rhs == 0),
    ],
    ids=["flat", "by scalar", "rows", "sums"],
)
def test_vectors_are_read_where_those_of_out_begin(shapes, is_aligned):
    for addresses in itertools.product([0, 4], repeat=3):
        assert emulated_cuda.schedule(shapes, addresses=addresses).is_vectorized == is_aligned(*addresses)


@pytest.mark.parametrize("shapes", [(1, 1), (1, 0), (0, 1)], ids=["same", "scalar rhs", "scalar lhs"])
def test_flat_products_of_every_length_at_every_address(shapes, dtype, rng):
    """Heads, vectors and tails, of two vectors and more: operands and out begin alike or not; no other memory is touched."""
    vector = VECTOR_BYTES // dtype.size
    memory = [contraction.Fenced(1) for _ in range(3)]
    alike = [(offset, offset, offset) for offset in range(vector)]
    apart = [(0, 1, 0), (1, 0, 0), (0, 0, 1), (vector - 1, 1, 2)]
    for n, offsets in itertools.product([*range(vector + 2), 2 * vector, 2 * vector + 1], alike + apart):
        sizes = [n if moves else 1 for moves in shapes] + [n]
        for place in (contraction.Fenced.at_start, contraction.Fenced.at_end):
            lhs, rhs, out = (
                place(block, [size], dtype.as_numpy_dtype, offset)
                for block, size, offset in zip(memory, sizes, offsets, strict=True)
            )
            memory[2].fill(UNTOUCHED)
            before = memory[2].size - out.nbytes
            lhs[...], rhs[...] = (random_array(rng, array.shape, dtype) for array in (lhs, rhs))
            emulated_cuda.contract(lhs, rhs, out)
            written = int(np.count_nonzero(np.ascontiguousarray(out).view(np.uint8) == UNTOUCHED))
            assert memory[2].count(UNTOUCHED) - written == before
            check(out, lhs, rhs, "x", dtype)
