"""The errors of summed gradients, in units in the last place (ULPs) of the exact result.

If the products cancel, in ULPs of the sum of their absolute values, because the exact result can be tiny then.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import library

# The bits of the significand, and the least exponent of a normal number.
DTYPES = {
    tf.float16: (11, -14),
    tf.bfloat16: (8, -126),
    tf.float32: (24, -126),
    tf.float64: (53, -1022),
    tf.complex64: (24, -126),
    tf.complex128: (53, -1022),
}


class Layout(NamedTuple):
    """The layout of the products: the shape of both operands, of the result, and the axes to sum over."""

    operands: Callable[[int], tuple[int, ...]]
    result: tuple[int, ...]
    axes: tuple[int, ...]


# Eight results each, because more exact sums would take hours.
LAYOUTS = {
    "all": Layout(lambda size: (size,), (), (0,)),
    "rows": Layout(lambda size: (8, size // 8), (8, 1), (1,)),
    "columns": Layout(lambda size: (size // 8, 8), (8,), (0,)),
}


def real(rng, kind, shape):
    """Two factors in float64, not yet rounded to a dtype."""
    if kind == "positive":
        return rng.random(shape), rng.random(shape) / 256  # Sums of ten million such products fit into a half.
    # Each product comes again with the opposite sign, far away, with small ones in between that must not get lost.
    large, other = rng.normal(size=shape).ravel(), rng.normal(size=shape).ravel() / 256
    half = large.size // 2
    large[half : 2 * half], other[half : 2 * half] = -large[:half][::-1], other[:half][::-1]
    large[::7] *= 2.0**-10
    return large.reshape(shape), other.reshape(shape)


def factors(seed, kind, shape, dtype):
    """Two arrays of the dtype."""
    rng = np.random.default_rng(seed)
    a, b = real(rng, kind, shape)
    if dtype.is_complex:
        c, d = real(rng, kind, shape)
        a, b = a + 1j * c, b + 1j * d
    return a.astype(dtype.as_numpy_dtype), b.astype(dtype.as_numpy_dtype)


def split(a):
    """A float64 as the sum of two with at most 26 bits each (Veltkamp; Dekker 1971)."""
    scaled = 134217729.0 * a
    high = scaled - (scaled - a)
    return high, a - high


def exact_sum(products):
    """The sum of products of float64 vectors, rounded once, and the sum of their absolute values (Dekker 1971)."""
    terms = []
    for a, b in products:
        (a_high, a_low), (b_high, b_low), product = split(a), split(b), a * b
        error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
        terms += [product, error]
    terms = np.concatenate(terms)
    return math.fsum(terms.tolist()), math.fsum(np.abs(terms).tolist())


def exact(dy, gx, layout):
    """For each result: its place, its part, the exact sum of dy * conj(gx), and the sum of the absolute values."""
    columns = [np.moveaxis(array, layout.axes[0], -1).reshape(-1, array.shape[layout.axes[0]]) for array in (dy, gx)]
    for i, (a, b) in enumerate(zip(*columns, strict=True)):
        a, b = a.astype(np.complex128), b.astype(np.complex128)
        yield i, "real", *exact_sum([(a.real.copy(), b.real.copy()), (a.imag.copy(), b.imag.copy())])
        yield i, "imag", *exact_sum([(a.imag.copy(), b.real.copy()), (-a.real, b.imag.copy())])


def ulp(value, dtype):
    """The distance of the dtype's numbers around a value."""
    bits, least = DTYPES[dtype]
    exponent = math.frexp(value)[1] - 1 if value else least
    return math.ldexp(1.0, max(exponent, least) + 1 - bits)


def errors(dtype, kind, name, size):
    """The largest error of a layout's sums."""
    layout = LAYOUTS[name]
    dy, gx = factors(size, kind, layout.operands(size), dtype)
    target = tf.constant(layout.result, tf.int64, [len(layout.result)])
    # Without an axis: the last operand has the shape of the result and is broadcast.
    results = library.custom_gradient_embed_grad(tf.constant(dy), tf.constant(gx), target, wrt="x").numpy()
    results = np.ravel(results).astype(np.complex128)
    largest = 0.0
    for i, part, value, magnitude in exact(dy, gx, layout):
        error = abs(float(getattr(results[i], part)) - value) / ulp(magnitude if kind == "cancelling" else value, dtype)
        largest = max(largest, error if math.isfinite(error) else math.inf)  # A nan is an infinite error.
    return largest
