"""`clip_gradient`: an identity that clips the gradient."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, text, tf_internal
from tf_cg_ops._src.custom_gradient.call import call_with_gradient
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.keras import dispatch

_API = "clip_gradient"


@dispatch.takes_keras_tensors(_API)
def clip_gradient(
    x: Any, *, value: Any = None, norm: Any = None, global_norm: Any = None, axis: int | Sequence[int] | None = None
) -> Any:
    """Returns `x`, and clips the gradient.

    For an upstream gradient `dy`, the gradient with respect to `x` is one of

        dx = minimum(maximum(dy, -value), value)              elementwise
        dx = dy * minimum(1, norm / sqrt(sum(|dy|**2, axis)))        each tensor by itself; by default over all of it
        dx = dy * minimum(1, global_norm / sqrt(sum over all tensors of |dy|**2))

    In a recurrent net it limits the gradient at each step. Clipping in the optimiser cannot: there the gradients of all
    steps are summed. The squares of 16-bit types are summed in float32, so that they do not overflow. A gradient that
    is not finite stays visible: clipping by norm makes it nan.

    The limits are inputs of the computation: a Variable or a Tensor can change without retracing. They are read when
    the value is computed, and have no gradient. Second derivatives are those of the formulas.

    Compared with TensorFlow: `tf.clip_by_value`, `tf.clip_by_norm` and `tf.clip_by_global_norm` clip values.

    Clipping is not linear in `dy`, so it is the vector-Jacobian product of no function. The gradient of two losses is
    not the sum of their gradients, jacobians clip each row by itself, and the tangents of forward mode mean nothing.

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
      axis: With `norm`: the dimensions that one norm is taken over. `-1`, for example, clips each row by itself.

    Returns:
      The values of `x`, in its structure.

    Raises:
      TypeError: A dtype has no gradient, or is complex where `value` is given; a limit is not a real number, or `axis`
        is not an int or a sequence of ints.
      ValueError: The call passes not exactly one limit, or `axis` without `norm`; a limit is negative, nan or not a
        scalar; `x` is empty. At the call, or with the gradient if the rank of `x` is only known then: `axis` is out of
        range or names a dimension twice.

    Source: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks" (2013),
    arXiv:1211.5063, section 3.2, for the norm.
    """
    return clipped(_API, x, *only_limit(_API, value, norm, global_norm, axis), axis)


@tf_internal.autograph_artifact
def clipped(api: str, x: Any, mode: str, limit: Any, axis: Any) -> Any:
    """`clip_gradient` by the limit of this name, with the name `api` in messages."""
    limit = to_limit(api, mode, limit)
    names = [f"x[{i}]" for i in range(len(tf.nest.flatten(x)))] if tf.nest.is_nested(x) else ["x"]
    tensors = [convert.to_tensors(api, [name], [leaf])[0] for name, leaf in zip(names, tf.nest.flatten(x), strict=True)]
    if not tensors:
        raise ValueError(
            f"{api}: x holds no Tensor; expected at least one, got {text.describe(x)}. Pass the values whose "
            "gradients to clip."
        )
    for tensor in tensors:
        if mode == "value" and tensor.dtype.is_complex:
            raise TypeError(
                f"{api}: complex gradients cannot be clipped by value; expected a real x, got {tensor.dtype.name}. "
                "Clip by norm."
            )
        _check_axis(api, axis, tensor)

    wording = without_gradient_function(api)

    def identity(*tensors: tf.Tensor) -> Any:
        return list(tensors), lambda *dys: clip(api, mode, dys, limit, axis)

    return tf.nest.pack_sequence_as(x, call_with_gradient(identity, tensors, {}, wording=wording))


def only_limit(api: str, value: Any, norm: Any, global_norm: Any, axis: Any) -> tuple[str, Any]:
    """The name of the one limit that is given, and the limit; ValueError if there is another number of them."""
    limits = {"value": value, "norm": norm, "global_norm": global_norm}
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    if len(limits) != 1:
        raise ValueError(
            f"{api}: pass exactly one of value, norm, global_norm; got {' and '.join(limits) or 'none'}. Nest two "
            "calls to apply two limits."
        )
    [(mode, limit)] = limits.items()
    if axis is not None and mode != "norm":
        raise ValueError(f"{api}: axis needs norm, got {mode}. Leave axis out, or pass norm.")
    entries = _entries(axis)
    if axis is not None and not all(isinstance(e, (int, np.integer)) and not isinstance(e, bool) for e in entries):
        raise TypeError(f"{api}: axis must be an int or a sequence of ints, got {text.describe(axis)}.")
    return mode, limit


def _entries(axis: Any) -> list[Any]:
    return list(axis) if isinstance(axis, (list, tuple, range)) else [axis]


def _check_axis(api: str, axis: Any, tensor: tf.Tensor) -> None:
    """ValueError unless these are different dimensions of the Tensor, as far as its rank is known."""
    rank = tensor.shape.rank
    if axis is None or rank is None:
        return
    entries = _entries(axis)
    if not all(-rank <= entry < rank for entry in entries) or len({entry % rank for entry in entries}) < len(entries):
        raise ValueError(
            f"{api}: axis must name dimensions of a tensor of rank {rank}, each once, got {axis}. Negative numbers "
            "count from the last dimension."
        )


def to_limit(api: str, mode: str, limit: Any) -> tf.Tensor:
    """The limit of this name as a float64 scalar; TypeError or ValueError if it is not a size."""
    tensor = convert.to_real(api, mode, limit, tf.float64)
    if tensor.shape.rank not in (0, None):
        raise ValueError(
            f"{api}: {mode} is not a scalar; expected a single number, got the shape {tensor.shape}. Reduce it."
        )
    known = tf.get_static_value(tensor)
    if known is not None and np.isnan(known):
        raise ValueError(f"{api}: {mode} must be a number that is at least 0, got nan.")
    if known is not None and known < 0:
        raise ValueError(
            f"{api}: {mode} is negative; expected a number that is at least 0, got {np.asarray(known).item()}. "
            "Pass its size."
        )
    return tensor


def clip(api: str, mode: str, dys: Sequence[tf.Tensor], limit: tf.Tensor, axis: Any) -> list[tf.Tensor]:
    """The gradients, within the limit of this name."""
    dys = [tf.convert_to_tensor(dy) for dy in dys]  # A tf.gather returns slices.
    if mode == "value":
        limits = [tf.cast(limit, dy.dtype) for dy in dys]
        return [tf.clip_by_value(dy, -bound, bound) for dy, bound in zip(dys, limits, strict=True)]
    for dy in dys:
        _check_axis(api, axis, dy)
    dtype = tf.float64 if any(dy.dtype.real_dtype == tf.float64 for dy in dys) else tf.float32
    squared_norms = [_squared_norm(dy, axis, dtype) for dy in dys]
    if mode == "global_norm":
        squared_norms = [tf.add_n(squared_norms)] * len(dys)
    return [_clip_by_norm(dy, squared, limit) for dy, squared in zip(dys, squared_norms, strict=True)]


def _squared_norm(dy: tf.Tensor, axis: Any, dtype: tf.DType) -> tf.Tensor:
    parts = [tf.math.real(dy), tf.math.imag(dy)] if dy.dtype.is_complex else [dy]
    keepdims = axis is not None
    return tf.add_n([tf.reduce_sum(tf.square(tf.cast(part, dtype)), axis, keepdims=keepdims) for part in parts])


def _clip_by_norm(dy: tf.Tensor, squared_norm: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
    """The gradient `dy`, scaled down if its norm is above the limit."""
    limit = tf.cast(limit, squared_norm.dtype)
    # Below the limit no square root is taken: at zero it has no derivative.
    is_within = squared_norm <= tf.square(limit)
    norm = tf.sqrt(tf.where(is_within, tf.ones_like(squared_norm), squared_norm))
    factor = tf.where(is_within, tf.ones_like(norm), limit / norm)
    return dy * tf.cast(factor, dy.dtype)
