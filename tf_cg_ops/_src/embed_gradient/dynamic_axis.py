"""Handles axes and shapes that are not known while tracing, with built-in ops around the op.

The op takes its axis as an attribute: that makes eager calls cheap, keeps static shapes exact and suits XLA. If the
axis is a Tensor, which is rare, the event dimensions of x and gx move to the end and are flattened, so that the axis is
-1. A second form of the op would need a second form in XLA, pfor, C and saved graphs.

This module uses tf.equal, because == compares identities in a graph of TensorFlow 1.
"""

import tensorflow as tf

from tf_cg_ops._src.core import convert, text, tf_internal
from tf_cg_ops._src.embed_gradient import alignment


def shape_of(tensor: tf.Tensor) -> tf.Tensor:
    """The shape in 64 bits, because an empty tensor can have very large dimensions."""
    return tf.shape(tensor, out_type=tf.int64)


def flatten_event_last(
    api: str, suffix: str, fx: tf.Tensor, gx: tf.Tensor, x: tf.Tensor, axis: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `gx` and `x` with one event dimension, the last, so that `embed_gradient` can use axis -1."""
    x_shape = shape_of(x)
    is_event = event_mask(api, "x" + suffix, axis, x_shape)
    batch_dims, event_dims = tf.where(~is_event)[:, 0], tf.where(is_event)[:, 0]
    gx = _spread_along_x(gx, x, is_event)
    gx_shape = shape_of(gx)
    num_leading = tf.size(gx_shape, out_type=tf.int64) - tf.size(x_shape, out_type=tf.int64)

    # Both are broadcast to one event shape first, because flattening would hide a dimension of size 1.
    x_event, gx_event = tf.gather(x_shape, event_dims), tf.gather(gx_shape, num_leading + event_dims)
    gx_name, x_name = "gx" + suffix, "x" + suffix
    message = (
        f"{api}: the shapes must broadcast together, with sizes that are equal or 1 in the dimensions that axis names, "
        f"got these sizes in {gx_name} and {x_name}. Reshape {gx_name} to the shape of {x_name}."
    )
    event = broadcast_shapes(message, gx_event, x_event)
    event_size = tf.reduce_prod(event, keepdims=True)

    # A scalar fx depends on all of x only if gx broadcasts to x. The op cannot see that after x is broadcast.
    fits = (tf.rank(fx) > 0) | tf.equal(tf.size(batch_dims), 0) | tf.reduce_all(tf.equal(event, x_event))
    message = scalar_fx_does_not_fit(api, gx_name, x_name)
    with tf.control_dependencies([tf.debugging.Assert(fits, [message, gx_shape, x_shape, axis])]):
        event = tf.identity(event)

    def flatten(tensor: tf.Tensor, num_leading: tf.Tensor) -> tf.Tensor:
        order = tf.concat([tf.range(num_leading), num_leading + batch_dims, num_leading + event_dims], 0)
        batch = tf.gather(shape_of(tensor), order[: tf.size(order) - tf.size(event_dims)])
        full = tf.broadcast_to(tf.transpose(tensor, order), tf.concat([batch, event], 0))
        return tf.reshape(full, tf.concat([batch, event_size], 0))

    return flatten(gx, num_leading), flatten(x, tf.constant(0, tf.int64))


def scalar_fx_does_not_fit(api: str, gx: str, x: str) -> str:
    """The message for a scalar fx beside batch dimensions and a gx that does not broadcast to x."""
    return (
        f"{api}: fx must have the shape of {x} without the dimensions of axis, or be a scalar where {gx} broadcasts to "
        f"the shape of {x}, got a scalar with the shapes of {gx} and {x} and the axis that follow. "
        f"Broadcast {x} to the shape of {gx}, or check axis."
    )


def event_mask(api: str, x_name: str, axis: tf.Tensor, x_shape: tf.Tensor) -> tf.Tensor:
    """Whether `axis` names each dimension of x; an invalid axis fails at run time."""
    if tf_internal.is_traced_for_xla(tf.compat.v1.get_default_graph()):
        raise ValueError(
            f"{api}: axis must be None, an int or a sequence of ints under jit_compile=True, because XLA compiles for "
            f"one axis, got {text.describe(axis)}. Pass Python ints, or make the axis a Python argument of the "
            "tf.function."
        )
    rank = tf.size(x_shape, out_type=tf.int64)
    axis = tf.reshape(axis, [-1])
    # float64, in which integers do not wrap around.
    axis_float, rank_float = tf.cast(axis, tf.float64), tf.cast(rank, tf.float64)
    is_in_range = tf.reduce_all((axis_float >= -rank_float) & (axis_float < rank_float))
    axis64 = tf.cast(axis, tf.int64)
    dimensions = tf.where(axis64 < 0, axis64 + rank, axis64)
    is_named = tf.equal(dimensions[:, None], tf.range(rank)[None, :])
    times_named = tf.reduce_sum(tf.cast(is_named, tf.int32), 0)
    is_valid = is_in_range & tf.reduce_all(times_named <= 1)
    message = convert.invalid_axis(api, x_name, f"the axis and the shape of {x_name} that follow")
    with tf.control_dependencies([tf.debugging.Assert(is_valid, [message, axis, x_shape])]):
        return tf.identity(times_named > 0)


def broadcast_shapes(message: str, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """The shape that two shapes broadcast to; if they do not, this fails at run time with the message and both."""
    rank = tf.maximum(tf.size(a), tf.size(b))
    padded_a, padded_b = alignment.pad(a, rank), alignment.pad(b, rank)
    fits = tf.reduce_all(tf.equal(padded_a, padded_b) | tf.equal(padded_a, 1) | tf.equal(padded_b, 1))
    with tf.control_dependencies([tf.debugging.Assert(fits, [message, a, b])]):
        return tf.where(tf.equal(padded_a, 1), padded_b, padded_a)


def _spread_along_x(gx: tf.Tensor, x: tf.Tensor, is_event: tf.Tensor) -> tf.Tensor:
    """Reshapes a gx that aligns with the batch dimensions to have a dimension for each one of x."""
    gx_shape = shape_of(gx)
    if gx.shape.rank is not None and x.shape.rank is not None:
        return gx if gx.shape.rank >= x.shape.rank else tf.reshape(gx, alignment.spread(gx_shape, is_event))
    aligns_with_x = tf.rank(gx) >= tf.rank(x)
    return tf.reshape(gx, tf.cond(aligns_with_x, lambda: gx_shape, lambda: alignment.spread(gx_shape, is_event)))
