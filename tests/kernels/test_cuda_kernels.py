"""The GPU kernels on emulated CUDA: which kernel runs, addresses and indices."""

import itertools

import numpy as np
import pytest

from ..support.tensors import DTYPES, pairs, random_array
from . import contraction, emulated_cuda
from .contraction import FORMS, UNTOUCHED, check


@pytest.mark.parametrize("shapes", [(1, 1), (1, 0), (0, 1)], ids=["same", "scalar rhs", "scalar lhs"])
def test_flat_products_of_every_length_at_every_address(shapes, dtype, rng):
    """Heads, vectors and tails, for operands and out that are aligned alike or differently. Touches no other memory."""
    vector = 16 // dtype.size
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


@pytest.mark.parametrize(
    "shapes",
    [
        lambda n: ([n], [n], [n]),
        lambda n: ([n], [1], [n]),
        lambda n: ([3, n], [1, n], [3, n]),
        lambda n: ([3, 1], [3, n], [3, n]),
        lambda n: ([2, 1, 2, n], [2, 3, 1, n], [2, 3, 2, n]),
        lambda n: ([3, n], [3, n], [3, 1]),
        lambda n: ([3, n], [3, n], [1, n]),
        lambda n: ([2, 3, n], [2, 3, n], [2, 1, 1]),
        lambda n: ([2, 3, 2, n], [2, 3, 2, n], [2, 1, 2, 1]),
        lambda n: ([2, 3, 2, n], [2, 1, 2, n], [1, 3, 1, n]),
    ],
    ids=[
        "same",
        "by scalar",
        "by row",
        "by column",
        "strided",
        "sums",
        "columns",
        "block",
        "sums 1, 3",
        "columns 1, 3",
    ],
)
def test_long_rows_at_any_address_within_fences(shapes, dtype, rng):
    """Around whole segments and tiles. Any grid gives the same bits."""
    memory = [contraction.Fenced(1 << 19) for _ in range(3)]
    for n, offset in zip((171, 255, 256, 257, 400, 513, 1001, 2049), itertools.cycle((0, 1, 2, 3)), strict=False):
        given = [random_array(rng, shape, dtype) for shape in shapes(n)[:2]]
        results = set()
        for i, place in enumerate((contraction.Fenced.at_start, contraction.Fenced.at_end, contraction.Fenced.at_end)):
            lhs, rhs, out = (
                place(block, shape, dtype.as_numpy_dtype, (offset + k) % 4 if i < 2 else 0)
                for k, (block, shape) in enumerate(zip(memory, shapes(n), strict=True))
            )
            lhs[...], rhs[...] = given
            memory[2].fill(UNTOUCHED)
            before = memory[2].size - out.nbytes
            emulated_cuda.contract(lhs, rhs, out, order=i, max_blocks=(1, 3, emulated_cuda.MANY)[i])
            written = int(np.count_nonzero(np.ascontiguousarray(out).view(np.uint8) == UNTOUCHED))
            assert memory[2].count(UNTOUCHED) - written == before
            check(out, lhs, rhs, "x", dtype)
            results.add(out.tobytes())
        assert len(results) == 1


@pytest.mark.parametrize(("form", "dtype"), pairs(FORMS, DTYPES))
def test_addresses_change_no_bit(form, dtype, rng):
    """Packs across boundaries of 16 bytes are read number by number, but added in the same order."""
    shapes, wrt = FORMS[form]
    memory = [contraction.Fenced(1 << 16) for _ in range(3)]
    for n in (7, 16, 40):
        lhs, rhs = (random_array(rng, shape, dtype) for shape in shapes(n)[:2])
        results = set()
        for offsets in ((0, 0, 0), (1, 0, 0), (0, 3, 0), (0, 0, 1), (1, 1, 1)):
            views = [
                block.at_start(shape, dtype.as_numpy_dtype, offset)
                for block, shape, offset in zip(memory, shapes(n), offsets, strict=True)
            ]
            views[0][...], views[1][...] = lhs, rhs
            emulated_cuda.contract(*views, wrt)
            results.add(views[2].tobytes())
        assert len(results) == 1


@pytest.mark.parametrize("form", ["same", "scalar_rhs", "column_by_row", "rows_by_row", "strided", "outer"])
def test_products_have_the_same_bits_as_on_the_cpu(form, dtype, rng):
    shapes, wrt = FORMS[form]
    for n in (5, 16):
        lhs, rhs = (random_array(rng, shape, dtype) for shape in shapes(n)[:2])
        on_gpu, on_cpu = (np.zeros(shapes(n)[2], dtype.as_numpy_dtype) for _ in range(2))
        emulated_cuda.contract(lhs, rhs, on_gpu, wrt)
        contraction.contract(lhs, rhs, on_cpu, wrt)
        np.testing.assert_array_equal(on_gpu.view(np.uint8), on_cpu.view(np.uint8))


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


def test_nothing_is_launched_for_no_elements_and_empty_sums_are_zero():
    out = np.full([3, 0], 7, np.float32)
    emulated_cuda.contract(np.zeros([3, 0], np.float32), np.zeros([3, 0], np.float32), out)
    memory = np.full([4], UNTOUCHED, np.float32)
    emulated_cuda.contract(np.zeros([0, 3], np.float32), np.zeros([0, 3], np.float32), memory[:3].reshape(1, 3))
    assert memory.tolist() == [0, 0, 0, UNTOUCHED]


@pytest.mark.parametrize(("k", "fits"), [(1, True), (20, True), (21, False), (30, False)])
def test_more_loops_than_can_be_computed_are_refused_before_anything_is_written(k, fits):
    """Three loops each time, none of which can be merged with its neighbours."""
    shapes = [[2, 1, 1] * k, [1, 2, 1] * k, [1, 1, 2] * k]
    assert (emulated_cuda.schedule(shapes).kernel != "too many loops") == fits


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


LIMIT = 2**31


@pytest.mark.parametrize(
    ("shapes", "narrow", "wide"),
    [
        (lambda n: [[n, 64], [1, 64], [n, 64]], "multiply rows", "multiply scalar"),
        (lambda n: [[64, n + 1], [1, n + 1], [64, n + 1]], "multiply segments", "multiply scalar"),
        (lambda n: [[n, 64], [n, 64], [n, 1]], "sum rows", "sum rows"),
        (lambda n: [[n, 64], [n, 64], [1, 64]], "sum columns", "sum columns"),
        (lambda n: [[64, n], [64, n], [64, 1]], "sum rows", "sum rows"),
    ],
)
def test_indices_above_31_bits_take_64(shapes, narrow, wide):
    for n, is_narrow in ((LIMIT // 64 - 64, True), (LIMIT // 64 + 64, False)):
        schedule = emulated_cuda.schedule(shapes(n))
        assert schedule.kernel == (narrow if is_narrow else wide)
        assert schedule.has_narrow_indices == is_narrow
    # Then only the product is written element by element; sums are over the same vectors, read element by element.
    assert schedule.is_vectorized == (not wide.startswith("multiply"))


@pytest.mark.parametrize(
    ("shapes", "itemsize", "addresses", "narrow", "wide"),
    [
        (lambda n: [[n], [n], [n]], 2, (2, 0, 0), "multiply segments", "multiply scalar"),
        (lambda n: [[n], [1], [n]], 4, (4, 0, 0), "multiply segments", "multiply scalar"),
        (lambda n: [[n], [n], [n]], 8, (0, 0, 8), "multiply segments", "multiply scalar"),
        (lambda n: [[n], [n], [1]], 2, (0, 0, 0), "sum rows", "sum rows"),
    ],
    ids=["same", "by scalar", "out", "sum"],
)
def test_counts_fit_into_31_bits_as_offsets_do(shapes, itemsize, addresses, narrow, wide):
    """A thread counts what is left of a row, with a sign: 2^31 elements are one too many, though their offsets fit."""
    for n, is_narrow in ((LIMIT - 1, True), (LIMIT, False), (LIMIT + 1, False)):
        schedule = emulated_cuda.schedule(shapes(n), itemsize=itemsize, addresses=addresses)
        assert (schedule.kernel, schedule.has_narrow_indices) == (narrow if is_narrow else wide, is_narrow)


@pytest.mark.parametrize("order", range(3))
@pytest.mark.parametrize("shapes", [[[9, 16], [1, 16]], [[7, 5], [1, 5]], [[7, 5], [7, 1]], [[600], [1]]], ids=str)
def test_a_product_may_be_written_over_its_operand(shapes, order, dtype, rng):
    """TensorFlow may pass an operand's memory as out. Threads without an element must not read what another one writes."""
    lhs, rhs = (random_array(rng, shape, dtype) for shape in shapes)
    expected, out = np.zeros_like(lhs), lhs.copy()
    emulated_cuda.contract(lhs, rhs, expected)
    emulated_cuda.contract(out, rhs, out, order=order)
    np.testing.assert_array_equal(out.view(np.uint8), expected.view(np.uint8))


def test_long_rows_of_any_elements_are_cut_into_segments():
    """Shorter rows are not, nor rows that leave too many threads of their last segment idle."""
    for size, kernel in ((3, "scalar"), (169, "scalar"), (171, "segments"), (257, "scalar"), (343, "segments")):
        assert emulated_cuda.schedule([[9, size], [1, size], [9, size]]).kernel == f"multiply {kernel}"
    assert emulated_cuda.schedule([[9, 1000], [1, 1000], [9, 1000]]).kernel == "multiply rows"
    assert emulated_cuda.schedule([[9, 1], [9, 1], [9, 1000]], addresses=(0, 0, 4)).kernel == "multiply scalar"
    for addresses in ((4, 0, 0), (0, 4, 0), (0, 0, 4)):
        assert (
            emulated_cuda.schedule([[9, 1000], [1, 1000], [9, 1000]], addresses=addresses).kernel == "multiply segments"
        )
        assert emulated_cuda.schedule([[1000], [1000], [1000]], addresses=addresses).kernel == "multiply segments"


def test_elements_of_16_bytes_are_always_vectors():
    """Includes rows of one element, and sums of operands that are both broadcast along the columns."""
    for shapes, kernel in (
        ([[9, 3], [1, 3], [9, 3]], "multiply rows"),
        ([[9, 1], [9, 1], [9, 3]], "multiply rows"),
        ([[9, 3], [9, 3], [9, 1]], "sum rows"),
        ([[9, 1], [9, 1], [1, 3]], "sum columns"),
    ):
        schedule = emulated_cuda.schedule(shapes, itemsize=16, addresses=(16, 48, 80))
        assert (schedule.kernel, schedule.is_vectorized) == (kernel, True)


def test_many_loops_take_64_bits():
    """A kernel has room for 16 loops with 32-bit indices."""
    for k, is_narrow in ((5, True), (6, False)):
        assert emulated_cuda.schedule([[2, 1, 1] * k, [1, 2, 1] * k, [1, 1, 2] * k]).has_narrow_indices == is_narrow


@pytest.mark.parametrize(
    ("shapes", "is_aligned"),
    [
        ([[100], [100], [100]], lambda lhs, rhs, out: lhs == rhs == out),
        ([[100], [1], [100]], lambda lhs, rhs, out: lhs == out),
        ([[100, 64], [1, 64], [100, 64]], lambda lhs, rhs, out: lhs == rhs == out == 0),
        # The address of out does not matter: the order of additions depends only on the rows.
        ([[100, 64], [100, 64], [1, 64]], lambda lhs, rhs, out: lhs == rhs == 0),
    ],
    ids=["flat", "by scalar", "rows", "sums"],
)
def test_vectors_are_read_where_those_of_out_begin(shapes, is_aligned):
    for addresses in itertools.product([0, 4], repeat=3):
        assert emulated_cuda.schedule(shapes, addresses=addresses).is_vectorized == is_aligned(*addresses)
