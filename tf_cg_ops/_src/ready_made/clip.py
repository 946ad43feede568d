"""`clip_gradient`: an identity that clips the gradient."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, text, tf_internal
from tf_cg_ops._src.core.types import Axis, Structure, TensorLike
from tf_cg_ops._src.custom_gradient.call import call_with_gradient
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.keras import dispatch
from tf_cg_ops._src.ready_made import loss_scale as loss_scales

_API = "clip_gradient"


@dispatch.takes_keras_tensors(_API, "Name the limit, as in clip_gradient(x, norm=1.0).")
def clip_gradient(
    x: Structure,
    *,
    value: TensorLike | None = None,
    norm: TensorLike | None = None,
    global_norm: TensorLike | None = None,
    axis: Axis = None,
    loss_scale: Any = None,
) -> Structure:
    """Returns `x` and clips its gradient.

    Use it inside a model, for example at each step of a recurrent net, where an optimizer only sees the sum of the
    steps.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = cg.clip_gradient(x, norm=2.5)
    >>> y.numpy().tolist(), tape.gradient(y, x, output_gradients=tf.constant([3.0, -4.0])).numpy().tolist()
    ([1.0, 2.0], [1.5, -2.0])

    Pass one limit. `value` limits each element of the upstream gradient `dy`:

        dx = minimum(maximum(dy, -value), value)

    `norm` limits the norm of each tensor's gradient, over the dimensions `axis`:

        dx = dy * minimum(1, norm / sqrt(sum(|dy|**2, axis)))

    `global_norm` limits the norm of the gradients of all tensors in `x` together:

        dx = dy * minimum(1, global_norm / sqrt(sum over all tensors of |dy|**2))

    A limit that is a Variable or a Tensor can change without retracing. The forward pass reads it, and it gets no
    gradient. Clipping by norm turns infinite elements into nan, so you can still see that a gradient overflowed.

    In mixed precision with float16, as Keras's `mixed_float16`, the loss and so each gradient is multiplied by a loss
    scale. Pass it as `loss_scale`, or the limit is far too small:

        dx = clip(dy / loss_scale) * loss_scale

    Elements that are infinite or nan stay so, so that the optimizer can skip the step.

    Clipping is not linear in `dy`: the gradient of a sum of losses is not the sum of their gradients, a Jacobian clips
    each of its rows, and forward mode gives meaningless tangents.

    Args:
      x: A Tensor or Variable of dtype float16, bfloat16, float32, float64, complex64 or complex128 (not complex with
        `value`), or a nested structure of them.
      value: The limit for each element: a number that is at least 0, or a scalar Variable or Tensor.
      norm: The limit for the Euclidean norm of each tensor's gradient, likewise.
      global_norm: The limit for the Euclidean norm of the gradients of all tensors together, likewise.
      axis: With `norm`: the dimensions to take the norm over, by default all. `-1`, for example, clips each row.
      loss_scale: What the loss is multiplied by: a number, a scalar Variable or Tensor, a
        `keras.mixed_precision.LossScaleOptimizer` of Keras 3 or tf_keras, or a function without arguments that returns
        one of them. The forward pass reads it.

    Returns:
      The values of `x`, in its structure.

    Raises:
      TypeError: `x` does not have one of these dtypes; a limit is not a real number; `axis` is not made of ints; or
        `loss_scale` is none of the above.
      ValueError: You passed not exactly one limit, or `axis` without `norm`; a number is out of range; `x` is empty; or
        `axis` does not fit the rank of `x`.

    Differs from `tf.clip_by_value`, `tf.clip_by_norm` and `tf.clip_by_global_norm`, which clip values.

    Source: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks" (2013),
    arXiv:1211.5063, section 3.2, for the norm.
    """
    return clipped(_API, x, *only_limit(_API, value, norm, global_norm, axis), axis, loss_scale)


@tf_internal.autograph_artifact
def clipped(api: str, x: Any, mode: str, limit: Any, axis: Any, loss_scale: Any) -> Any:
    """`clip_gradient` by the limit of this name, with the name `api` in messages."""
    limit = to_limit(api, mode, limit)
    scaling = loss_scales.read(api, loss_scale)
    if scaling is not None:
        limit *= scaling.scale
    tensors = convert.leaves_to_tensors(api, x, "clip")
    for tensor in tensors:
        if mode == "value" and tensor.dtype.is_complex:
            raise TypeError(f"{api}: x must be real to clip by value, got {tensor.dtype.name}. Clip by norm.")
        _check_axis(api, axis, tensor)

    wording = without_gradient_function(api)

    def identity(*tensors: tf.Tensor) -> Any:
        return list(tensors), lambda *dys: clip(api, mode, dys, limit, axis, keep_overflow=scaling is not None)

    return tf.nest.pack_sequence_as(x, call_with_gradient(identity, tensors, {}, wording=wording))


def only_limit(api: str, value: Any, norm: Any, global_norm: Any, axis: Any, others: Any = ()) -> tuple[str, Any]:
    """The name of the one limit and its value; ValueError unless exactly one is given. `others` are other names."""
    limits = {"value": value, "norm": norm, "global_norm": global_norm}
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    if len(limits) != 1:
        got = " and ".join(limits or others) or "none"
        advice = "To apply two limits, nest two calls." if limits else "Write for example norm=1.0."
        raise ValueError(f"{api}: pass exactly one of value, norm and global_norm, got {got}. {advice}")
    [(mode, limit)] = limits.items()
    if axis is not None and mode != "norm":
        raise ValueError(f"{api}: axis is for norm only, got {mode}. Leave axis out, or pass norm.")
    entries = _entries(axis)
    if axis is not None and not all(isinstance(e, (int, np.integer)) and not isinstance(e, bool) for e in entries):
        raise TypeError(f"{api}: axis must be an int or a sequence of ints, got {text.describe(axis)}.")
    return mode, limit


def _entries(axis: Any) -> list[Any]:
    return list(axis) if isinstance(axis, (list, tuple, range)) else [axis]


def _check_axis(api: str, axis: Any, tensor: tf.Tensor) -> None:
    """ValueError unless the axis names different dimensions of the Tensor, if its rank is known."""
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
    """The limit of this name as a float64 scalar; TypeError or ValueError if it cannot be a limit."""
    tensor = convert.to_real(api, mode, limit, tf.float64)
    if tensor.shape.rank not in (0, None):
        advice = f"Write {mode}=1.0{' for limits of -1 and 1' if mode == 'value' else ''}."
        raise ValueError(f"{api}: {mode} must be a single number, got the shape {tensor.shape}. {advice}")
    known = tf.get_static_value(tensor)
    if known is not None and not known >= 0:  # Also false for nan.
        raise ValueError(f"{api}: {mode} must be a number that is at least 0, got {np.asarray(known).item()}.")
    return tensor


def clip(
    api: str, mode: str, dys: Sequence[tf.Tensor], limit: tf.Tensor, axis: Any, keep_overflow: bool = False
) -> list[tf.Tensor]:
    """The gradients, clipped to the limit of this name. With `keep_overflow`, `value` leaves infinite elements."""
    dys = [tf.convert_to_tensor(dy) for dy in dys]  # The gradient of tf.gather is a tf.IndexedSlices.
    if mode == "value":
        limits = [tf.cast(limit, dy.dtype) for dy in dys]
        within = [tf.clip_by_value(dy, -bound, bound) for dy, bound in zip(dys, limits, strict=True)]
        if not keep_overflow:
            return within
        return [tf.where(tf.math.is_finite(dy), clipped, dy) for dy, clipped in zip(dys, within, strict=True)]
    for dy in dys:
        _check_axis(api, axis, dy)
    dtype = tf.float64 if any(dy.dtype.real_dtype == tf.float64 for dy in dys) else tf.float32
    sizes = [_size(dy, axis, dtype) for dy in dys]
    if mode == "global_norm":
        sizes = [tf.reduce_max(tf.stack(sizes))] * len(dys)
    # Scaled, because the squares of huge and tiny numbers overflow and underflow.
    sizes = [tf.where(tf.math.is_finite(size) & (size > 0), size, tf.ones_like(size)) for size in sizes]
    scaled = [[part / size for part in _parts(dy, dtype)] for dy, size in zip(dys, sizes, strict=True)]
    squared_norms = [_squared_norm(parts, axis) for parts in scaled]
    if mode == "global_norm":
        squared_norms = [tf.add_n(squared_norms)] * len(dys)
    rows = zip(dys, scaled, squared_norms, sizes, strict=True)
    return [_clip_by_norm(*row, tf.cast(limit, dtype)) for row in rows]


def _parts(dy: tf.Tensor, dtype: tf.DType) -> list[tf.Tensor]:
    """The real numbers of a gradient: a complex product with an infinite number has a part that is nan."""
    return [tf.cast(part, dtype) for part in ([tf.math.real(dy), tf.math.imag(dy)] if dy.dtype.is_complex else [dy])]


def _size(dy: tf.Tensor, axis: Any, dtype: tf.DType) -> tf.Tensor:
    """The largest absolute value, as a constant: the clipped gradient does not depend on it."""
    keepdims = axis is not None
    sizes = [tf.reduce_max(tf.abs(tf.stop_gradient(part)), axis, keepdims=keepdims) for part in _parts(dy, dtype)]
    return functools.reduce(tf.maximum, sizes)


def _squared_norm(parts: Sequence[tf.Tensor], axis: Any) -> tf.Tensor:
    return tf.add_n([tf.reduce_sum(tf.square(part), axis, keepdims=axis is not None) for part in parts])


def _clip_by_norm(
    dy: tf.Tensor, scaled: Sequence[tf.Tensor], squared_norm: tf.Tensor, size: tf.Tensor, limit: tf.Tensor
) -> tf.Tensor:
    """The gradient `dy`, which is `scaled * size`, scaled down if its norm is above the limit."""
    # No square root below the limit: at zero it has no derivative.
    is_within = squared_norm <= tf.square(limit / size)
    norm = tf.sqrt(tf.where(is_within, tf.ones_like(squared_norm), squared_norm))
    factor = tf.where(is_within, tf.ones_like(norm), limit / norm)
    parts = [part * factor for part in scaled]
    return tf.where(is_within, dy, tf.cast(parts[0] if len(parts) == 1 else tf.complex(*parts), dy.dtype))
