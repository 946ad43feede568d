"""The gradient op made from built-in ops, for models that must run without this library.

It works with unknown shapes and ranks.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_cg_ops._src.embed_gradient import alignment
from tf_cg_ops._src.ops.trilinear_form import roles_of_operands

# The type for sums and products, if the operands have a smaller one, as in cc/lib/arithmetic.h.
_SUM_TYPE = {tf.float16: tf.float32, tf.bfloat16: tf.float32, tf.float32: tf.float64, tf.complex64: tf.complex128}


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
    """Computes CustomGradientEmbedGrad from the inputs and attributes of that op.

    It accepts some shapes that the op rejects; TensorFlow raises the other errors.
    """
    if zero_x:
        return tf.zeros(shape, lhs.dtype)
    roles = roles_of_operands(wrt)
    shapes = dict(zip(roles, (tf.shape(operand, shape.dtype) for operand in (lhs, rhs)), strict=True)) | {wrt: shape}
    aligned = alignment.align(shapes, axis, all_axes)
    left, right = (tf.reshape(operand, aligned[role]) for role, operand in zip(roles, (lhs, rhs), strict=True))
    right = right if wrt == "fx" else tf.math.conj(right)
    sum_type = _SUM_TYPE.get(lhs.dtype, lhs.dtype)
    product = tf.cast(left, sum_type) * tf.cast(right, sum_type)
    reduction_dims, _ = tf.raw_ops.BroadcastGradientArgs(s0=aligned[wrt], s1=tf.shape(product, shape.dtype))
    if lhs.dtype == tf.complex64:
        # Without a sum, a complex product is rounded twice in its own type, unlike a real product.
        product = tf.where(tf.size(reduction_dims) == 0, tf.cast(left * right, sum_type), product)
    total = tf.reduce_sum(product, reduction_dims, keepdims=True)
    return tf.reshape(tf.cast(tf.broadcast_to(total, aligned[wrt]), lhs.dtype), shape)
