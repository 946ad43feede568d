"""Random tensors of every dtype, their bytes and addresses, and how close a gradient must be."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128]


def random_array(rng, shape, dtype=tf.float64):
    """Normally distributed numbers as a NumPy array of `dtype`, so that nothing is rounded before the op under test."""
    numbers = rng.normal(size=shape)
    if dtype.is_complex:
        numbers = numbers + 1j * rng.normal(size=shape)
    return np.asarray(numbers).astype(dtype.as_numpy_dtype)


def address(tensor):
    """The address of the tensor's buffer."""
    if tensor.dtype == tf.bfloat16:
        tensor = tf.bitcast(tensor, tf.uint16)  # Shares the buffer; Python's buffer protocol does not support bfloat16.
    return np.asarray(memoryview(tensor)).ctypes.data


def bits(array):
    """The array's bytes, so that nan payloads and the sign of zero count."""
    return np.ascontiguousarray(array).view(np.uint8)


def ones(shape, dtype=tf.float32):
    return tf.ones(shape, dtype)


# The relative tolerance for one product or a sum that is kept in a wider type: a few units in the last place.
GRADIENT_RTOL = {
    tf.float16: 2e-3,
    tf.bfloat16: 2e-2,
    tf.float32: 1e-6,
    tf.float64: 1e-13,
    tf.complex64: 1e-6,
    tf.complex128: 1e-13,
}


def assert_gradient_close(actual, expected, dtype, scale=1.0):
    """`scale`: the size of the largest terms, if they can cancel."""
    actual = np.asarray(actual.numpy() if tf.is_tensor(actual) else actual)
    assert actual.shape == np.shape(expected)
    wide = actual.astype(np.complex128 if dtype.is_complex else np.float64)
    rtol = GRADIENT_RTOL[dtype]
    np.testing.assert_allclose(wide, expected, rtol=rtol, atol=rtol * scale)


def _name(value):
    return getattr(value, "name", getattr(value, "__name__", value))


def pairs(rows, columns, quick=1):
    """All pairs of the two lists. Each row has `quick` columns, in turn, that are not marked slow."""
    rows, columns = list(rows), list(columns)
    return [
        pytest.param(
            row,
            column,
            id=f"{_name(row)}-{_name(column)}",
            marks=[] if (j - i * quick) % len(columns) < quick else pytest.mark.slow,
        )
        for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns))
    ]
