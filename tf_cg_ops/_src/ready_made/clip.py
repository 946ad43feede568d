"""`clip_gradient`: an identity that limits the gradient that comes back through it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, text
from tf_cg_ops._src.custom_gradient import decorator, wording
from tf_cg_ops._src.keras import dispatch

_API = "clip_gradient"


@dispatch.takes_keras_tensors(_API)
def clip_gradient(
    x: Any,
    *,
    value: Any = None,
    norm: Any = None,
    global_norm: Any = None,
    axes: int | Sequence[int] | None = None,
) -> Any:
    """Returns `x`, with a limit on the gradient that comes back through it.

    For an upstream gradient `dy`, the gradient with respect to `x` is one of

        dx = minimum(maximum(dy, -value), value)              elementwise
        dx = dy * minimum(1, norm / sqrt(sum(|dy|**2, axes)))        each tensor by itself; over all axes by default
        dx = dy * minimum(1, global_norm / sqrt(sum over all tensors of |dy|**2))

    In a recurrent net it limits the gradient at each step, which clipping in the optimiser cannot: there the steps are
    added up already. The squares are summed in float32 for the 16-bit types, so that they do not overflow. A gradient
    that is not finite becomes nan below a norm: it is not hidden.

    The limits are inputs of the computation: a Variable or a Tensor that changes needs no new trace. They are read when
    the value is computed, and have no gradient. Second derivatives are those of the formulas.

    Relation to upstream: `tf.clip_by_value`, `tf.clip_by_norm` and `tf.clip_by_global_norm` clip values.

    What it does not do: it is no vector-Jacobian product of any function, for it is not linear in `dy`. The gradient of
    two losses is not the sum of their gradients, jacobians clip each row by itself, and the tangents of forward mode,
    which needs a linear function, mean nothing.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = cg.clip_gradient(x, norm=2.5)
    >>> y.numpy().tolist(), tape.gradient(y, x, output_gradients=tf.constant([3.0, -4.0])).numpy().tolist()
    ([1.0, 2.0], [1.5, -2.0])

    Args:
      x: A Tensor or Variable of dtype float16, bfloat16, float32, float64, complex64 or complex128 (not complex by
        value), or a nested structure of them.
      value: The limit of each element: a number that is at least 0, or a scalar Variable or Tensor.
      norm: The limit of the Euclidean norm of each tensor's gradient, likewise.
      global_norm: The limit of the Euclidean norm of the gradients of all tensors together, likewise.
      axes: With `norm`: the dimensions that one norm is taken over. `-1`, for example, clips each row by itself.

    Returns:
      The values of `x`, in its structure.

    Raises:
      TypeError: A dtype has no gradient, or is complex where `value` is given; a limit is not a real number.
      ValueError: Not exactly one limit is given, or it is negative or no scalar; `axes` without `norm`; `x` is empty.

    Source: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks" (2013),
    arXiv:1211.5063, section 3.2, for the norm.
    """
    given = {"value": value, "norm": norm, "global_norm": global_norm}
    given = {name: limit for name, limit in given.items() if limit is not None}
    if len(given) != 1:
        raise ValueError(
            f"{_API}: it clips in one way; expected one of value, norm and global_norm, got "
            f"{' and '.join(given) or 'none'}. Nest two calls to clip in two ways."
        )
    [(way, limit)] = given.items()
    if axes is not None and way != "norm":
        raise ValueError(
            f"{_API}: axes are those of a norm; expected norm together with axes, got {way}. Leave axes out, or "
            "clip by norm."
        )
    limit = to_limit(way, limit)
    names = [f"x[{i}]" for i in range(len(tf.nest.flatten(x)))] if tf.nest.is_nested(x) else ["x"]
    tensors = [
        convert.to_tensors(_API, [name], [leaf])[0] for name, leaf in zip(names, tf.nest.flatten(x), strict=True)
    ]
    if not tensors:
        raise ValueError(
            f"{_API}: x holds no Tensor; expected at least one, got {text.describe(x)}. Pass the values whose "
            "gradients to clip."
        )
    for tensor in tensors:
        if way == "value" and tensor.dtype.is_complex:
            raise TypeError(
                f"{_API}: complex numbers are not ordered; expected a real x to clip by value, got "
                f"{tensor.dtype.name}. Clip by norm."
            )

    def identity(*tensors: tf.Tensor) -> Any:
        return list(tensors), lambda *dys: _clip(way, dys, limit, axes)

    return tf.nest.pack_sequence_as(x, decorator.run(identity, tensors, {}, terms=wording.CLIP_GRADIENT))


def to_limit(way: str, limit: Any) -> tf.Tensor:
    """The limit in float64, from which it is cast to what it limits; TypeError or ValueError if it is none."""
    tensor = convert.to_real(_API, way, limit, tf.float64)
    if tensor.shape.rank not in (0, None):
        raise ValueError(
            f"{_API}: {way} is no scalar; expected a single number, got the shape {tensor.shape}. Reduce it."
        )
    known = tf.get_static_value(tensor)
    if known is not None and not known >= 0:
        raise ValueError(
            f"{_API}: {way} is negative; expected a number that is at least 0, got {np.asarray(known).item()}. "
            "Pass its size."
        )
    return tensor


def _clip(way: str, dys: Sequence[tf.Tensor], limit: tf.Tensor, axes: Any) -> list[tf.Tensor]:
    dys = [tf.convert_to_tensor(dy) for dy in dys]  # They may be sparse, from tf.gather.
    if way == "value":
        limits = [tf.cast(limit, dy.dtype) for dy in dys]
        return [tf.clip_by_value(dy, -bound, bound) for dy, bound in zip(dys, limits, strict=True)]
    # The squares are summed up in the widest type among the gradients.
    wide = tf.float64 if any(dy.dtype.real_dtype == tf.float64 for dy in dys) else tf.float32
    squares = [_sum_of_squares(dy, axes, wide) for dy in dys]
    if way == "global_norm":
        squares = [tf.add_n(squares)] * len(dys)
    return [_shrink(dy, square, limit) for dy, square in zip(dys, squares, strict=True)]


def _sum_of_squares(dy: tf.Tensor, axes: Any, wide: tf.DType) -> tf.Tensor:
    parts = [tf.math.real(dy), tf.math.imag(dy)] if dy.dtype.is_complex else [dy]
    keepdims = axes is not None
    return tf.add_n([tf.reduce_sum(tf.square(tf.cast(part, wide)), axes, keepdims=keepdims) for part in parts])


def _shrink(dy: tf.Tensor, square: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
    """The gradient with the norm sqrt(square), or at most with this limit as its norm."""
    limit = tf.cast(limit, square.dtype)
    # Where it is short the root is not taken: at zero it has no derivative.
    is_short = square <= tf.square(limit)
    norm = tf.sqrt(tf.where(is_short, tf.ones_like(square), square))
    factor = tf.where(is_short, tf.ones_like(norm), limit / norm)
    return dy * tf.cast(factor, dy.dtype)
