"""The GPU kernels on emulated CUDA: which kernel runs, addresses and indices."""

import itertools

import numpy as np
import pytest

from ..support.tensors import random_array
from . import contraction, emulated_cuda
from .contraction import Fenced, fences, within_fences


@pytest.mark.parametrize("shapes", [(1, 1), (1, 0), (0, 1)], ids=["same", "scalar rhs", "scalar lhs"])
def test_flat_products_of_every_length_at_every_address(shapes, dtype, rng):
    """Heads, vectors and tails, for operands and out that are aligned alike or differently. Touches no other memory."""
    vector, memory = 16 // dtype.size, fences(1)
    alike = [(offset, offset, offset) for offset in range(vector)]
    apart = [(0, 1, 0), (1, 0, 0), (0, 0, 1), (vector - 1, 1, 2)]
    for n, offsets in itertools.product([*range(vector + 2), 2 * vector, 2 * vector + 1], alike + apart):
        given = [random_array(rng, [n if moves else 1], dtype) for moves in shapes]
        for place in (Fenced.at_start, Fenced.at_end):
            within_fences(emulated_cuda.contract, memory, given, [n], dtype, place, offsets)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_address_between_elements_is_refused(place, dtype, capfd):
    """A GPU would stop. TensorFlow's kernel raises an InvalidArgumentError with the reason."""
    memory = np.zeros(4096, np.uint8)
    start, beyond = -memory.ctypes.data % 64, dtype.size // 2
    for size in (1, 40):
        arrays = [np.zeros([size], dtype.as_numpy_dtype) for _ in range(3)]
        arrays[place] = memory[start + beyond :][: size * dtype.size].view(dtype.as_numpy_dtype)
        assert emulated_cuda.library().emulated_contract(*contraction.as_c(*arrays, "x")) == 1
        expected = (
            f" must be aligned in memory to the size of its elements, {dtype.size} bytes, got an address that is off by "
            f"{beyond} bytes."
        )
        assert ("lhs", "rhs", "out")[place] + expected in capfd.readouterr().err


@pytest.mark.parametrize("bits", [63, 31])
def test_division_by_multiplication_is_exact(bits, rng):
    """At the ends of quotients and of the numbers, for small, large and random divisors."""
    library, largest = emulated_cuda.library(), 2**bits - 1
    divide = library.emulated_divide if bits == 63 else library.emulated_divide_narrow
    powers = (2 ** (bits // 2), 2 ** (bits - 1))
    divisors = {1, 2, 3, 5, 7, 641, largest} | {power + i for power in powers for i in (-1, 0, 1)}
    divisors |= {int(2**exponent) for exponent in rng.uniform(0, bits, 300)}
    for divisor in divisors:
        quotients = {0, 1, 2, largest // divisor} | {int(q) for q in rng.integers(0, largest // divisor + 1, 20)}
        for quotient, offset in itertools.product(quotients, (-1, 0, 1)):
            n = quotient * divisor + offset
            if 0 <= n <= largest:
                assert divide(n, divisor) == n // divisor, (n, divisor)


@pytest.mark.parametrize("shapes", [[[9, 16], [1, 16]], [[7, 5], [1, 5]], [[7, 5], [7, 1]], [[600], [1]]], ids=str)
def test_a_product_may_be_written_over_its_operand(shapes, dtype, rng):
    """TensorFlow may pass an operand's memory as out. Threads without an element must not read what another one writes."""
    lhs, rhs = (random_array(rng, shape, dtype) for shape in shapes)
    expected = np.zeros_like(lhs)
    emulated_cuda.contract(lhs, rhs, expected)
    for order in range(3):
        emulated_cuda.contract(out := lhs.copy(), rhs, out, order=order)
        np.testing.assert_array_equal(out.view(np.uint8), expected.view(np.uint8))


LIMIT = 2**31


def flat(n):
    return [n], [n], [n]


def by_row(rows, n):
    return [rows, n], [1, n], [rows, n]


def sums_of_rows(rows, n):
    return [rows, n], [rows, n], [rows, 1]


def sums_of_columns(rows, n):
    return [rows, n], [rows, n], [1, n]


def loops(k):
    """Three each time, none of which can be merged with its neighbours."""
    return [2, 1, 1] * k, [1, 2, 1] * k, [1, 1, 2] * k


def row(shapes, kernel, has_narrow_indices=None, is_vectorized=None, itemsize=4, addresses=(0, 0, 0)):
    expected = {"kernel": kernel, "has_narrow_indices": has_narrow_indices, "is_vectorized": is_vectorized}
    return shapes, itemsize, addresses, {name: value for name, value in expected.items() if value is not None}


OFF = ((4, 0, 0), (0, 4, 0), (0, 0, 4))
SCHEDULES = {
    # A kernel has room for 16 loops with 32-bit indices.
    "many loops": [
        row(loops(5), "sum columns", True),
        row(loops(6), "sum columns", False),
        row(loops(20), "sum columns", False),
        *(row(loops(k), "too many loops") for k in (21, 30)),
    ],
    # Then only a product is written element by element; sums are over the same vectors, read element by element.
    "indices above 31 bits take 64": [
        case
        for n, is_narrow in ((LIMIT // 64 - 64, True), (LIMIT // 64 + 64, False))
        for case in (
            row(by_row(n, 64), "multiply rows" if is_narrow else "multiply scalar", is_narrow, is_narrow),
            row(by_row(64, n + 1), "multiply segments" if is_narrow else "multiply scalar", is_narrow, False),
            row(sums_of_rows(n, 64), "sum rows", is_narrow, True),
            row(sums_of_columns(n, 64), "sum columns", is_narrow, True),
            row(sums_of_rows(64, n), "sum rows", is_narrow, True),
        )
    ],
    # A thread counts what is left of a row, with a sign: 2^31 elements are one too many, though their offsets fit.
    "counts fit into 31 bits": [
        row(shapes, kernel if n < LIMIT else wide, n < LIMIT, itemsize=itemsize, addresses=addresses)
        for n in (LIMIT - 1, LIMIT, LIMIT + 1)
        for shapes, itemsize, addresses, kernel, wide in (
            (flat(n), 2, (2, 0, 0), "multiply segments", "multiply scalar"),
            (([n], [1], [n]), 4, (4, 0, 0), "multiply segments", "multiply scalar"),
            (flat(n), 8, (0, 0, 8), "multiply segments", "multiply scalar"),
            (([n], [n], [1]), 2, (0, 0, 0), "sum rows", "sum rows"),
        )
    ],
    # Not shorter ones, nor those that leave too many threads of their last segment idle.
    "long rows of any elements are cut into segments": [
        *(row(by_row(9, n), "multiply scalar") for n in (3, 169, 257)),
        *(row(by_row(9, n), "multiply segments") for n in (171, 343)),
        row(by_row(9, 1000), "multiply rows"),
        row(([9, 1], [9, 1], [9, 1000]), "multiply scalar", addresses=(0, 0, 4)),
        *(row(by_row(9, 1000), "multiply segments", addresses=addresses) for addresses in OFF),
        *(row(flat(1000), "multiply segments", addresses=addresses) for addresses in OFF),
    ],
    # Those of out begin. Its address does not matter to a sum: the order of additions depends only on the rows.
    "vectors are read where": [
        row(shapes, None, is_vectorized=is_aligned(*addresses), addresses=addresses)
        for addresses in itertools.product([0, 4], repeat=3)
        for shapes, is_aligned in (
            (flat(100), lambda lhs, rhs, out: lhs == rhs == out),
            (([100], [1], [100]), lambda lhs, rhs, out: lhs == out),
            (by_row(100, 64), lambda lhs, rhs, out: lhs == rhs == out == 0),
            (sums_of_columns(100, 64), lambda lhs, rhs, out: lhs == rhs == 0),
        )
    ],
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_kernel_that_is_chosen(name):
    for shapes, itemsize, addresses, expected in SCHEDULES[name]:
        schedule = emulated_cuda.schedule(shapes, itemsize, addresses)
        assert {name: getattr(schedule, name) for name in expected} == expected, (shapes, addresses)
