"""The vector-Jacobian product of `embed_gradient` in plain NumPy, float64 or complex128: the tests' oracle."""

import numpy as np


def domain_axes(axis, x_rank):
    """The dimensions of x that `axis` names, from 0."""
    if axis is None:
        return tuple(range(x_rank))
    return tuple(sorted(a % x_rank for a in np.ravel(axis).astype(int).tolist()))


def lay_along_x(array, x_rank, axes):
    """Puts a dimension of size 1 in at each place of the domain, counted from the right."""
    missing = x_rank - len(axes) - array.ndim
    array = array.reshape((1,) * max(missing, 0) + array.shape)
    return np.expand_dims(array, tuple(a - x_rank for a in axes))


def sum_to_shape(array, shape):
    """The transpose of broadcasting `shape` to the shape of `array`."""
    array = array.sum(axis=tuple(range(array.ndim - len(shape))))
    ones = tuple(i for i, size in enumerate(shape) if size == 1 and array.shape[i] != 1)
    return array.sum(axis=ones, keepdims=True)


def vjp(dy, gx, x_shape, axis=()):
    """dx = sum_to_x(dy * conj(gx))."""
    dy, gx = np.asarray(widen(dy)), np.asarray(widen(gx))
    axes = domain_axes(axis, len(x_shape))
    dy = lay_along_x(dy, len(x_shape), axes)
    if gx.ndim < len(x_shape):
        gx = lay_along_x(gx, len(x_shape), axes)
    product = dy * np.conj(gx)
    joint = np.broadcast_shapes(product.shape, tuple(x_shape))
    return sum_to_shape(np.broadcast_to(product, joint), tuple(x_shape))


def widen(array):
    """The same numbers in float64 or complex128."""
    array = np.asarray(array)
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)
