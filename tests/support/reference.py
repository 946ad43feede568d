"""The tests' oracle: the vector-Jacobian product of `embed_gradient` in NumPy, and the upstream functions' formulas."""

import numpy as np
import tensorflow as tf

ROLES = ("fx", "gx", "x")


def domain_axes(axis, x_rank):
    """The dimensions of x that `axis` names, from 0."""
    if axis is None:
        return tuple(range(x_rank))
    return tuple(sorted(a % x_rank for a in np.ravel(axis).astype(int).tolist()))


def lay_out(shapes, axis=()):
    """The joint shape of fx, gx and x, and each of them in its rank. Raises ValueError if they do not fit."""
    fx, gx, x = map(tuple, shapes)
    if axis is not None and not all(-len(x) <= a < len(x) for a in np.ravel(axis).tolist()):
        raise ValueError("axis out of range")
    # How far the event dimensions are from the right end.
    domain = [len(x) - a for a in domain_axes(axis, len(x))]
    if len(set(domain)) < len(domain):
        raise ValueError("axis given twice")
    laid = [_along_batch(fx, domain), gx if len(gx) >= len(x) else _along_batch(gx, domain), x]
    rank = max(map(len, laid))
    laid = [(1,) * (rank - len(shape)) + shape for shape in laid]
    sizes = [set(sizes) - {1} or {1} for sizes in zip(*laid, strict=True)]
    if any(len(different) > 1 for different in sizes):
        raise ValueError("the shapes do not broadcast")
    joint = tuple(size for (size,) in sizes)
    batch = tuple(size for i, size in enumerate(joint) if rank - i not in domain)
    if fx != batch and not (fx == () and joint == x):
        raise ValueError(f"fx of {fx} is not of {batch}")
    return joint, laid


def _along_batch(shape, domain):
    """Inserts a dimension of size 1 at the position of each event dimension, counted from the right."""
    from_the_right = list(reversed(shape))
    for place in sorted(domain):
        from_the_right += [1] * (place - 1 - len(from_the_right))
        from_the_right.insert(place - 1, 1)
    return tuple(reversed(from_the_right))


def sum_to_shape(array, shape):
    """The transpose of broadcasting `shape` to the shape of `array`."""
    array = array.sum(axis=tuple(range(array.ndim - len(shape))))
    ones = tuple(i for i, size in enumerate(shape) if size == 1 and array.shape[i] != 1)
    return array.sum(axis=ones, keepdims=True)


def products(wrt, operands, shape, axis=()):
    """The terms of the gradient by one role, which are products of the other two operands, and their layout."""
    shapes = {role: np.shape(array) for role, array in operands.items()} | {wrt: shape}
    joint, laid = lay_out([shapes[role] for role in ROLES], axis)
    laid = dict(zip(ROLES, laid, strict=True))
    first, second = (np.reshape(widen(operands[role]), laid[role]) for role in ROLES if role != wrt)
    with np.errstate(all="ignore"):  # The numbers can be infinite.
        return np.broadcast_to(first * (second if wrt == "fx" else np.conj(second)), joint), laid[wrt]


def vjp(dy, gx, x_shape, axis=()):
    """dx = sum_to_x(dy * conj(gx))."""
    array, laid = products("x", {"fx": dy, "gx": gx}, tuple(x_shape), axis)
    return sum_to_shape(array, laid).reshape(tuple(x_shape))


def widen(array):
    """The same numbers in float64 or complex128."""
    array = np.asarray(array)
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


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
