"""Special numbers follow IEEE 754, without special cases; sums are exact up to rounding to their type."""

import math

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.core import library

from ..support.tensors import DTYPES, bits
from . import exact_sums as exactness

REAL = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
WIDER_SUMS = [dtype for dtype in DTYPES if dtype not in (tf.float64, tf.complex128)]


def special_numbers(dtype):
    """Zeros, infinities, nan, the ends of the range and numbers between, in the dtype."""
    largest = float(dtype.max)
    bits_, least = exactness.DTYPES[dtype]
    tiny = math.ldexp(1.0, least)
    numbers = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, largest, -largest, tiny, -tiny, 1.0 + 2.0 ** (1 - bits_)]
    return np.array(numbers).astype(dtype.as_numpy_dtype)


def gradient(dy, gx, shape):
    target = tf.constant(shape, tf.int64, [len(shape)])
    return library.custom_gradient_embed_grad(tf.constant(dy), tf.constant(gx), target, wrt="x").numpy()


@pytest.mark.parametrize("dtype", REAL, ids=lambda dtype: dtype.name)
def test_products_of_special_numbers(dtype):
    """Bit for bit what NumPy gives, except a nan's payload; in full vectors and in remainders."""
    numbers = special_numbers(dtype)
    a, b = (np.tile(grid.ravel(), 500) for grid in np.meshgrid(numbers, numbers))
    out = gradient(a, b, a.shape)
    with np.errstate(all="ignore"):
        expected = np.multiply(a, b, dtype=dtype.as_numpy_dtype)
    # On CPUs, TensorFlow runs all kernels with subnormal numbers treated as zero.
    subnormal = np.abs(expected.astype(np.float64)) < float(math.ldexp(1.0, exactness.DTYPES[dtype][1]))
    if dtype != tf.float16:
        expected = np.where(subnormal, np.copysign(expected.dtype.type(0), expected), expected)
    undefined = np.isnan(expected.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(out.astype(np.float64)), undefined)
    np.testing.assert_array_equal(bits(out[~undefined]), bits(expected[~undefined]))


@pytest.mark.parametrize("dtype", REAL, ids=lambda dtype: dtype.name)
def test_the_eager_gradient_of_few_numbers_is_that_of_many(dtype):
    """TensorFlow multiplies few numbers, and an op of this library many."""
    numbers = special_numbers(dtype)
    dy, gx = (grid.ravel() for grid in np.meshgrid(numbers, numbers))

    def gradient_of(times):
        x, upstream = tf.ones([times * dy.size], dtype), tf.constant(np.tile(dy, times))
        with tf.GradientTape() as tape:
            tape.watch(x)
            h = cg.embed_gradient(x, tf.constant(np.tile(gx, times)), x)
        return tape.gradient(h, x, upstream).numpy()

    few, many = gradient_of(1), gradient_of(100)
    undefined = np.isnan(few.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(many.astype(np.float64)), np.tile(undefined, 100))
    np.testing.assert_array_equal(bits(many[~np.tile(undefined, 100)]), np.tile(bits(few[~undefined]), 100))


@pytest.mark.parametrize("dtype", [tf.complex64, tf.complex128], ids=lambda dtype: dtype.name)
def test_products_of_special_complex_numbers(dtype):
    """Computed from the four products, infinite or not; C's rules for complex infinities would be special cases."""
    numbers = special_numbers(dtype.real_dtype)
    parts = [np.ravel(grid) for grid in np.meshgrid(*[numbers] * 4)]
    a, b = (np.empty(parts[0].shape, dtype.as_numpy_dtype) for _ in range(2))
    a.real, a.imag, b.real, b.imag = parts
    out = gradient(a, b, a.shape)
    with np.errstate(all="ignore"):
        re = a.real * b.real + a.imag * b.imag
        im = a.imag * b.real - a.real * b.imag
    for actual, expected in ((out.real, re), (out.imag, im)):
        np.testing.assert_array_equal(actual, flushed(expected))


def flushed(array):
    return np.where(np.abs(array) < np.finfo(array.dtype).tiny, 0.0, array)


@pytest.mark.parametrize(("size", "traced"), [(3, False), (300_000, True)], ids=["eager", "traced"])
@pytest.mark.parametrize("dtype", REAL, ids=lambda dtype: dtype.name)
def test_subnormal_numbers_are_what_they_are_in_tf_multiply(dtype, size, traced):
    bits_, least = exactness.DTYPES[dtype]
    subnormals = np.ldexp(np.arange(1, 2 ** (bits_ - 1), max(1, 2 ** (bits_ - 8)), dtype=np.float64), least + 1 - bits_)
    a = np.resize(subnormals, size).astype(dtype.as_numpy_dtype)
    b = np.resize([1.0, 0.5, 2.0, -3.0], size).astype(dtype.as_numpy_dtype)

    def both(a, b):
        target = tf.constant([size], tf.int64)
        return library.custom_gradient_embed_grad(a, b, target, wrt="x"), a * b

    ours, theirs = (tf.function(both) if traced else both)(tf.constant(a), tf.constant(b))
    np.testing.assert_array_equal(bits(ours.numpy()), bits(theirs.numpy()))


@pytest.mark.parametrize("layout", exactness.LAYOUTS)
@pytest.mark.parametrize("dtype", WIDER_SUMS, ids=lambda dtype: dtype.name)
def test_sums_in_a_wider_type_are_off_by_half_a_unit_in_the_last_place(dtype, layout):
    for kind in ("positive", "cancelling"):
        assert exactness.errors(dtype, kind, layout, 4_000) <= 0.505


@pytest.mark.parametrize("layout", exactness.LAYOUTS)
@pytest.mark.parametrize("dtype", [tf.float64, tf.complex128], ids=lambda dtype: dtype.name)
def test_sums_in_their_own_type_are_off_by_little_of_what_was_added(dtype, layout):
    assert exactness.errors(dtype, "cancelling", layout, 4_000) <= 1.0
