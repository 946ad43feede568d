"""`fake_quant`: rounds to steps of a scale, as an int8 model does, with gradients that train both."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, library, slices, text, tf_internal
from tf_cg_ops._src.core.types import TensorLike
from tf_cg_ops._src.custom_gradient.call import call_with_gradient
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.keras import dispatch

_API = "fake_quant"
# Marks the op that keeps nan, which `strip` takes out: integers have none.
KEEPS_NAN = "_tf_cg_ops_keeps_nan"


@dispatch.takes_keras_tensors(_API, "Name the options, as in fake_quant(x, scale, bits=8, axis=-1).")
def fake_quant(
    x: TensorLike,
    scale: TensorLike,
    bits: int = 8,
    *,
    zero_point: int = 0,
    narrow_range: bool = False,
    axis: int | None = None,
    rounding: str = "up",
    gradient_factor: float = 1.0,
) -> tf.Tensor:
    """Rounds `x` to integer multiples of `scale`, as an int8 model does, and lets you train `x` and `scale` through it.

    Use it on weights and activations, for quantization-aware training (QAT). LiteRT's converter reads the scales from
    it and writes an int8 model without calibration data.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x, scale = tf.constant([0.3, -0.4, 9.0]), tf.constant(0.5)
    >>> with tf.GradientTape() as tape:
    ...     tape.watch([x, scale])
    ...     y = cg.fake_quant(x, scale, bits=4)
    >>> dx, dscale = tape.gradient(y, [x, scale], output_gradients=tf.constant([1.0, 10.0, 100.0]))
    >>> y.numpy().tolist(), dx.numpy().tolist(), round(float(dscale), 4)
    ([0.5, -0.5, 3.5], [1.0, 10.0, 0.0], 698.4)

    The levels are the integers that `bits` bits hold, from `lowest = -2**(bits - 1)` to `highest = 2**(bits - 1) - 1`:

        y = scale * (clip(round(x / scale) + zero_point, lowest, highest) - zero_point)

    `x` is inside if `lowest - zero_point <= x / scale <= highest - zero_point`. For an upstream gradient `dy`:

        dx = dy where x is inside, else 0
        dscale = gradient_factor * sum(dy * (y - (x where x is inside, else 0)) / scale)

    Second derivatives by `x` and `scale` are zero. nan in `x` stays nan until you `strip` the model; its `dx` is zero,
    and `dscale` is nan.

    LiteRT's converter reads up to 8 bits, as int8; with fewer, keep `zero_point=0` for activations, because LiteRT
    computes others in floats. With more you can train, but LiteRT's convolutions compute such files wrongly.
    `docs/quantization.md` has the recipe for whole models, and what the converter refuses.

    Args:
      x: A Tensor or Variable of dtype float16, bfloat16, float32 or float64, or a value that converts to one. 16-bit
        numbers are computed in float32. float64 is computed without the op that the converter reads.
      scale: The size of a step: a positive number, Variable or Tensor; with `axis`, a vector with one for each channel.
        A Tensor or Variable that is not positive and finite, also times the levels, gives nan.
      bits: From 2 to 16.
      zero_point: The level that stands for 0. With 8 bits, -128 is the one for values that are never negative.
      narrow_range: Whether to leave out the lowest level, as LiteRT's kernels want it for weights.
      axis: The dimension of the channels. By default all of `x` has one scale.
      rounding: `"up"` rounds a tie up, as TensorFlow's quantization ops do. `"even"` rounds it to the even level, as
        `tf.round`, NumPy and JAX do, but LiteRT then computes a layer with such activations in floats.
      gradient_factor: Multiplies the gradient of `scale`. Esser et al. train with `1 / sqrt(count * highest)`, where
        `count` is the number of weights, or of activations in one example.

    Returns:
      A Tensor with the shape and dtype of `x`.

    Raises:
      TypeError: An argument has the wrong type.
      ValueError: A number is out of range, or `scale` or `axis` does not fit the shape of `x`.
      tf.errors.InvalidArgumentError: `scale` does not fit, but TensorFlow learns the sizes only at run time.

    Differs from `tf.quantization.fake_quant_with_min_max_vars` and Keras's function of that name: the same value and
    `dx`, but you give the scale instead of a range, and the gradient is by the scale.

    Sources: Esser et al., "Learned step size quantization" (2020), arXiv:1902.08153, for the gradient; Jacob et al.
    (2018), arXiv:1712.05877, for the levels.
    """
    return quantized(_API, x, scale, Options.of(_API, bits, zero_point, narrow_range, axis, rounding, gradient_factor))


class Options(NamedTuple):
    """The options, but the ends of the levels as steps from zero."""

    bits: int
    low: int
    high: int
    narrow_range: bool
    axis: int | None
    rounding: str
    gradient_factor: float

    @classmethod
    def of(cls, api: str, bits: Any, zero_point: Any, narrow_range: Any, axis: Any, rounding: Any, factor: Any) -> Any:
        """TypeError or ValueError if an option is wrong."""
        bits = _to_int(api, "bits", bits, 2, 16)
        narrow_range = convert.to_bool(api, "narrow_range", narrow_range)
        lowest, highest = narrow_range - 2 ** (bits - 1), 2 ** (bits - 1) - 1
        zero_point = _to_int(api, "zero_point", zero_point, lowest, highest)
        axis = None if axis is None else _to_int(api, "axis", axis)
        if rounding not in ("up", "even"):
            raise ValueError(f"{api}: rounding must be 'up' or 'even', got {text.describe(rounding)}.")
        if isinstance(factor, bool) or not isinstance(factor, (int, float, np.number)):
            raise TypeError(f"{api}: gradient_factor must be a number, got {text.describe(factor)}.")
        if not math.isfinite(factor):
            raise ValueError(f"{api}: gradient_factor must be finite, got {factor}.")
        return cls(bits, lowest - zero_point, highest - zero_point, narrow_range, axis, rounding, float(factor))


def _to_int(api: str, name: str, value: Any, lowest: float = -math.inf, highest: float = math.inf) -> int:
    among = "an int" if lowest == -math.inf else f"an int from {lowest} to {highest}"
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        advice = " It is one number for all channels." if hasattr(value, "shape") else ""
        raise TypeError(f"{api}: {name} must be {among}, got {text.describe(value)}.{advice}")
    if not lowest <= value <= highest:
        raise ValueError(f"{api}: {name} must be {among}, got {value}.")
    return int(value)


@tf_internal.autograph_artifact
def quantized(api: str, x: Any, scale: Any, options: Options) -> tf.Tensor:
    """`fake_quant`, with the name `api` in messages."""
    [x] = convert.to_tensors(api, ["x"], [x])
    if not x.dtype.is_floating:
        raise TypeError(f"{api}: x must be real, got {x.dtype.name}. Quantize tf.math.real(x) and tf.math.imag(x).")
    steps = convert.to_real(api, "scale", scale, tf.float64 if x.dtype == tf.float64 else tf.float32)
    if not (tf.is_tensor(scale) or hasattr(scale, "assign")):
        known = tf.get_static_value(steps)
        if not np.all((known > 0) & np.isfinite(known)):
            raise ValueError(f"{api}: scale must be positive and finite, got {text.describe(scale)}.")
    _check_shapes(api, x.shape, steps.shape, options.axis)
    channels = slice(0, 0) if options.axis is None else slice(options.axis, options.axis + 1 or None)
    if not (steps.shape.is_fully_defined() and (options.axis is None or x.shape[options.axis] is not None)):
        message = f"{api}: scale must have the shape {{expected}}, which fits x with axis={options.axis}, got {{got}}."
        steps = library.custom_gradient_check_shape(steps, tf.shape(x, tf.int64)[channels], message=message)
    others = None
    if options.axis is not None:
        order, axis = list(range(x.shape.rank)), options.axis % x.shape.rank
        if axis < len(order) - 1:  # Swap it with the last dimension, and back, which the converter folds for a kernel.
            order[axis], order[-1] = order[-1], order[axis]
            return tf.transpose(quantized(api, tf.transpose(x, order), steps, options._replace(axis=-1)), order)
        others = order[:-1]

    def compute(x: tf.Tensor, scale: tf.Tensor) -> tuple[tf.Tensor, Callable[[Any], Any]]:
        wide = tf.cast(x, scale.dtype)
        # For a range that is not one, the op returns any numbers, but for nan it returns nan.
        step = tf.where(scale > 0, scale, tf.constant(np.nan, scale.dtype))
        y = _round(wide, step, options)
        if wide.dtype != tf.float64:  # Under XLA, TensorFlow's op makes numbers of nan.
            y = tf.where(tf.math.is_nan(wide), wide, y)
            if not tf.executing_eagerly():
                tf_internal.set_attribute(y.op, KEEPS_NAN, tf.compat.v1.AttrValue(b=True))

        def grad_fn(dy: Any) -> tuple[tf.Tensor, tf.Tensor]:
            dy = slices.to_dense(dy)
            inside = (wide >= options.low * step) & (wide <= options.high * step)
            # A constant: along x and scale, the rounding error stays the same share of a step.
            slope = tf.stop_gradient((y - tf.where(inside, wide, tf.zeros_like(wide))) / step)
            dscale = tf.reduce_sum(tf.cast(dy, scale.dtype) * slope, others)
            return tf.where(inside, dy, tf.zeros_like(dy)), options.gradient_factor * dscale

        return tf.cast(y, x.dtype), grad_fn

    return call_with_gradient(compute, [x, steps], {}, wording=without_gradient_function(api))


def _check_shapes(api: str, shape: tf.TensorShape, scale: tf.TensorShape, axis: int | None) -> None:
    """ValueError unless the scale fits the shape of x."""
    if axis is None:
        if scale.rank not in (0, None):
            raise ValueError(
                f"{api}: scale must be one number if axis is None, got the shape {scale}. For one scale per channel, "
                "name the dimension of the channels, as in axis=-1."
            )
        return
    if shape.rank is None:
        raise ValueError(f"{api}: x must have a known rank if you pass axis. Set its shape with tf.ensure_shape.")
    if not -shape.rank <= axis < shape.rank:
        raise ValueError(f"{api}: axis must name a dimension of x, whose shape is {shape}, got {axis}.")
    if not scale.is_compatible_with([shape[axis]]):
        raise ValueError(
            f"{api}: scale must have the shape ({shape[axis]},) with axis={axis}, one number for each channel of x, "
            f"got the shape {scale}."
        )


def _round(x: tf.Tensor, step: tf.Tensor, options: Options) -> tf.Tensor:
    """The nearest levels; except for float64, by the op that LiteRT's converter reads."""
    low, high, shape = options.low, options.high, x.shape
    if x.dtype == tf.float64 or options.rounding == "even":
        levels = tf.clip_by_value(x / step, low, high)
        x = (tf.round(levels) if options.rounding == "even" else tf.floor(levels + 0.5)) * step
        if x.dtype == tf.float64:
            return x
    if options.bits < 8:  # LiteRT stores 8. With fewer in the op, its file is wrong, or there is none.
        x = tf.clip_by_value(x, low * step, high * step)
        low, high = options.narrow_range - 128, 127
    op = tf.quantization.fake_quant_with_min_max_vars
    if options.axis is not None:
        op = tf.quantization.fake_quant_with_min_max_vars_per_channel
        if shape.rank not in (1, 2, 4):  # The ranks of the op.
            shape, x = tf.shape(x), tf.reshape(x, [-1, tf.size(step)])
    y = op(x, low * step, high * step, max(options.bits, 8), options.narrow_range)
    return tf.reshape(y, shape) if tf.is_tensor(shape) else y


def _convert(pfor_input: Any) -> Any:
    """Batches the ops: a channel of a member is a channel."""
    pfor_input.stack_inputs()
    x, low, high = (pfor_input.stacked_input(i) for i in range(3))
    channels = tf.size(low)
    sizes = tf.stack([tf.shape(low)[0], tf.size(x) // tf.maximum(channels, 1), tf.size(low[:1])])
    by_member = tf.transpose(tf.reshape(x, sizes), [1, 0, 2])
    y = tf.quantization.fake_quant_with_min_max_vars_per_channel(
        tf.reshape(by_member, [sizes[1], channels]),
        *(tf.reshape(end, [-1]) for end in (low, high)),
        pfor_input.get_attr("num_bits"),
        pfor_input.get_attr("narrow_range"),
    )
    y = tf.transpose(tf.reshape(y, tf.shape(by_member)), [1, 0, 2])
    return tf_internal.wrap_for_pfor(tf.reshape(y, tf.shape(x)), True)


for _op in {"FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel"} - tf_internal.pfor_converters.keys():
    tf_internal.RegisterPFor(_op)(_convert)
