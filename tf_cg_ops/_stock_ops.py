"""The gradient op composed of TensorFlow's own ops, for places where there is no kernel of this library.

It follows `cc/lib/alignment.cc` step by step, in tensors: neither shapes nor ranks need to be known while tracing.
There is no control flow in it, and every shape is a constant for XLA where the operands' shapes are.
"""

from collections.abc import Sequence

import tensorflow as tf

_ROLES = ("fx", "gx", "x")

# The type of a sum and of its products, where it is not that of the operands: as cc/lib/arithmetic.h has it.
_SUM = {tf.float16: tf.float32, tf.bfloat16: tf.float32, tf.float32: tf.float64, tf.complex64: tf.complex128}


@tf.autograph.experimental.do_not_convert
def embed_grad(
    lhs: tf.Tensor,
    rhs: tf.Tensor,
    shape: tf.Tensor,
    wrt: str,
    zero_x: bool = False,
    axis: Sequence[int] = (),
    all_axes: bool = False,
) -> tf.Tensor:
    """What the op CustomGradientEmbedGrad computes, with the inputs and attributes of that op.

    Shapes that the op refuses are not all refused here, and then by TensorFlow's own messages.
    """
    if zero_x:
        return tf.zeros(shape, lhs.dtype)
    given = [role for role in _ROLES if role != wrt]
    shapes = dict(zip(given, (tf.shape(operand, shape.dtype) for operand in (lhs, rhs)), strict=True)) | {wrt: shape}
    aligned = _align(shapes, axis, all_axes)
    left, right = (tf.reshape(operand, aligned[role]) for role, operand in zip(given, (lhs, rhs), strict=True))
    right = right if wrt == "fx" else tf.math.conj(right)
    sum_type = _SUM.get(lhs.dtype, lhs.dtype)
    product = tf.cast(left, sum_type) * tf.cast(right, sum_type)
    summed, _ = tf.raw_ops.BroadcastGradientArgs(s0=aligned[wrt], s1=tf.shape(product, shape.dtype))
    if lhs.dtype == tf.complex64:
        # A complex product that is not summed up has two roundings in its own type; real ones come out the same.
        product = tf.where(tf.size(summed) == 0, tf.cast(left * right, sum_type), product)
    total = tf.reduce_sum(product, summed, keepdims=True)
    return tf.reshape(tf.cast(tf.broadcast_to(total, aligned[wrt]), lhs.dtype), shape)


def _align(shapes: dict[str, tf.Tensor], axis: Sequence[int], all_axes: bool) -> dict[str, tf.Tensor]:
    """The operands' shapes at one common rank, with 1 in the dimensions in which an operand is broadcast."""
    rank = tf.size(shapes["x"])
    if all_axes:
        in_domain = tf.fill([rank], True)
    else:
        from_the_front = tf.math.floormod(tf.constant(list(axis), tf.int32), rank)
        in_domain = tf.reduce_any(tf.equal(tf.range(rank)[:, None], from_the_front[None, :]), 1)
    along_s = {role: _spread_along_x(shapes[role], in_domain) for role in ("fx", "gx")}
    sizes = [tf.size(dims) for dims in (*shapes.values(), *along_s.values())]
    joint_rank = tf.reduce_max(tf.stack(sizes))
    gx_is_along_x = tf.size(shapes["gx"]) >= rank
    return {
        "fx": _pad(along_s["fx"], joint_rank),
        "gx": tf.where(gx_is_along_x, _pad(shapes["gx"], joint_rank), _pad(along_s["gx"], joint_rank)),
        "x": _pad(shapes["x"], joint_rank),
    }


def _spread_along_x(dims: tf.Tensor, in_domain: tf.Tensor) -> tf.Tensor:
    """Puts a dimension of size 1 in at each place of the domain; what `dims` lacks is filled with 1 in front."""
    outside = tf.cast(~in_domain, tf.int32)
    rank_s = tf.reduce_sum(outside)
    padded = _pad(dims, tf.maximum(tf.size(dims), rank_s))
    extra = tf.size(padded) - rank_s
    # One more, since the places of the domain at the end look there; what they find is not used.
    along_s = tf.concat([padded[extra:], tf.ones([1], dims.dtype)], 0)
    # How many dimensions in front of each one are no domain. Of a cumulative sum XLA does not always see the value.
    place = tf.range(tf.size(outside))
    position = tf.reduce_sum(tf.cast(place[None, :] < place[:, None], tf.int32) * outside[None, :], 1)
    spread = tf.where(in_domain, tf.ones_like(along_s[:1]), tf.gather(along_s, position))
    return tf.concat([padded[:extra], spread], 0)


def _pad(dims: tf.Tensor, rank: tf.Tensor) -> tf.Tensor:
    return tf.concat([tf.ones([rank - tf.size(dims)], dims.dtype), dims], 0)
