"""`reverse_gradient` and `scale_gradient`: identities whose gradient has a factor."""

from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, tf_internal
from tf_cg_ops._src.embed_gradient.api import embed_tensors
from tf_cg_ops._src.keras import dispatch


@dispatch.takes_keras_tensors("reverse_gradient")
def reverse_gradient(x: Any, factor: Any = 1.0) -> tf.Tensor:
    """Returns `x`, with the gradient reversed and scaled.

    For an upstream gradient `dy`, the gradient with respect to `x` is

        dx = -factor * dy

    In front of a domain classifier it trains the features to tell the domains apart as little as possible, by plain
    gradient descent on the loss of the classifier.

    The factor is an input of the computation: a Variable or a Tensor, such as that of a schedule, can change without
    retracing. It is read when the value is computed, and has no gradient. Forward mode gets `-factor` times the
    tangent.

    Compared with TensorFlow: it has no such function. Copies of it on the web are built with `tf.custom_gradient` and a
    Python number.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = cg.reverse_gradient(x, factor=0.5)
    >>> y.numpy().tolist(), tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    ([1.0, 2.0], [-0.5, -5.0])

    Args:
      x: A Tensor or Variable of dtype float16, bfloat16, float32, float64, complex64 or complex128, or what converts to
        one.
      factor: A real number, Variable or Tensor that broadcasts to the shape of `x`. It is cast to the dtype of `x`.

    Returns:
      A Tensor with the value, shape and dtype of `x`. It shares the buffer of `x`.

    Raises:
      TypeError: The dtype of `x` has no gradient, or `factor` is not a real number.
      ValueError: `factor` does not broadcast to the shape of `x`.
      tf.errors.InvalidArgumentError: The same, if the shapes are known at run time only.

    Source: Ganin and Lempitsky, "Unsupervised domain adaptation by backpropagation" (2015), arXiv:1409.7495, section 3.
    """
    return scaled("reverse_gradient", x, factor, reverse=True)


@dispatch.takes_keras_tensors("scale_gradient")
def scale_gradient(x: Any, factor: Any) -> tf.Tensor:
    """Returns `x`, with the gradient scaled.

    For an upstream gradient `dy`, the gradient with respect to `x` is

        dx = factor * dy

    With a factor of 0 the gradient is zero, not `None` as that of `tf.stop_gradient`. The factor is an input of the
    computation: a Variable or a Tensor can change without retracing. It is read when the value is computed, and has no
    gradient.

    Compared with TensorFlow: the common formula `factor * x + tf.stop_gradient((1 - factor) * x)` rounds the value;
    here the value is that of `x`, bit for bit.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = cg.scale_gradient(x, 0.5)
    >>> y.numpy().tolist(), tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    ([1.0, 2.0], [0.5, 5.0])

    Args:
      x: A Tensor or Variable of dtype float16, bfloat16, float32, float64, complex64 or complex128, or what converts to
        one.
      factor: A real number, Variable or Tensor that broadcasts to the shape of `x`. It is cast to the dtype of `x`.

    Returns:
      A Tensor with the value, shape and dtype of `x`. It shares the buffer of `x`.

    Raises:
      TypeError: The dtype of `x` has no gradient, or `factor` is not a real number.
      ValueError: `factor` does not broadcast to the shape of `x`.
      tf.errors.InvalidArgumentError: The same, if the shapes are known at run time only.
    """
    return scaled("scale_gradient", x, factor, reverse=False)


@tf_internal.autograph_artifact
def scaled(api: str, x: Any, factor: Any, reverse: bool) -> tf.Tensor:
    """`reverse_gradient` or `scale_gradient`, with the name `api` in messages."""
    [x] = convert.to_tensors(api, ["x"], [x])
    factor = convert.to_real(api, "factor", factor, x.dtype)
    if not broadcasts_to(factor.shape, x.shape):
        raise ValueError(
            f"{api}: factor does not broadcast to the shape of x; expected a scalar, or sizes that are 1 or those "
            f"of {x.shape}, got {factor.shape}. Give it one number for all, or one for each element of x."
        )
    return embed_tensors(x, [-factor if reverse else factor], [x], [], False, None)


def broadcasts_to(shape: tf.TensorShape, wanted: tf.TensorShape) -> bool:
    """Whether a Tensor of this shape can be broadcast to the wanted one, as far as both are known."""
    try:
        return tf.broadcast_static_shape(shape, wanted).is_compatible_with(wanted)
    except ValueError:  # They do not broadcast at all.
        return False
