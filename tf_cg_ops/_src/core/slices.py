"""Sliced gradients: `tf.IndexedSlices`, as `tf.gather` and embeddings have them.

A dense gradient is as large as the whole table, so rules that are linear keep the slices. But slices may name a row
twice: a function that is not linear must see the sum, and TensorFlow's own (`tf.clip_by_norm` is one) compute with the
parts as they are. A rule therefore never gets a `tf.IndexedSlices`. It gets a Tensor:

- In a graph it is dense, and runs only if the rule uses it; `kept` finds the slices of what the rule returns.
- In eager mode, an `UpstreamSlices` becomes dense when its elements are first read.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import tf_internal

# The attribute of a Tensor in a graph that holds the slices that it is the sum of.
_SLICES = "_tf_cg_ops_slices"


def to_dense(gradient: Any) -> Any:
    """A gradient as one Tensor, without tf.convert_to_tensor's warning about unknown shapes."""
    if isinstance(gradient, UpstreamSlices):
        return tf.convert_to_tensor(gradient)
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows = tf.gather(gradient.dense_shape, 0)
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)


def upstream(dy: Any, output: tf.Tensor) -> Any:
    """The upstream gradient of an output as a rule gets it: a Tensor."""
    if not isinstance(dy, tf.IndexedSlices):
        return dy
    if dy.dense_shape is None:  # A gradient function of the user may leave it out.
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
    """The gradient as a `tf.IndexedSlices` if it is a linear function of sliced upstream, otherwise as it is."""
    if isinstance(gradient, UpstreamSlices):
        return gradient.slices
    if not isinstance(gradient, tf.Tensor) or isinstance(gradient, tf_internal.EagerTensor):
        return gradient
    slices = _slices_of(gradient)
    return gradient if slices is None else slices


def _slices_of(tensor: tf.Tensor) -> tf.IndexedSlices | None:
    """The slices that a Tensor of the default graph sums, through identities, signs and numbers as factors."""
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
    """A sliced upstream gradient of eager mode, which TensorFlow takes for a Tensor.

    Its negative, its products with numbers and its quotients by numbers stay sliced. All else is computed with the
    dense Tensor.
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
        if name in ("slices", "_dense"):  # While a copy is made, they are not there.
            raise AttributeError(name)
        with tf.init_scope():
            return getattr(self.__tf_tensor__(), name)


def _is_number(value: Any) -> bool:
    is_scalar = isinstance(value, (tf.Tensor, tf.Variable)) and value.shape.rank == 0
    return is_scalar or isinstance(value, (int, float, complex, np.number))


def _sliced_or_dense(name: str) -> Any:
    """An operator of the rows in eager mode, if the other operand is a number and nothing records."""

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
