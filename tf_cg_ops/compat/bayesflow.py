"""`tf.contrib.bayesflow.custom_grad.custom_gradient` of TensorFlow 1, with its signature and output shape."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tf_cg_ops._src.core import convert, misplaced_calls
from tf_cg_ops._src.core.types import Axis, TensorLike
from tf_cg_ops._src.embed_gradient import alignment, dynamic_axis
from tf_cg_ops._src.embed_gradient.api import embed_tensors
from tf_cg_ops._src.keras import dispatch

__all__ = ["custom_gradient"]

_API = "compat.bayesflow.custom_gradient"


@dispatch.takes_keras_tensors(_API, misplaced_calls.for_values(_API))
def custom_gradient(
    fx: TensorLike,
    gx: TensorLike,
    x: TensorLike,
    axis: Axis | tf.Tensor = (),
    fx_gx_manually_stopped: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Returns `fx` with `gx` as its derivative with respect to `x`, like TensorFlow 1's contrib function.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     h = cg.compat.bayesflow.custom_gradient(fx=[0.0, 0.0], gx=[5.0, 7.0], x=x, axis=-1)
    >>> tape.gradient(h, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    [[5.0, 5.0], [70.0, 70.0]]

    The result has the shape and all derivatives of the contrib function's formula

        sum_x = reduce_sum(x, axis)
        h     = fx + gx * (sum_x - stop_gradient(sum_x))

    so its shape is the broadcast of `fx`, `gx` and `sum_x`, and its gradient is

        dx = dy * conj(gx), summed down to the shape of sum_x, and the same for every element of one event

    Args:
      fx: The value, a Tensor or a value that converts to one, of a dtype that `tf_cg_ops.embed_gradient` takes.
      gx: The derivative, in the dtype of `fx`. It must broadcast with `fx` and `reduce_sum(x, axis)`.
      x: The variable of the derivative, in the dtype of `fx`.
      axis: The event dimensions of `x`: an int, a sequence of ints or an integer Tensor. With `()`, each element of `x`
        is an event; with `None`, all of `x` is one event.
      fx_gx_manually_stopped: If True, `fx` and `gx` are differentiated, too. Otherwise no gradient flows into them.
      name: A name for the operation.

    Returns:
      A Tensor of the dtype of `fx` with the broadcast shape of `fx`, `gx` and `reduce_sum(x, axis)`.

    Raises:
      ValueError: The shapes are known at the call and do not broadcast, or `axis` names a dimension that `x` does not
        have, or one twice.
      TypeError: See `tf_cg_ops.embed_gradient`.
      tf.errors.InvalidArgumentError: The same as ValueError, if the shapes are only known at run time.

    Differs from `tf.contrib.bayesflow.custom_grad.custom_gradient` (TensorFlow 1.6):

    - The value is `fx` bit for bit, even where `x` or `gx` is not finite.
    - If `fx` has the shape of the result, no data moves.
    """
    stopped = convert.to_bool(_API, "fx_gx_manually_stopped", fx_gx_manually_stopped)
    static_axis = convert.to_axis(_API, axis)
    fx, gx, x = convert.to_tensors(_API, ["fx", "gx", "x"], [fx, gx, x])

    if isinstance(static_axis, tf.Tensor) or x.shape.rank is None or gx.shape.rank is None:
        return _with_dynamic_axis(fx, gx, x, static_axis, stopped, name)

    event_dims = _event_dims(static_axis, x.shape)
    batch_dims = [i for i in range(x.shape.rank) if i not in event_dims]
    fx = _broadcast(
        fx,
        gx,
        tf.TensorShape([x.shape[i] for i in batch_dims]),
        lambda: tf.gather(dynamic_axis.shape_of(x), tf.constant(batch_dims, tf.int64)),
    )
    if gx.shape.rank >= x.shape.rank:
        # Here a gx of any rank aligns with the batch dimensions.
        num_leading = gx.shape.rank - len(batch_dims)
        for dimension in event_dims:
            gx = tf.expand_dims(gx, num_leading + dimension)
    return embed_tensors(fx, [gx], [x], static_axis, stopped, name)


def _event_dims(axis: list[int] | None, x_shape: tf.TensorShape) -> list[int]:
    """The dimensions of x that `axis` names, in order."""
    rank = x_shape.rank
    if axis is None:
        return list(range(rank))
    event_dims = sorted(a + rank if a < 0 else a for a in axis)
    if len(set(event_dims)) < len(event_dims) or any(dimension not in range(rank) for dimension in event_dims):
        raise ValueError(convert.invalid_axis(_API, "x", f"axis {axis} for x of shape {x_shape}"))
    return event_dims


def _with_dynamic_axis(
    fx: tf.Tensor,
    gx: tf.Tensor,
    x: tf.Tensor,
    axis: list[int] | tf.Tensor | None,
    stopped: bool,
    name: str | None,
) -> tf.Tensor:
    """`custom_gradient` if the axis or the ranks are only known at run time."""
    x_shape = dynamic_axis.shape_of(x)
    if axis is None:
        is_event = tf.ones_like(x_shape, tf.bool)
    else:
        axis_tensor = tf.constant(axis, tf.int64) if isinstance(axis, list) else axis
        is_event = dynamic_axis.event_mask(_API, "x", axis_tensor, x_shape)
    fx = _broadcast(fx, gx, tf.TensorShape(None), lambda: tf.boolean_mask(x_shape, ~is_event))
    gx = tf.reshape(gx, alignment.spread(dynamic_axis.shape_of(gx), is_event))
    if isinstance(axis, tf.Tensor):
        gx, x = dynamic_axis.flatten_event_last(_API, "", fx, gx, x, axis)
        axis = [-1]
    return embed_tensors(fx, [gx], [x], axis, stopped, name)


def _broadcast(
    fx: tf.Tensor, gx: tf.Tensor, static_batch: tf.TensorShape, dynamic_batch: Callable[[], tf.Tensor]
) -> tf.Tensor:
    """Broadcasts fx with gx and the batch. Returns fx itself if it has that shape already."""
    message = (
        f"{_API}: fx, gx and reduce_sum(x, axis) must broadcast together, got the shapes {{}}. Reshape fx and gx to "
        "the shape of reduce_sum(x, axis)."
    )
    try:
        static_shape = tf.broadcast_static_shape(tf.broadcast_static_shape(fx.shape, gx.shape), static_batch)
    except ValueError as error:
        raise ValueError(message.format(f"{fx.shape}, {gx.shape} and {static_batch}")) from error
    if static_shape.is_fully_defined():
        return fx if fx.shape == static_shape else tf.broadcast_to(fx, static_shape)
    message = message.format("that follow for two of them")
    shape = dynamic_axis.broadcast_shapes(message, dynamic_axis.shape_of(fx), dynamic_axis.shape_of(gx))
    shape = dynamic_axis.broadcast_shapes(message, shape, dynamic_batch())
    return tf.ensure_shape(tf.broadcast_to(fx, shape), static_shape)
