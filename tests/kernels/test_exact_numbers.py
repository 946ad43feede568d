"""Special numbers follow IEEE 754, without special cases; sums are exact up to rounding to their type."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.core import library

from ..support.tensors import DTYPES, bits

REAL = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
of_real_dtypes = pytest.mark.parametrize("dtype", REAL, ids=lambda dtype: dtype.name)


def range_of(dtype):
    return ml_dtypes.finfo(dtype.as_numpy_dtype)


def special_numbers(dtype):
    """Zeros, infinities, nan, the ends of the range and numbers between, in the dtype."""
    largest, tiny, eps = (float(number) for number in (dtype.max, range_of(dtype).tiny, range_of(dtype).eps))
    numbers = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, largest, -largest, tiny, -tiny, 1.0 + eps]
    return np.array(numbers).astype(dtype.as_numpy_dtype)


def gradient(dy, gx, shape):
    target = tf.constant(shape, tf.int64, [len(shape)])
    return library.custom_gradient_embed_grad(tf.constant(dy), tf.constant(gx), target, wrt="x").numpy()


@of_real_dtypes
def test_products_of_special_numbers(dtype):
    """What NumPy gives, in full vectors and in remainders. On CPUs, TensorFlow treats subnormal numbers as zero.

    In eager mode, TensorFlow multiplies few numbers, and an op of this library many.
    """
    numbers = special_numbers(dtype)
    a, b = (grid.ravel() for grid in np.meshgrid(numbers, numbers))
    with np.errstate(all="ignore"):
        expected = np.multiply(a, b, dtype=dtype.as_numpy_dtype)
    if dtype != tf.float16:
        subnormal = np.abs(expected.astype(np.float64)) < float(range_of(dtype).tiny)
        expected = np.where(subnormal, np.copysign(expected.dtype.type(0), expected), expected)
    for times in (1, 500):
        x, dy, gx = tf.ones([times * a.size], dtype), *(tf.constant(np.tile(array, times)) for array in (a, b))
        with tf.GradientTape() as tape:
            tape.watch(x)
            h = cg.embed_gradient(x, gx, x)
        actual, wanted = tape.gradient(h, x, dy).numpy(), np.tile(expected, times)
        undefined = np.isnan(wanted.astype(np.float64))  # The payload of a nan is not compared.
        np.testing.assert_array_equal(np.isnan(actual.astype(np.float64)), undefined)
        np.testing.assert_array_equal(bits(actual[~undefined]), bits(wanted[~undefined]))


@pytest.mark.parametrize("dtype", [tf.complex64, tf.complex128], ids=lambda dtype: dtype.name)
def test_products_of_special_complex_numbers(dtype):
    """Computed from the four products, infinite or not; C's rules for complex infinities would be special cases."""
    parts = [np.ravel(grid) for grid in np.meshgrid(*[special_numbers(dtype.real_dtype)] * 4)]
    a, b = (np.empty(parts[0].shape, dtype.as_numpy_dtype) for _ in range(2))
    a.real, a.imag, b.real, b.imag = parts
    out = gradient(a, b, a.shape)
    with np.errstate(all="ignore"):
        expected = a.real * b.real + a.imag * b.imag, a.imag * b.real - a.real * b.imag
    for actual, part in zip((out.real, out.imag), expected, strict=True):
        np.testing.assert_array_equal(actual, np.where(np.abs(part) < np.finfo(part.dtype).tiny, 0.0, part))


@pytest.mark.parametrize(("size", "traced"), [(3, False), (300_000, True)], ids=["eager", "traced"])
@of_real_dtypes
def test_subnormal_numbers_are_what_they_are_in_tf_multiply(dtype, size, traced):
    smallest, count = float(range_of(dtype).smallest_subnormal), 2 ** range_of(dtype).nmant
    a = np.resize(smallest * np.arange(1, count, max(1, count >> 7)), size).astype(dtype.as_numpy_dtype)
    b = np.resize([1.0, 0.5, 2.0, -3.0], size).astype(dtype.as_numpy_dtype)

    def both(a, b):
        return library.custom_gradient_embed_grad(a, b, tf.constant([size], tf.int64), wrt="x"), a * b

    ours, theirs = (tf.function(both) if traced else both)(tf.constant(a), tf.constant(b))
    np.testing.assert_array_equal(bits(ours.numpy()), bits(theirs.numpy()))


def factors(rng, kind, shape):
    if kind == "positive":
        return rng.random(shape), rng.random(shape)
    # Each product comes again with the opposite sign, far away, with small ones in between that must not get lost.
    large, other = rng.normal(size=[2, np.prod(shape)])
    half = large.size // 2
    large[half:], other[half:] = -large[:half][::-1], other[:half][::-1]
    large[::7] *= 2.0**-10
    return large.reshape(shape), other.reshape(shape)


# The shapes of both operands and of the result.
LAYOUTS = {"all": ([4000], []), "rows": ([8, 500], [8, 1]), "columns": ([500, 8], [8])}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_sums_are_off_by_half_a_unit_in_the_last_place_if_a_wider_type_adds_them(dtype, layout, rng):
    """Or else by one of what was added, as where products cancel, in whose sum nothing can remain of such a unit."""
    shape, result = LAYOUTS[layout]
    axis, is_wider = len(shape) - 1 if layout == "rows" else 0, dtype not in (tf.float64, tf.complex128)
    for kind in ("positive", "cancelling") if is_wider else ("cancelling",):
        (a, b), (c, d) = factors(rng, kind, shape), factors(rng, kind, shape)
        a, b = (p + 1j * q if dtype.is_complex else p for p, q in ((a, c), (b, d)))
        a, b = a.astype(dtype.as_numpy_dtype), b.astype(dtype.as_numpy_dtype)
        found = gradient(a, b, result)
        a, b = a.astype(np.clongdouble), b.astype(np.clongdouble)
        for part, *products in (
            ("real", a.real * b.real, a.imag * b.imag),
            ("imag", a.imag * b.real, -a.real * b.imag),
        )[: 1 + dtype.is_complex]:
            exact = sum(products).sum(axis).reshape(result)
            size = exact if kind == "positive" else sum(map(np.abs, products)).sum(axis).reshape(result)
            unit = np.spacing(np.abs(size).astype(dtype.real_dtype.as_numpy_dtype)).astype(np.longdouble)
            error = np.abs(getattr(found, part).astype(np.longdouble) - exact)
            assert np.max(error / unit) <= (0.505 if is_wider else 1.0)  # A nan is not.
