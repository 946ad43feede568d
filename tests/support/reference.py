"""The tests' oracle: the vector-Jacobian product of `embed_gradient` in NumPy, and the upstream functions' formulas."""

import numpy as np
import tensorflow as tf


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


def embed_formula(fx, gx, x, fx_gx_manually_stopped=False):
    """`fx + gx * (x - stop(x))` for operands of one shape, as `embed_gradient` promises with an empty axis."""
    stop = tf.identity if fx_gx_manually_stopped else tf.stop_gradient
    return stop(fx) + stop(gx) * (x - tf.stop_gradient(x))


def contrib_formula(fx, gx, x, axis=(), fx_gx_manually_stopped=False):
    """The formula of `tf.contrib.bayesflow.custom_grad.custom_gradient` of TensorFlow 1.6."""
    stop = tf.identity if fx_gx_manually_stopped else tf.stop_gradient
    sum_x = tf.reduce_sum(x, axis)
    return (sum_x - tf.stop_gradient(sum_x)) * stop(gx) + stop(fx)


def tfp_formula(fx, gx, x, fx_gx_manually_stopped=False):
    """The formula of `tfp.math.custom_gradient` of TensorFlow Probability 0.25; `gx` and `x` are lists."""
    stop = tf.identity if fx_gx_manually_stopped else tf.stop_gradient
    terms = [tf.reduce_sum(stop(g) * (t - tf.stop_gradient(t))) for g, t in zip(gx, x, strict=True)]
    return stop(fx) + sum(terms) / tf.cast(tf.size(fx), terms[0].dtype)
