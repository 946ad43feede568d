"""The errors of summed gradients, compared with TensorFlow's multiplication and reduce_sum.

    python -m qa.exactness

It writes docs/reliability/exactness.json. Errors are in units in the last place (ULPs) of the exact result; where the
products cancel, in ULPs of the sum of their absolute values, since the exact result may be anything there.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tests.support.sources import ROOT
from tf_cg_ops._src.core import library

RESULTS = ROOT / "docs" / "reliability" / "exactness.json"
# The bits of the significand, and the least exponent of a normal number.
DTYPES = {
    tf.float16: (11, -14),
    tf.bfloat16: (8, -126),
    tf.float32: (24, -126),
    tf.float64: (53, -1022),
    tf.complex64: (24, -126),
    tf.complex128: (53, -1022),
}
SIZES = (1000, 100_000, 10_000_000)


class Layout(NamedTuple):
    """The layout of the products: the shape of both operands, of the result, and the axes to sum over."""

    operands: Callable[[int], tuple[int, ...]]
    result: tuple[int, ...]
    axes: tuple[int, ...]


# Eight results each: exact sums of more would take hours.
LAYOUTS = {
    "all": Layout(lambda size: (size,), (), (0,)),
    "rows": Layout(lambda size: (8, size // 8), (8, 1), (1,)),
    "columns": Layout(lambda size: (size // 8, 8), (8,), (0,)),
}


def real(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Two factors in float64, not yet rounded to a dtype."""
    if kind == "positive":
        return rng.random(shape), rng.random(shape) / 256  # Sums of ten million such products fit into a half.
    if kind == "normal":
        return rng.normal(size=shape), rng.normal(size=shape) / 256
    # Each product again with the opposite sign, far away, and small ones between that must not get lost.
    large, other = rng.normal(size=shape).ravel(), rng.normal(size=shape).ravel() / 256
    half = large.size // 2
    large[half : 2 * half], other[half : 2 * half] = -large[:half][::-1], other[:half][::-1]
    large[::7] *= 2.0**-10
    return large.reshape(shape), other.reshape(shape)


def factors(seed: int, kind: str, shape: tuple[int, ...], dtype: tf.DType) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of the dtype."""
    rng = np.random.default_rng(seed)
    a, b = real(rng, kind, shape)
    if dtype.is_complex:
        c, d = real(rng, kind, shape)
        a, b = a + 1j * c, b + 1j * d
    return a.astype(dtype.as_numpy_dtype), b.astype(dtype.as_numpy_dtype)


def split(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A float64 as the sum of two with at most 26 bits each (Veltkamp; Dekker 1971)."""
    scaled = 134217729.0 * a
    high = scaled - (scaled - a)
    return high, a - high


def exact_terms(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    """Numbers whose exact sum is that of the products (Dekker 1971)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = split(a), split(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return [product, error]


def exact_sum(products: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
    """The sum of products of float64 vectors, rounded once, and that of their absolute values."""
    terms = np.concatenate([term for a, b in products for term in exact_terms(a, b)])
    return math.fsum(terms.tolist()), math.fsum(np.abs(terms).tolist())


def parts(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Real and imaginary part in float64."""
    wide = array.astype(np.complex128)
    return np.ascontiguousarray(wide.real), np.ascontiguousarray(wide.imag)


def exact(dy: np.ndarray, gx: np.ndarray, layout: Layout) -> Iterator[tuple[int, str, float, float]]:
    """For each result its place, its part, the exact sum of dy * conj(gx) and that of the absolute values."""
    columns = [np.moveaxis(array, layout.axes[0], -1).reshape(-1, array.shape[layout.axes[0]]) for array in (dy, gx)]
    for i, (a, b) in enumerate(zip(*columns, strict=True)):
        if not np.iscomplexobj(dy):
            yield i, "real", *exact_sum([(a.astype(np.float64), b.astype(np.float64))])
            continue
        (a_re, a_im), (b_re, b_im) = parts(a), parts(b)
        yield i, "real", *exact_sum([(a_re, b_re), (a_im, b_im)])
        yield i, "imag", *exact_sum([(a_im, b_re), (-a_re, b_im)])


def ulp(value: float, dtype: tf.DType) -> float:
    """The distance of the dtype's numbers around a value."""
    bits, least = DTYPES[dtype]
    exponent = math.frexp(value)[1] - 1 if value else least
    return math.ldexp(1.0, max(exponent, least) + 1 - bits)


def ours(dy: tf.Tensor, gx: tf.Tensor, layout: Layout) -> tf.Tensor:
    """By the kernel of this library."""
    target = tf.constant(layout.result, tf.int64, [len(layout.result)])
    # Not an axis of functions: the last operand has the shape of the result and is broadcast.
    return library.custom_gradient_embed_grad(dy, gx, target, wrt="x")


def theirs(dy: tf.Tensor, gx: tf.Tensor, layout: Layout) -> tf.Tensor:
    """By TensorFlow's own operations."""
    return tf.reduce_sum(dy * tf.math.conj(gx), layout.axes)


def errors(dtype: tf.DType, kind: str, name: str, size: int) -> dict[str, Any]:
    """One row: the largest errors of both."""
    layout = LAYOUTS[name]
    dy, gx = factors(size, kind, layout.operands(size), dtype)
    results = {
        which: np.ravel(compute(tf.constant(dy), tf.constant(gx), layout).numpy()).astype(np.complex128)
        for which, compute in (("ours", ours), ("reduce_sum", theirs))
    }
    largest = dict.fromkeys(results, 0.0)
    for i, part, value, magnitude in exact(dy, gx, layout):
        unit = ulp(magnitude if kind == "cancelling" else value, dtype)
        for which, result in results.items():
            error = abs(float(getattr(result[i], part)) - value) / unit
            # A nan is an infinite error.
            largest[which] = max(largest[which], error if math.isfinite(error) else math.inf)
    return {"dtype": dtype.name, "numbers": kind, "layout": name, "size": size, **largest}


def main() -> None:
    """Measures all and writes the file."""
    rows = []
    cases = [
        (dtype, kind, layout, size)
        for size in SIZES
        for dtype in DTYPES
        for kind in ("positive", "normal", "cancelling")
        for layout in LAYOUTS
    ]
    for number, case in enumerate(cases, start=1):
        rows.append(errors(*case))
        print(f"\r{number} of {len(cases)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    RESULTS.parent.mkdir(exist_ok=True)
    versions = {"tensorflow": tf.__version__, "numpy": np.__version__}
    RESULTS.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
