"""Measures how far the outputs of two models are apart: not by a bit, by rounding, or by more."""

import numpy as np
import tensorflow as tf


def largest_difference(expected: dict[str, np.ndarray], actual: dict[str, np.ndarray]) -> tuple[str, float]:
    """The name of the arrays that differ most, and their difference as a multiple of what rounding explains.

    0 means that no bit differs.
    """
    if expected.keys() != actual.keys():
        return ", ".join(sorted(expected.keys() ^ actual.keys())), float("inf")
    differences = {name: _difference(expected[name], actual[name]) for name in expected}
    largest = max(differences, key=lambda name: differences[name], default="")
    return largest, differences.get(largest, 0.0)


def _difference(expected: np.ndarray, actual: np.ndarray) -> float:
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return float("inf")
    if expected.dtype == object or not (_tf_dtype(expected).is_floating or _tf_dtype(expected).is_complex):
        return 0.0 if np.array_equal(expected, actual) else float("inf")
    same_bits = _rows_of_bytes(expected) == _rows_of_bytes(actual)
    differ = ~(same_bits.all(axis=1) | (np.isnan(expected) & np.isnan(actual)).ravel())
    if not differ.any():
        return 0.0
    double = np.complex128 if np.iscomplexobj(expected) else np.float64
    a, b = expected.astype(double).ravel(), actual.astype(double).ravel()
    if not (np.isfinite(a[differ]).all() and np.isfinite(b[differ]).all()):
        return float("inf")
    largest = np.max(np.abs(a[np.isfinite(a)]), initial=0.0)
    # A sum in another order may differ by more than the unit in the last place, but by less than its square root.
    rounding = largest * float(np.spacing(np.abs(np.ones([], expected.dtype)))) ** 0.75
    if rounding == 0.0:
        return float("inf")
    return max(float(np.max(np.abs(a - b)[differ])) / rounding, np.finfo(np.float64).tiny)


def _tf_dtype(array: np.ndarray) -> tf.DType:
    return tf.as_dtype(array.dtype)


def _rows_of_bytes(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8).reshape(array.size, array.itemsize)
