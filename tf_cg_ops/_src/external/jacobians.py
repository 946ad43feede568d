"""`numpy_function` of a function that returns its gradients: a `vjp` and a `jvp`, whose residuals are these."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class Jacobians(NamedTuple):
    """The gradients of the value with respect to each x. `batch_dims` is 0 or 1; None if they are elementwise."""

    gradients: list[np.ndarray]
    x_shapes: list[Any]
    x_are_complex: list[bool]
    y_shape: Any
    y_is_complex: bool
    batch_dims: int | None


def dtype_for(value: tf.DType, x: tf.DType) -> tf.DType:
    """The dtype of a gradient, so that products with it are not rounded to 16 bits."""
    is_double = value in (tf.float64, tf.complex128)
    if value.is_complex or x.is_complex:
        return tf.complex128 if is_double else tf.complex64
    return tf.float64 if is_double else tf.float32


def vjp(residuals: Jacobians, dy: np.ndarray, /, *, needed: Sequence[bool], **_: Any) -> list[np.ndarray | None]:
    """For each x that is needed, the sum over the dimensions of the value of dy * conj(gradient)."""
    found: list[np.ndarray | None] = [None] * len(needed)
    for i in np.flatnonzero(needed):
        gradient, x_shape, batch_dims = residuals.gradients[i], residuals.x_shapes[i], residuals.batch_dims
        upstream, conjugate = dy.astype(gradient.dtype), np.conj(gradient)
        if batch_dims is not None:
            rows, matrices = (_examples(dy.shape, array, batch_dims) for array in (upstream, conjugate))
            dx = np.swapaxes(rows, 1, 2) @ matrices
        else:
            dx = upstream * conjugate
            first = dx.ndim - len(x_shape)
            stretched = [axis for axis, size in enumerate(x_shape, first) if size == 1]
            dx = dx.sum((*range(first), *stretched))
        found[i] = (dx if residuals.x_are_complex[i] else dx.real).reshape(x_shape)
    return found


def jvp(residuals: Jacobians, /, *tangents: np.ndarray, **_: Any) -> np.ndarray:
    """The sum over the inputs and their dimensions of gradient * tangent."""
    y_shape, batch_dims = residuals.y_shape, residuals.batch_dims
    total: Any = np.zeros(y_shape, np.float32)
    for gradient, tangent in zip(residuals.gradients, tangents, strict=True):
        tangent = tangent.astype(gradient.dtype)
        if batch_dims is not None:
            columns = _examples(tangent.shape, tangent, batch_dims)
            total = total + (_examples(y_shape, gradient, batch_dims) @ columns).reshape(y_shape)
        else:
            total = total + gradient * tangent
    return total if residuals.y_is_complex else total.real


def _examples(shape: Any, array: np.ndarray, batch_dims: int) -> np.ndarray:
    """A matrix for each example, [batch, elements of this shape, elements of the other dimensions]."""
    sizes = shape[:batch_dims], shape[batch_dims:], array.shape[len(shape) :]
    return array.reshape([math.prod(part) for part in sizes])
