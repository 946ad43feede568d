"""Sliced gradients: `tf.IndexedSlices`, as `tf.gather` and embeddings have them.

A rule that is linear and treats each row by itself keeps them sliced: a dense gradient is as large as the whole table.
"""

from typing import Any

import numpy as np
import tensorflow as tf

_SLICES = tf.IndexedSlices  # TensorFlow looks up its public names at each use.


def to_dense(gradient: Any) -> Any:
    """A gradient as one Tensor, without tf.convert_to_tensor's warning about unknown shapes."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows = tf.gather(gradient.dense_shape, 0)
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)


class UpstreamSlices(tf.IndexedSlices):
    """A sliced upstream gradient with the operators of a Tensor.

    `tf.IndexedSlices` has a negative and no other operator: `2.0 * dy` is a TypeError. Here products with numbers and
    quotients by numbers stay sliced; all other operators compute with the dense Tensor.
    """

    __array_priority__ = tf.Tensor.__array_priority__  # NumPy then leaves operators to this class.

    @classmethod
    def of(cls, dy: Any) -> Any:
        """The upstream gradient, as an UpstreamSlices if it is sliced."""
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


# The program chooses whether Tensors compare elementwise or by identity; slices always compare by identity.
for _name in tf.Tensor.OVERLOADABLE_OPERATORS - {"__eq__", "__ne__"}:
    if _name not in vars(UpstreamSlices):
        setattr(UpstreamSlices, _name, _dense_operator(_name))
