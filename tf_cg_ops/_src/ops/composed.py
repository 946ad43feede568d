"""The gradient op composed of TensorFlow's own ops, for places where there is no kernel of this library.

Neither shapes nor ranks need to be known while tracing.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_cg_ops._src.embed_gradient import alignment

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
    aligned = alignment.align(shapes, axis, all_axes)
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
