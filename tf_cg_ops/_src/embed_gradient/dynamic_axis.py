"""Shapes and axes that are not known while tracing, composed from stock ops.

The op takes its axis as an attribute, which makes eager calls cheap, keeps static shapes exact and suits XLA. The rare
axis that is a Tensor is reduced to a static one: the domain is moved to the end of x and gx and flattened, so that the
axis is always -1. A second form of the op would have cost every consumer (XLA, pfor, C, saved graphs) a second rule.

tf.equal stands here for ==, which compares identities in a graph of TensorFlow 1.
"""

import tensorflow as tf

from tf_cg_ops._src import errors
from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.embed_gradient import alignment


def shape_of(tensor: tf.Tensor) -> tf.Tensor:
    """The shape in 64 bits: an empty tensor may have dimensions that 32 bits do not hold."""
    return tf.shape(tensor, out_type=tf.int64)


def move_domain_last(
    api: str, suffix: str, fx: tf.Tensor, gx: tf.Tensor, x: tf.Tensor, axis: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Reshapes a pair so that `embed_gradient(fx, gx, x, axis)` is the same function with axis -1."""
    x_shape = shape_of(x)
    in_domain = domain_mask(api, "x" + suffix, axis, x_shape)
    batch_dims, domain_dims = tf.where(~in_domain)[:, 0], tf.where(in_domain)[:, 0]
    gx = _lay_along_x(gx, x, in_domain)
    gx_shape = shape_of(gx)
    extra = tf.size(gx_shape, out_type=tf.int64) - tf.size(x_shape, out_type=tf.int64)

    # Both get the domain that they broadcast to, since flattening would hide that a dimension is 1 in one of them.
    x_domain, gx_domain = tf.gather(x_shape, domain_dims), tf.gather(gx_shape, extra + domain_dims)
    message = (
        f"{api}: the shapes do not broadcast together; expected sizes that are equal or 1 in the dimensions that "
        f"axis names, got these sizes in {'gx' + suffix} and {'x' + suffix}. Reshape {'gx' + suffix} to the shape "
        f"of {'x' + suffix}."
    )
    domain = broadcast_shapes(message, gx_domain, x_domain)
    domain_size = tf.reduce_prod(domain, keepdims=True)

    # A scalar fx stands for all of x only where gx adds nothing to x, which does not show any more once x is broadcast.
    is_valid = (tf.rank(fx) > 0) | tf.equal(tf.size(batch_dims), 0) | tf.reduce_all(tf.equal(domain, x_domain))
    message = errors.SCALAR_FX.format(api=api, gx="gx" + suffix, x="x" + suffix)
    with tf.control_dependencies([tf.debugging.Assert(is_valid, [message, gx_shape, x_shape, axis])]):
        domain = tf.identity(domain)

    def flatten(tensor: tf.Tensor, leading: tf.Tensor) -> tf.Tensor:
        order = tf.concat([tf.range(leading), leading + batch_dims, leading + domain_dims], 0)
        batch_shape = tf.gather(shape_of(tensor), order[: tf.size(order) - tf.size(domain_dims)])
        full = tf.broadcast_to(tf.transpose(tensor, order), tf.concat([batch_shape, domain], 0))
        return tf.reshape(full, tf.concat([batch_shape, domain_size], 0))

    return flatten(gx, extra), flatten(x, tf.constant(0, tf.int64))


def domain_mask(api: str, x_name: str, axis: tf.Tensor, x_shape: tf.Tensor) -> tf.Tensor:
    """For each dimension of x, whether `axis` names it; fails at run time where it names none, or one twice."""
    if tf_internal.is_compiled_by_xla(tf.compat.v1.get_default_graph()):
        raise ValueError(
            f"{api}: axis is not known while tracing, and XLA compiles for one axis; expected None, an int or a "
            f"sequence of ints under jit_compile=True, got {axis}. Pass Python ints, or make the axis a Python "
            "argument of the tf.function."
        )
    rank = tf.size(x_shape, out_type=tf.int64)
    axis = tf.reshape(axis, [-1])
    # In float64 no integer type wraps around: what is too large stays too large.
    wide = tf.cast(axis, tf.float64)
    is_in_range = tf.reduce_all((wide >= -tf.cast(rank, tf.float64)) & (wide < tf.cast(rank, tf.float64)))
    axis64 = tf.cast(axis, tf.int64)
    dimensions = tf.where(axis64 < 0, axis64 + rank, axis64)
    is_named = tf.equal(dimensions[:, None], tf.range(rank)[None, :])
    hits = tf.reduce_sum(tf.cast(is_named, tf.int32), 0)
    is_valid = is_in_range & tf.reduce_all(hits <= 1)
    message = errors.AXIS_VALUE_INVALID.format(
        api=api, x=x_name, got=(f"the axis and the shape of {x_name} that follow")
    )
    with tf.control_dependencies([tf.debugging.Assert(is_valid, [message, axis, x_shape])]):
        return tf.identity(hits > 0)


def broadcast_shapes(message: str, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """The shape that two shapes broadcast to; fails at run time with the message and both."""
    rank = tf.maximum(tf.size(a), tf.size(b))
    padded_a = tf.concat([tf.ones([rank - tf.size(a)], a.dtype), a], 0)
    padded_b = tf.concat([tf.ones([rank - tf.size(b)], b.dtype), b], 0)
    fits = tf.reduce_all(tf.equal(padded_a, padded_b) | tf.equal(padded_a, 1) | tf.equal(padded_b, 1))
    with tf.control_dependencies([tf.debugging.Assert(fits, [message, a, b])]):
        return tf.where(tf.equal(padded_a, 1), padded_b, padded_a)


def _lay_along_x(gx: tf.Tensor, x: tf.Tensor, in_domain: tf.Tensor) -> tf.Tensor:
    """Gives gx a dimension for each one of x, if it has fewer."""
    gx_shape = shape_of(gx)
    if gx.shape.rank is not None and x.shape.rank is not None:
        return gx if gx.shape.rank >= x.shape.rank else tf.reshape(gx, alignment.spread(gx_shape, in_domain))
    lies_along_x = tf.rank(gx) >= tf.rank(x)
    return tf.reshape(gx, tf.cond(lies_along_x, lambda: gx_shape, lambda: alignment.spread(gx_shape, in_domain)))
