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

# Each with the two operands as powers of two or sums of them, so that the exact sum is known.
EPSILON = 2.0**-12
SUMS = {
    "cancelling": ([1 + EPSILON, 1 + 2 * EPSILON], [1 + EPSILON, -1.0], 2.0**-24),
    "overflowing_products": ([2.0**100, 2.0**100], [2.0**100, -(2.0**100)], 0.0),
    "overflowing_sum": ([2.0**127, 2.0**127], [1.0, 1.0], np.inf),
    "subnormal_products": ([2.0**-75] * 1024, [2.0**-60] * 1024, 2.0**-125),
    "infinite": ([np.inf, 1.0], [1.0, 1.0], np.inf),
    "undefined": ([np.inf, np.inf], [1.0, -1.0], np.nan),
}
HALF_SUMS = {
    "cancelling": ([1 + 2.0**-6, 1 + 2.0**-5], [1 + 2.0**-6, -1.0], 2.0**-12),
    "overflowing_products": ([2.0**10, 2.0**10], [2.0**10, -(2.0**10)], 0.0),
    "overflowing_sum": ([2.0**15, 2.0**15], [1.0, 1.0], np.inf),
    "subnormal_products": ([2.0**-10] * 1024, [2.0**-10] * 1024, 2.0**-10),
}
BFLOAT16_SUMS = {
    "cancelling": ([1 + 2.0**-6, 1 + 2.0**-5], [1 + 2.0**-6, -1.0], 2.0**-12),
    # Its products have the range of float32, in which they are summed.
    "overflowing_products": ([2.0**100, 2.0**100], [2.0**100, -(2.0**100)], np.nan),
    "overflowing_sum": ([2.0**127, 2.0**127], [1.0, 1.0], np.inf),
}
DOUBLE_SUMS = {
    "cancelling": ([1 + EPSILON, 1 + 2 * EPSILON], [1 + EPSILON, -1.0], 2.0**-24),
    # There is no wider type.
    "overflowing_products": ([2.0**1000, 2.0**1000], [2.0**1000, -(2.0**1000)], np.nan),
}
CASES = {
    tf.float16: HALF_SUMS,
    tf.bfloat16: BFLOAT16_SUMS,
    tf.float32: SUMS,
    tf.float64: DOUBLE_SUMS,
    tf.complex64: SUMS,
    tf.complex128: DOUBLE_SUMS,
}


def op(lhs, rhs):
    return library.custom_gradient_embed_grad(lhs, rhs, tf.constant([], tf.int64), wrt="x")


def by_composed_ops(lhs, rhs):
    return composed.embed_grad(lhs, rhs, tf.constant([], tf.int64), wrt="x")


def by_built_in_ops(lhs, rhs):
    return built_in_function(op, [tf.TensorSpec(lhs.shape, lhs.dtype)] * 2)(lhs, rhs)


BACKENDS = {
    "cpu": op,
    "built_in_ops": by_built_in_ops,
    "composed": by_composed_ops,
    "composed_in_a_function": tf.function(by_composed_ops),
    "xla": tf.function(op, jit_compile=True),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_sums_are_exact_in_the_type_of_sums(dtype, backend):
    for name, (left, right, expected) in CASES[dtype].items():
        lhs, rhs = (np.array(numbers).astype(dtype.real_dtype.as_numpy_dtype) for numbers in (left, right))
        if dtype.is_complex:
            if not np.isfinite([*lhs, *rhs]).all():
                continue  # An infinity by the zero of an imaginary part is undefined.
            # (a + ai) conj(b + bi) = 2ab, and the imaginary parts cancel.
            lhs, rhs = ((array * (1 + 1j)).astype(dtype.as_numpy_dtype) for array in (lhs / 2, rhs))
        found = BACKENDS[backend](tf.constant(lhs), tf.constant(rhs)).numpy()
        if backend == "xla" and np.isnan(expected):
            # XLA fuses a product into the sum: of two that overflow, one never gets to be an infinity.
            assert not np.isfinite(np.real(found).astype(np.float64)), name
        else:
            np.testing.assert_array_equal(np.real(found).astype(np.float64), expected, err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_complex_products_that_are_not_summed_are_rounded_alike(backend, rng):
    """In their own type: two roundings for each part."""
    lhs, rhs = ((rng.normal(size=999) + 1j * rng.normal(size=999)).astype(np.complex64) for _ in range(2))

    def by_op(lhs, rhs):
        return library.custom_gradient_embed_grad(lhs, rhs, tf.constant([999], tf.int64), wrt="x")

    def by_composition(lhs, rhs):
        return composed.embed_grad(lhs, rhs, tf.constant([999], tf.int64), wrt="x")

    elementwise = by_composition if backend.startswith("composed") else by_op
    if backend == "built_in_ops":
        found = built_in_function(elementwise, [tf.TensorSpec([999], tf.complex64)] * 2)(lhs, rhs)
    else:
        found = tf.function(elementwise, jit_compile=backend == "xla")(lhs, rhs)
    exact = (lhs.astype(np.complex128) * rhs.conj()).astype(np.complex64)
    scale = np.abs(lhs) * np.abs(rhs)
    assert np.max(np.abs(found.numpy() - exact) / scale) < 2.0**-22
    if backend != "xla":  # XLA may fuse a product into the sum.
        np.testing.assert_array_equal(found.numpy(), by_op(lhs, rhs).numpy())
