"""The `vjp` and `jvp` of a function that returns its gradients: products with them, in NumPy.

`batch_dims` are the leading dimensions of a batch, 0 or 1; None stands for an elementwise function.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def dtype_for(value: tf.DType, x: tf.DType) -> tf.DType:
    """The dtype of a gradient, so that products with it are not rounded to 16 bits."""
    is_double = value in (tf.float64, tf.complex128)
    if value.is_complex or x.is_complex:
        return tf.complex128 if is_double else tf.complex64
    return tf.float64 if is_double else tf.float32


def vjp(gradient: np.ndarray, dy: np.ndarray, x_shape: Any, batch_dims: int | None) -> np.ndarray:
    """The sum over the dimensions of the value of dy * conj(gradient)."""
    dy, conjugate = dy.astype(gradient.dtype), np.conj(gradient)
    if batch_dims is not None:
        rows, matrices = _examples(dy.shape, dy, batch_dims), _examples(dy.shape, conjugate, batch_dims)
        return (np.swapaxes(rows, 1, 2) @ matrices).reshape(x_shape)
    dx = dy * conjugate
    first = dx.ndim - len(x_shape)
    stretched = [i for i, size in enumerate(x_shape, first) if size == 1]
    return dx.sum((*range(first), *stretched)).reshape(x_shape)


def jvp(gradients: Sequence[np.ndarray], tangents: Sequence[np.ndarray], y_shape: Any, batch_dims: int | None) -> Any:
    """The sum over the inputs and their dimensions of gradient * tangent."""
    total: Any = np.zeros(y_shape, np.float32)
    for gradient, tangent in zip(gradients, tangents, strict=True):
        tangent = tangent.astype(gradient.dtype)
        if batch_dims is not None:
            columns = _examples(tangent.shape, tangent, batch_dims)
            total = total + (_examples(y_shape, gradient, batch_dims) @ columns).reshape(y_shape)
        else:
            total = total + gradient * tangent
    return total


def _examples(shape: Any, array: np.ndarray, batch_dims: int) -> np.ndarray:
    """A matrix for each example, [batch, elements of this shape, elements of the other dimensions]."""
    sizes = shape[:batch_dims], shape[batch_dims:], array.shape[len(shape) :]
    return array.reshape([math.prod(part) for part in sizes])
