"""An `axis` whose value is not known while tracing, reduced to a static one.

The op takes its axis as an attribute, which makes eager calls cheap, keeps static shapes exact and suits XLA. The rare
axis that is a Tensor is composed from stock ops around it: the domain is moved to the end of x and gx and flattened, so
that the axis is always -1. A second form of the op would have cost every consumer (XLA, pfor, C, saved graphs) a second
rule for it.
"""

import tensorflow as tf

from . import _errors


def move_domain_last(api: str, gx: tf.Tensor, x: tf.Tensor, axis: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Reshapes a pair so that `embed_gradient(fx, gx, x, axis)` is the same function with axis -1."""
    x_shape = tf.shape(x)
    in_domain = domain_mask(api, axis, x_shape)
    batch_dims, domain_dims = tf.where(~in_domain)[:, 0], tf.where(in_domain)[:, 0]
    gx = _lay_along_x(gx, x, in_domain)
    gx_shape = tf.shape(gx)
    extra = tf.cast(tf.size(gx_shape) - tf.size(x_shape), tf.int64)

    # Both get the domain that they broadcast to, since flattening would hide that a dimension is 1 in one of them.
    domain_shape = tf.broadcast_dynamic_shape(tf.gather(x_shape, domain_dims), tf.gather(gx_shape, extra + domain_dims))
    domain_size = tf.reduce_prod(domain_shape, keepdims=True)

    def flatten(tensor: tf.Tensor, leading: tf.Tensor) -> tf.Tensor:
        order = tf.concat([tf.range(leading), leading + batch_dims, leading + domain_dims], 0)
        batch_shape = tf.gather(tf.shape(tensor), order[: tf.size(order) - tf.size(domain_dims)])
        full = tf.broadcast_to(tf.transpose(tensor, order), tf.concat([batch_shape, domain_shape], 0))
        return tf.reshape(full, tf.concat([batch_shape, domain_size], 0))

    return flatten(gx, extra), flatten(x, tf.constant(0, tf.int64))


def domain_mask(api: str, axis: tf.Tensor, x_shape: tf.Tensor) -> tf.Tensor:
    """For each dimension of x, whether `axis` names it; fails at run time where it names none, or one twice."""
    rank = tf.size(x_shape)
    axis = tf.reshape(tf.cast(axis, tf.int32), [-1])
    positive = tf.where(axis < 0, axis + rank, axis)
    # Every value has to hit one dimension, and every dimension may be hit once.
    # tf.equal and not ==, which compares identities in a graph of TensorFlow 1.
    is_hit = tf.equal(positive[:, None], tf.range(rank)[None, :])
    hits = tf.reduce_sum(tf.cast(is_hit, tf.int32), 0)
    is_valid = tf.equal(tf.reduce_sum(hits), tf.size(axis)) & tf.reduce_all(hits <= 1)
    message = _errors.AXIS_VALUE_INVALID.format(api=api, got=_errors.AXIS_VALUE_FOLLOWS)
    with tf.control_dependencies([tf.debugging.Assert(is_valid, [message, axis, x_shape])]):
        return tf.identity(hits > 0)


def spread_along_x(shape: tf.Tensor, in_domain: tf.Tensor) -> tf.Tensor:
    """Puts a 1 at each place of the domain, so that a shape that lies along S lies along X."""
    batch_dims = tf.where(~in_domain)
    batch_rank = tf.size(batch_dims)
    along_batch = tf.concat([tf.ones([tf.maximum(batch_rank - tf.size(shape), 0)], tf.int32), shape], 0)
    extra = tf.size(along_batch) - batch_rank
    ones = tf.ones(tf.shape(in_domain), tf.int32)
    return tf.concat([along_batch[:extra], tf.tensor_scatter_nd_update(ones, batch_dims, along_batch[extra:])], 0)


def _lay_along_x(gx: tf.Tensor, x: tf.Tensor, in_domain: tf.Tensor) -> tf.Tensor:
    """Gives gx a dimension for each one of x, if it has fewer."""
    if gx.shape.rank is not None and x.shape.rank is not None:
        return gx if gx.shape.rank >= x.shape.rank else tf.reshape(gx, spread_along_x(tf.shape(gx), in_domain))
    gx_shape = tf.shape(gx)
    lies_along_x = tf.rank(gx) >= tf.rank(x)
    return tf.reshape(gx, tf.cond(lies_along_x, lambda: gx_shape, lambda: spread_along_x(gx_shape, in_domain)))
