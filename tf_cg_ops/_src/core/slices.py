"""Sliced gradients: the `tf.IndexedSlices` of `tf.gather` and embeddings.

A dense gradient is as large as the whole table, so a linear rule should keep the slices. But slices can name a row
twice. A function that is not linear needs the sum of both, and TensorFlow's own functions, such as `tf.clip_by_norm`,
use the parts as they are. So a rule always gets a Tensor instead:

- In a graph the Tensor is dense, and only computed if the rule uses it; `kept` finds the slices of what the rule
  returns.
- In eager mode it is an `UpstreamSlices`, which becomes dense when its elements are first read.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import tf_internal

# The attribute of a Tensor in a graph for the slices that it is the sum of.
_SLICES = "_tf_cg_ops_slices"


def to_dense(gradient: Any) -> Any:
    """Converts a gradient to a dense Tensor, without tf.convert_to_tensor's warning about unknown shapes."""
    if isinstance(gradient, UpstreamSlices):
        return tf.convert_to_tensor(gradient)
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows = tf.gather(gradient.dense_shape, 0)
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)


def upstream(dy: Any, output: tf.Tensor) -> Any:
    """The upstream gradient of an output as the Tensor that a rule gets."""
    if not isinstance(dy, tf.IndexedSlices):
        return dy
    if dy.dense_shape is None:  # A user's gradient function can leave it out.
        dy = tf.IndexedSlices(dy.values, dy.indices, tf.shape(output, out_type=dy.indices.dtype))
    if tf.executing_eagerly() and not tf_internal.could_possibly_record():
        return UpstreamSlices(dy)
    dense = to_dense(dy)
    if not tf.executing_eagerly():
        if output.dtype != tf.resource:  # A handle is a scalar, its contents are not.
            dense.set_shape(output.shape)
        for name, part in ((_SLICES, dy), ("values", dy.values), ("indices", dy.indices)):
            setattr(dense, name, part)
        dense.dense_shape = dy.dense_shape
    return dense


def kept(gradient: Any) -> Any:
    """The gradient as a `tf.IndexedSlices` if it is linear in a sliced upstream gradient, otherwise unchanged."""
    if isinstance(gradient, UpstreamSlices):
        return gradient.slices
    if not isinstance(gradient, tf.Tensor) or isinstance(gradient, tf_internal.EagerTensor):
        return gradient
    slices = _slices_of(gradient)
    return gradient if slices is None else slices


def _slices_of(tensor: tf.Tensor) -> tf.IndexedSlices | None:
    """The slices behind a Tensor of the default graph, through identities, signs and scalar factors; None without."""
    if tensor.graph is not tf.compat.v1.get_default_graph():
        return None
    slices = getattr(tensor, _SLICES, None)
    if slices is not None:
        return slices
    op = tensor.op
    if op.type not in ("Identity", "Neg", "Mul", "RealDiv"):
        return None
    inputs = list(op.inputs)
    position = 1 if op.type == "Mul" and inputs[0].shape.rank == 0 else 0
    if not all(factor.shape.rank == 0 for i, factor in enumerate(inputs) if i != position):
        return None
    slices = _slices_of(inputs[position])
    if slices is None:
        return None
    inputs[position] = slices.values
    function = {"Identity": tf.identity, "Neg": tf.negative, "Mul": tf.multiply, "RealDiv": tf.realdiv}[op.type]
    with tf.control_dependencies(op.control_inputs):
        return tf.IndexedSlices(function(*inputs), slices.indices, slices.dense_shape)


class UpstreamSlices(tf_internal.EagerTensorBase):
    """A sliced upstream gradient in eager mode, which TensorFlow takes for a Tensor.

    Negating it, or multiplying or dividing it by a number, keeps it sliced. Everything else uses the dense Tensor.
    """

    def __init__(self, slices: tf.IndexedSlices) -> None:
        self.slices = slices
        self.values, self.indices, self.dense_shape = slices.values, slices.indices, slices.dense_shape
        self._dense: tf.Tensor | None = None

    @property
    def shape(self) -> tf.TensorShape:
        """The shape."""
        return tf.TensorShape(self._shape_tuple())

    def _shape_tuple(self) -> tuple[int, ...]:
        return tuple(self.dense_shape.numpy().tolist())

    def _datatype_enum(self) -> int:
        return self.values.dtype.as_datatype_enum

    def _rank(self) -> int:
        return len(self._shape_tuple())

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        if self._dense is None:
            with tf.init_scope():
                self._dense = to_dense(self.slices)
        return self._dense.__tf_tensor__(dtype, name)

    def __getattr__(self, name: str) -> Any:
        if name in ("slices", "_dense"):  # A copy does not have them yet.
            raise AttributeError(name)
        with tf.init_scope():
            return getattr(self.__tf_tensor__(), name)


def _is_number(value: Any) -> bool:
    is_scalar = isinstance(value, (tf.Tensor, tf.Variable)) and value.shape.rank == 0
    return is_scalar or isinstance(value, (int, float, complex, np.number))


def _sliced_or_dense(name: str) -> Any:
    """An operator that works on the rows if the other operand is a number and nothing records."""

    def method(self: UpstreamSlices, *other: Any) -> Any:
        is_linear = tf.executing_eagerly() and all(map(_is_number, other)) and not tf_internal.could_possibly_record()
        if not is_linear:
            return getattr(super(UpstreamSlices, self), name)(*other)
        return UpstreamSlices(tf.IndexedSlices(getattr(self.values, name)(*other), self.indices, self.dense_shape))

    return method


def _of_dense(name: str) -> Any:
    def method(self: UpstreamSlices, *args: Any) -> Any:
        return getattr(to_dense(self), name)(*args)

    return method


for _name in ("__neg__", "__mul__", "__rmul__", "__truediv__"):
    setattr(UpstreamSlices, _name, _sliced_or_dense(_name))
# The base class has these for its subclass in C.
for _name in ("_numpy_internal", "_num_elements", "_copy_to_device"):
    setattr(UpstreamSlices, _name, _of_dense(_name))
UpstreamSlices.backing_device = property(lambda self: to_dense(self).backing_device)
