"""`reverse_gradient` and `scale_gradient`: identities that multiply the gradient by a factor."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, tf_internal
from tf_cg_ops._src.core.types import TensorLike
from tf_cg_ops._src.embed_gradient.api import embed_tensors
from tf_cg_ops._src.keras import dispatch


@dispatch.takes_keras_tensors("reverse_gradient")
def reverse_gradient(x: TensorLike, factor: TensorLike = 1.0) -> tf.Tensor:
    """Returns `x` and reverses its gradient, as in domain-adversarial training: `dx = -factor * dy`.

    Use it between features and a domain classifier: the classifier learns to tell the domains apart, and in the same
    step the features learn to hide them.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = cg.reverse_gradient(x, factor=0.5)
    >>> y.numpy().tolist(), tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    ([1.0, 2.0], [-0.5, -5.0])

    A factor that is a Variable or a Tensor, such as a schedule, can change without retracing. The forward pass reads
    it, and it gets no gradient. Forward mode multiplies the tangent by `-factor`.

    Args:
      x: A Tensor or Variable of dtype float16, bfloat16, float32, float64, complex64 or complex128, or a value that
        converts to one.
      factor: A real number, Variable or Tensor that broadcasts to the shape of `x`. It is cast to the dtype of `x`.

    Returns:
      A Tensor with the value, shape and dtype of `x`. It shares the memory of `x`.

    Raises:
      TypeError: `x` does not have one of these dtypes, or `factor` is not a real number.
      ValueError: `factor` does not broadcast to the shape of `x`.
      tf.errors.InvalidArgumentError: The same, if the shapes are only known at run time.

    TensorFlow has nothing like it.

    Source: Ganin and Lempitsky, "Unsupervised domain adaptation by backpropagation" (2015), arXiv:1409.7495, section 3.
    """
    _check_order("reverse_gradient", x, factor)
    return scaled("reverse_gradient", x, factor, reverse=True)


@dispatch.takes_keras_tensors("scale_gradient")
def scale_gradient(x: TensorLike, factor: TensorLike) -> tf.Tensor:
    """Returns `x` and scales its gradient: `dx = factor * dy`.

    Use it to weaken what one branch or loss of a model teaches the layers before it.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = cg.scale_gradient(x, 0.5)
    >>> y.numpy().tolist(), tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    ([1.0, 2.0], [0.5, 5.0])

    A factor that is a Variable or a Tensor can change without retracing. The forward pass reads it, and it gets no
    gradient. With a factor of 0 the gradient is zero, not `None` as with `tf.stop_gradient`.

    Args:
      x: A Tensor or Variable of dtype float16, bfloat16, float32, float64, complex64 or complex128, or a value that
        converts to one.
      factor: A real number, Variable or Tensor that broadcasts to the shape of `x`. It is cast to the dtype of `x`.

    Returns:
      A Tensor with the value, shape and dtype of `x`. It shares the memory of `x`.

    Raises:
      TypeError: `x` does not have one of these dtypes, or `factor` is not a real number.
      ValueError: `factor` does not broadcast to the shape of `x`.
      tf.errors.InvalidArgumentError: The same, if the shapes are only known at run time.

    TensorFlow has nothing like it. The usual formula, `factor * x + tf.stop_gradient((1 - factor) * x)`, rounds the
    value.
    """
    _check_order("scale_gradient", x, factor)
    return scaled("scale_gradient", x, factor, reverse=False)


def _check_order(api: str, x: Any, factor: Any) -> None:
    """Raises TypeError for a number as `x` with a Tensor as `factor`: the number has no gradient to multiply."""
    if isinstance(x, (int, float)) and (tf.is_tensor(factor) or isinstance(factor, tf.Variable)):
        raise TypeError(
            f"{api}: x must be a Tensor if factor is one, got the number {x}. x comes first: write {api}(x, {x})."
        )


@tf_internal.autograph_artifact
def scaled(api: str, x: Any, factor: Any, reverse: bool) -> tf.Tensor:
    """`reverse_gradient` or `scale_gradient`, with the name `api` in messages."""
    [x] = convert.to_tensors(api, ["x"], [x])
    factor = convert.to_real(api, "factor", factor, x.dtype)
    if not broadcasts_to(factor.shape, x.shape):
        raise ValueError(
            f"{api}: factor must broadcast to the shape of x, {x.shape}, got the shape {factor.shape}. Pass one "
            "number, or one for each element of x, which is the first argument."
        )
    return embed_tensors(x, [-factor if reverse else factor], [x], [], False, None)


def broadcasts_to(shape: tf.TensorShape, wanted: tf.TensorShape) -> bool:
    """Whether a Tensor of this shape can be broadcast to the wanted one, as far as both are known."""
    try:
        return tf.broadcast_static_shape(shape, wanted).is_compatible_with(wanted)
    except ValueError:  # They do not broadcast at all.
        return False
