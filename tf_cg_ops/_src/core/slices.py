"""Gradients that are slices of a tensor: `tf.IndexedSlices`, the gradient of `tf.gather` and of embeddings.

They stay slices where a rule is linear and treats each row by itself: a dense gradient has the size of the whole table.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import library

_SLICES = tf.IndexedSlices  # TensorFlow looks its public names up anew each time.


def to_dense(gradient: Any) -> Any:
    """A gradient as one Tensor, without the warning of tf.convert_to_tensor where a shape is not known."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows = tf.gather(gradient.dense_shape, 0)
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)


class UpstreamSlices(tf.IndexedSlices):
    """An upstream gradient that a rule can compute with as it does with a Tensor.

    `tf.IndexedSlices` has a negative and no other operator: `2.0 * dy` is a TypeError. Here products with numbers and
    quotients by them are slices, and all other operators give what they give for the dense Tensor.
    """

    __array_priority__ = tf.Tensor.__array_priority__  # NumPy then leaves its operators to those below.

    @classmethod
    def of(cls, dy: Any) -> Any:
        """The upstream gradient, as one of these if it consists of slices."""
        if not isinstance(dy, _SLICES):
            return dy
        return cls(dy.values, dy.indices, dy.dense_shape)

    def _with(self, values: tf.Tensor) -> "UpstreamSlices":
        return UpstreamSlices(values, self.indices, self.dense_shape)

    def __neg__(self) -> "UpstreamSlices":
        return self._with(-self.values)

    def __mul__(self, other: Any) -> Any:
        return self._with(self.values * other) if _is_number(other) else to_dense(self) * other

    def __rmul__(self, other: Any) -> Any:
        return self._with(other * self.values) if _is_number(other) else other * to_dense(self)

    def __truediv__(self, other: Any) -> Any:
        return self._with(self.values / other) if _is_number(other) else to_dense(self) / other


def _is_number(value: Any) -> bool:
    is_scalar = isinstance(value, (tf.Tensor, tf.Variable)) and value.shape.rank == 0
    return is_scalar or isinstance(value, (int, float, complex, np.number))


def _dense_operator(name: str) -> Any:
    def operator(self: UpstreamSlices, *args: Any) -> Any:
        return getattr(to_dense(self), name)(*args)

    operator.__name__ = name
    return operator


# Equality of Tensors is elementwise or by identity, as the program has chosen; slices are compared by identity.
for _name in tf.Tensor.OVERLOADABLE_OPERATORS - {"__eq__", "__ne__"}:
    if _name not in vars(UpstreamSlices):
        setattr(UpstreamSlices, _name, _dense_operator(_name))


def of_embedded(dy: Any, fx: tf.TensorShape, gx: tf.Tensor, x: tf.TensorShape) -> tf.IndexedSlices | None:
    """The gradient `dy * conj(gx)` with respect to `x`, where `dy` and so the gradient are slices; None if it is dense.

    For an elementwise function, of which `gx` has one row for each row of `x`, or the same for all rows.
    """
    if not isinstance(dy, tf.IndexedSlices) or not x.rank or not (fx.is_fully_defined() and fx == x):
        return None
    if not gx.shape.is_fully_defined() or gx.shape.rank > x.rank:
        return None
    has_rows = gx.shape.rank == x.rank and gx.shape[0] != 1
    rows = tf.gather(gx, dy.indices) if has_rows else gx
    shape = tf.shape(dy.values, out_type=tf.int64)
    values = library.custom_gradient_embed_grad(dy.values, rows, shape, wrt="x")
    return tf.IndexedSlices(values, dy.indices, dy.dense_shape)
