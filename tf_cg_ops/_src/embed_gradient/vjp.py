"""Calls the op for the gradient of an embedded function: `dx = sum_to_shape_of_x(dy * conj(gx))`."""

import functools
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import library, slices
from tf_cg_ops._src.core.tf_internal import EagerTensor, shape_of

Shape = tuple[int, ...]


def vjp(dy: Any, shape: Shape, gx: tf.Tensor, x_shape: Shape, alignment: dict[str, Any]) -> Any:
    """The gradient with respect to `x`, for the upstream gradient of a value with this shape.

    `alignment` has the attributes of the op that name the event dimensions, without which it is elementwise.
    """
    if isinstance(dy, tf.IndexedSlices) and not any(alignment.values()):
        sliced = sliced_vjp(dy, tf.TensorShape(shape), gx, tf.TensorShape(x_shape))
        if sliced is not None:
            return sliced
    dy = dense_upstream(dy, shape)
    shape_tensor = eager_shape(x_shape) if tf.executing_eagerly() else _graph_shape(x_shape)
    return library.run_op(library.custom_gradient_embed_grad, dy, gx, shape_tensor, wrt="x", **alignment)


def sliced_vjp(dy: Any, shape: tf.TensorShape, gx: tf.Tensor, x_shape: tf.TensorShape) -> tf.IndexedSlices | None:
    """The gradient of an elementwise function as slices, if `dy` is sliced; otherwise None.

    This needs a `gx` with one row for each row of `x`, or the same row for all.
    """
    if not isinstance(dy, tf.IndexedSlices) or not x_shape.rank or not (shape.is_fully_defined() and shape == x_shape):
        return None
    if not gx.shape.is_fully_defined() or gx.shape.rank > x_shape.rank:
        return None
    has_rows = gx.shape.rank == x_shape.rank and gx.shape[0] != 1
    rows = tf.gather(gx, dy.indices) if has_rows else gx
    values_shape = tf.shape(dy.values, out_type=tf.int64)
    values = library.custom_gradient_embed_grad(dy.values, rows, values_shape, wrt="x")
    return tf.IndexedSlices(values, dy.indices, dy.dense_shape)


def dense_upstream(dy: Any, shape: Shape | tf.TensorShape) -> tf.Tensor:
    """The upstream gradient as a dense Tensor; ValueError if it does not have the shape of the value."""
    dy = tf.convert_to_tensor(slices.to_dense(dy))
    if not dy.shape.is_compatible_with(shape):
        raise ValueError(
            f"embed_gradient: the upstream gradient must have the shape of the value, {tf.TensorShape(shape)}, got "
            f"{dy.shape}."
        )
    return dy


def shape_tensor_of(like: tf.Tensor) -> tf.Tensor:
    """The shape as an input of the gradient op."""
    if type(like) is EagerTensor and tf.executing_eagerly():
        return eager_shape(shape_of(like))
    if like.shape.is_fully_defined():
        return _graph_shape(tuple(like.shape))
    return tf.shape(like, out_type=tf.int64)


def _graph_shape(shape: Shape) -> tf.Tensor:
    """The shape as a constant of the graph, whose value XLA knows.

    On a GPU, int32 constants are on the host, where shapes are read; others would be copied there in each step.
    """
    dtype = tf.int32 if max(shape, default=0) <= tf.int32.max else tf.int64
    return tf.constant(shape, dtype, [len(shape)], name="Shape")


@functools.lru_cache(maxsize=256)
def eager_shape(shape: Shape) -> tf.Tensor:
    """An EagerTensor, made once for each shape."""
    with tf.device("CPU"):
        return tf.constant(shape, tf.int64, [len(shape)])
