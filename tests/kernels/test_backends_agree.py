"""Sums that cancel, overflow on the way or add up subnormal numbers are the same from every backend.

The products of a sum are taken in the sum's own type: float64 for float32, float32 for the 16-bit types.
"""

import numpy as np
import pytest
import tensorflow as tf

from tf_cg_ops._src.core import library
from tf_cg_ops._src.ops import composed

from ..support.modes import built_in_function
from ..support.tensors import DTYPES
from . import contraction, emulated_cuda


def sums(bits, large, of_large, largest=None, small=None):
    """Operands and the exact sum: each operand is a power of two, or a sum of some.

    The products of `large` numbers overflow, and so does a sum of two of the `largest`; products of `small` are subnormal.
    """
    epsilon = 2.0**-bits
    found = {
        "cancelling": ([1 + epsilon, 1 + 2 * epsilon], [1 + epsilon, -1.0], epsilon**2),
        "overflowing_products": ([large, large], [large, -large], of_large),
    }
    if largest:
        found["overflowing_sum"] = ([largest, largest], [1.0, 1.0], np.inf)
    if small:
        found["subnormal_products"] = ([small[0]] * 1024, [small[1]] * 1024, 1024 * small[0] * small[1])
    return found


SINGLE = sums(12, 2.0**100, 0.0, 2.0**127, (2.0**-75, 2.0**-60))
DOUBLE = sums(12, 2.0**1000, np.nan)  # Has no wider type.
CASES = {
    tf.float16: sums(6, 2.0**10, 0.0, 2.0**15, (2.0**-10, 2.0**-10)),
    tf.bfloat16: sums(6, 2.0**100, np.nan, 2.0**127),  # Its products are summed in float32, and have its range.
    tf.float32: SINGLE,
    tf.float64: DOUBLE,
    tf.complex64: SINGLE,
    tf.complex128: DOUBLE,
}
# For every type.
SPECIAL = {
    "infinite": ([np.inf, 1.0], [1.0, 1.0], np.inf),
    "infinite_and_negative": ([1.0, -np.inf, 2.0], [1.0, 1.0, 1.0], -np.inf),
    "undefined": ([np.inf, np.inf], [1.0, -1.0], np.nan),
    "with_nan": ([1.0, np.nan, np.inf], [1.0, 1.0, 1.0], np.nan),
    "zeros_of_both_signs": ([-0.0, 0.0], [1.0, 1.0], 0.0),
    "nothing": ([], [], 0.0),
    "of_large_and_small_ones": ([1.0, 3.0, -1.0, -3.0, 0.5], [1.0] * 5, 0.5),
}


def op(lhs, rhs):
    return library.custom_gradient_embed_grad(lhs, rhs, tf.constant([], tf.int64), wrt="x")


def by_composed_ops(lhs, rhs):
    return composed.embed_grad(lhs, rhs, tf.constant([], tf.int64), wrt="x")


def by_built_in_ops(lhs, rhs):
    return built_in_function(op, [tf.TensorSpec(lhs.shape, lhs.dtype)] * 2)(lhs, rhs)


def in_all_layouts(contract):
    """The same sum along a row, as one of several columns, and ending within a vector: all must have the same bits."""

    def call(lhs, rhs):
        lhs, rhs = lhs.numpy(), rhs.numpy()
        padding = np.zeros([1000], lhs.dtype)
        results = []
        for left, right, shape in [
            (lhs, rhs, [1]),
            (np.tile(lhs, [3, 1]), np.tile(rhs, [3, 1]), [3, 1]),
            *((np.tile(lhs[:, None], n), np.tile(rhs[:, None], n), [1, n]) for n in (1, 5, 16)),
            (np.concatenate([lhs, padding]), np.concatenate([rhs, padding]), [1]),
        ]:
            out = np.zeros(shape, lhs.dtype)
            contract(left, right, out)
            results += [*out.ravel()]
        np.testing.assert_array_equal(np.array(results, np.complex128), np.complex128(results[0]))
        return tf.constant(results[0])

    return call


BACKENDS = {
    "cpu": op,
    "cpu_in_all_layouts": in_all_layouts(contraction.contract),
    "built_in_ops": by_built_in_ops,
    "composed": by_composed_ops,
    "composed_in_a_function": tf.function(by_composed_ops),
    "xla": tf.function(op, jit_compile=True),
    "gpu_in_all_layouts": in_all_layouts(emulated_cuda.contract),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_sums_are_exact_in_the_type_of_sums(dtype, backend):
    for name, (left, right, expected) in (CASES[dtype] | SPECIAL).items():
        lhs, rhs = (np.array(numbers).astype(dtype.real_dtype.as_numpy_dtype) for numbers in (left, right))
        if dtype.is_complex:
            if not np.isfinite([*lhs, *rhs]).all():
                continue  # An infinity by the zero of an imaginary part is undefined.
            # (a + ai) conj(b + bi) = 2ab, and the imaginary parts cancel.
            lhs, rhs = ((array * (1 + 1j)).astype(dtype.as_numpy_dtype) for array in (lhs / 2, rhs))
        found = BACKENDS[backend](tf.constant(lhs), tf.constant(rhs)).numpy()
        if backend == "xla" and np.isnan(expected):
            # XLA fuses a product into the sum, so if two products overflow, one never becomes an infinity.
            assert not np.isfinite(np.real(found).astype(np.float64)), name
        else:
            np.testing.assert_array_equal(np.real(found).astype(np.float64), expected, err_msg=name)
