"""`tf.contrib.bayesflow.custom_grad.custom_gradient` of TensorFlow 1, with its signature and output shape."""

from typing import Any

import tensorflow as tf

from .. import _convert, _dynamic_axis, _embed, _errors


@tf.autograph.experimental.do_not_convert
def custom_gradient(
    fx: Any,
    gx: Any,
    x: Any,
    axis: Any = (),
    fx_gx_manually_stopped: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Embeds the derivative `gx` with respect to `x` in the value `fx`, as TensorFlow 1's contrib function did.

    The result stands for the formula of the contrib function,

        sum_x = reduce_sum(x, axis)
        h     = fx + gx * (sum_x - stop_gradient(sum_x))

    with its shape, the broadcast of `fx`, `gx` and `sum_x`, and with its derivatives of every order:

        dx = dy * conj(gx), summed down to the shape of sum_x, and the same for every element of one domain

    Relation to upstream: the signature, shapes and derivatives are those of
    `tf.contrib.bayesflow.custom_grad.custom_gradient` (TensorFlow 1.6). Other than there the value is `fx` bit for bit,
    also where `x` or `gx` is not finite, and no data moves where `fx` has the shape of the result.
    `tf_cg_ops.embed_gradient` is the same idea with a derivative for each element of the domain.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     h = cg.compat.bayesflow.custom_gradient(fx=[0.0, 0.0], gx=[5.0, 7.0], x=x, axis=-1)
    >>> tape.gradient(h, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    [[5.0, 5.0], [70.0, 70.0]]

    Args:
      fx: The value, a Tensor or what converts to one, of a dtype that `tf_cg_ops.embed_gradient` takes.
      gx: The derivative, in the dtype of `fx`, broadcastable with `fx` and `reduce_sum(x, axis)`.
      x: What `gx` is the derivative with respect to, in the dtype of `fx`.
      axis: The dimensions of `x` that are the domain of one function: an int, a sequence of ints or an integer Tensor.
        `()`: scalar domain. `None`: one domain, all of `x`.
      fx_gx_manually_stopped: If True, `fx` and `gx` are used as given and differentiated too; else no gradient flows
        into them.
      name: A name for the operation.

    Returns:
      A Tensor of the dtype of `fx` with the broadcast shape of `fx`, `gx` and `reduce_sum(x, axis)`.

    Raises:
      ValueError: The shapes do not broadcast, or `axis` names a dimension that `x` does not have, or one twice, and the
        shapes are known at the call.
      TypeError: As `tf_cg_ops.embed_gradient`.
      tf.errors.InvalidArgumentError: The same, where it shows at run time only.
    """
    api = "compat.bayesflow.custom_gradient"
    stopped = _convert.to_bool(api, fx_gx_manually_stopped)
    static_axis = _convert.to_axis(api, axis)
    fx, gx, x = _convert.to_tensors(api, ["fx", "gx", "x"], [fx, gx, x])

    if isinstance(static_axis, list) and not static_axis:
        return _embed.embed(_broadcast(api, fx, gx, x.shape, tf.shape(x)), [gx], [x], [], stopped, name)

    x_shape = tf.shape(x)
    if tf.is_tensor(static_axis) or x.shape.rank is None:
        in_domain = _dynamic_mask(api, static_axis, x_shape)
        batch_shape = tf.TensorShape(None)
    else:
        mask = _static_mask(api, static_axis, x.shape)
        in_domain = tf.constant(mask, tf.bool)
        batch_shape = tf.TensorShape([size for size, named in zip(x.shape, mask, strict=True) if not named])
    fx = _broadcast(api, fx, gx, batch_shape, tf.boolean_mask(x_shape, ~in_domain))
    # gx lies along the batch here, whatever its rank.
    gx = tf.reshape(gx, _dynamic_axis.spread_along_x(tf.shape(gx), in_domain))
    if tf.is_tensor(static_axis):
        gx, x = _dynamic_axis.move_domain_last(api, gx, x, static_axis)
        static_axis = [-1]
    return _embed.embed(fx, [gx], [x], static_axis, stopped, name)


def _static_mask(api: str, axis: list[int] | None, x_shape: tf.TensorShape) -> list[bool]:
    """For each dimension of x, whether `axis` names it."""
    rank = x_shape.rank
    if axis is None:
        return [True] * rank
    positive = [a + rank if a < 0 else a for a in axis]
    if len(set(positive)) < len(positive) or not all(0 <= a < rank for a in positive):
        got = f"axis {axis} for x of shape {x_shape}"
        raise ValueError(_errors.AXIS_VALUE_INVALID.format(api=api, got=got))
    return [i in positive for i in range(rank)]


def _dynamic_mask(api: str, axis: list[int] | tf.Tensor | None, x_shape: tf.Tensor) -> tf.Tensor:
    if axis is None:
        return tf.ones_like(x_shape, tf.bool)
    return _dynamic_axis.domain_mask(api, tf.convert_to_tensor(axis), x_shape)


def _broadcast(
    api: str, fx: tf.Tensor, gx: tf.Tensor, static_batch_shape: tf.TensorShape, batch_shape: tf.Tensor
) -> tf.Tensor:
    """Broadcasts fx with gx and the batch; a no-op that shares its buffer where it has the result's shape already."""
    try:
        static_shape = tf.broadcast_static_shape(tf.broadcast_static_shape(fx.shape, gx.shape), static_batch_shape)
    except ValueError as error:
        message = _errors.BAYESFLOW_SHAPES.format(api=api, fx=fx.shape, gx=gx.shape, batch=static_batch_shape)
        raise ValueError(message) from error
    if static_shape.is_fully_defined():
        return tf.broadcast_to(fx, static_shape)
    shape = tf.broadcast_dynamic_shape(tf.broadcast_dynamic_shape(tf.shape(fx), tf.shape(gx)), batch_shape)
    return tf.broadcast_to(fx, shape)
