"""Sums and products that show how they are computed: the GPU kernels, emulated, give the bits of the CPU's kernels."""

import numpy as np
import pytest

from ..support import contraction, emulated_cuda
from ..support.tensors import DTYPES

# Sums have a wider range there.
WIDER = ("float16", "float32", "complex64")


def extremes(dtype):
    """The largest number, the smallest normal and the smallest subnormal one, and the distance of 1 to the next."""
    if dtype.name == "bfloat16":
        return 3.3895e38, 2.0**-126, 2.0**-133, 2.0**-7
    info = np.finfo(np.dtype(dtype.as_numpy_dtype).type(0).real.dtype)
    return tuple(float(x) for x in (info.max, info.tiny, info.smallest_subnormal, info.eps))


def cancelling(dtype):
    """Products that are too large for the type, or need more places than it has, and take each other away."""
    largest, _, _, eps = extremes(dtype)
    a = 1 + eps * 2 ** round(-np.log2(eps) / 2 - 1)
    return [([largest, largest], [largest, -largest]), ([a, 1.0], [a, -(2 * a - 1)]), ([a, a, -a], [a, a, a])]


def overflowing(dtype):
    """Sums that are too large for the type, or only the sum of a part of them is."""
    largest, *_ = extremes(dtype)
    # Without a wider range for sums, the order decides whether they come back.
    comes_back = [([largest, largest, largest], [1.0, 1.0, -1.0])] if dtype.name in WIDER else []
    return [
        *comes_back,
        ([largest, largest], [1.0, 1.0]),
        ([largest, largest], [largest, 1.0]),
        ([np.inf, 1.0], [1.0, 1.0]),
    ]


def subnormal(dtype):
    """Products that are too small for the type, alone or each of them."""
    _, tiny, smallest, _ = extremes(dtype)
    return [
        ([tiny, tiny], [0.5, 0.25]),
        ([smallest] * 4, [0.25] * 4),
        ([smallest, tiny], [0.5, -0.5]),
        ([tiny, 1.0], [tiny, smallest]),
        ([smallest, smallest], [1.0, 3.0]),
    ]


def both(lhs, rhs, out_shape, wrt, dtype):
    results = []
    for contract in (emulated_cuda.contract, contraction.contract):
        out = np.zeros(out_shape, dtype.as_numpy_dtype)
        contract(lhs, rhs, out, wrt)
        results.append(out)
    return results


def assert_the_same(on_gpu, on_cpu):
    """The same bits, but for those of a nan: a GPU has one nan."""
    on_gpu, on_cpu = (np.atleast_1d(array).view(array.real.dtype) for array in (on_gpu, on_cpu))
    is_nan = np.isnan(on_cpu.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(on_gpu.astype(np.float64)), is_nan)
    np.testing.assert_array_equal(on_gpu[~is_nan].view(np.uint8), on_cpu[~is_nan].view(np.uint8))


def forms(lhs, rhs):
    """The same few products along a row, in columns, with a tail and many times, and not summed up."""
    n = len(lhs)
    yield lhs, rhs, [1]
    yield np.tile(lhs, [3, 1]), np.tile(rhs, [3, 1]), [3, 1]
    for columns in (1, 5, 16):
        yield np.tile(lhs[:, None], columns), np.tile(rhs[:, None], columns), [1, columns]
    padding = np.zeros([40 - n], lhs.dtype)
    yield np.concatenate([lhs, padding]), np.concatenate([rhs, padding]), [1]
    yield lhs, rhs, [n]


@pytest.mark.parametrize("kind", [cancelling, overflowing, subnormal])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_sums_are_those_of_the_cpu(kind, dtype):
    for pair in kind(dtype):
        with np.errstate(all="ignore"):
            lhs, rhs = (np.array(numbers).astype(dtype.as_numpy_dtype) for numbers in pair)
            if dtype.is_complex:
                lhs, rhs = lhs * np.array(1 - 1j, lhs.dtype), rhs * np.array(1 + 0.5j, rhs.dtype)
        for wrt in ("x", "fx"):  # With the conjugate, and without.
            for left, right, out_shape in forms(lhs, rhs):
                assert_the_same(*both(left, right, out_shape, wrt, dtype))


def test_float32_is_multiplied_in_float64():
    """By the numbers, so that the CPU and the GPU are not wrong together."""
    out = np.zeros([1], np.float32)
    a = np.float32(1 + 2.0**-12)
    for lhs, rhs, expected in [
        ([1e30, 1e30], [1e30, -1e30], 0.0),
        ([a, 1.0], [a, -(1 + 2.0**-11)], 2.0**-24),
        ([1e-30, 1e-30], [1e-30, 1e20], 1e-10),
        ([1e-25] * 3, [1e-21] * 3, 3e-46),
    ]:
        for contract in (emulated_cuda.contract, contraction.contract):
            contract(np.array(lhs, np.float32), np.array(rhs, np.float32), out)
            assert out[0] == np.float32(expected)


def test_bfloat16_products_overflow_as_float32():
    """A fused operation would not: the largest product is infinite before a sum takes it back."""
    bfloat16 = next(dtype for dtype in DTYPES if dtype.name == "bfloat16").as_numpy_dtype
    out = np.zeros([1, 8], bfloat16)
    lhs, rhs = (np.tile(np.array(column, bfloat16)[:, None], 8) for column in ([-3e38, 1.9e19], [1.0, 1.9e19]))
    for contract in (emulated_cuda.contract, contraction.contract):
        contract(lhs, rhs, out)
        assert np.all(out == np.inf)
