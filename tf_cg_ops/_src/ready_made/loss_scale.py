"""The argument `loss_scale`: what the loss of mixed precision is multiplied by, read when a value is computed."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, signature, text
from tf_cg_ops._src.keras import registration


@dataclasses.dataclass(frozen=True)
class LossScale:
    """The loss scale of a call.

    Attributes:
      scale: A float64 scalar.
      can_shrink: Whether it can be smaller in the next step, as the scale of an optimizer is after an overflow.
    """

    scale: tf.Tensor
    can_shrink: bool


def read(api: str, value: Any) -> LossScale | None:
    """The loss scale now; None for None, and TypeError or ValueError if it cannot be a loss scale."""
    if value is None:
        return None
    if callable(value):
        value = signature.call(value, [], {}, f"{api}: the function loss_scale must take no arguments")
    can_shrink = not isinstance(value, (int, float, np.number))
    for module in registration.loaded_modules():
        if isinstance(value, module.keras.mixed_precision.LossScaleOptimizer):
            value, can_shrink = module.loss_scale_of(value)
    try:
        scale = convert.to_real(api, "loss_scale", value, tf.float64)
    except TypeError as error:
        raise TypeError(
            f"{api}: loss_scale must be a number, a Variable or Tensor, a LossScaleOptimizer of Keras, or a function "
            f"without arguments that returns one of them, got {text.describe(value)}. Keras wraps the optimizer of a "
            "mixed_float16 model: pass keras.mixed_precision.LossScaleOptimizer(optimizer) to both."
        ) from error
    known = tf.get_static_value(scale)
    if scale.shape.rank not in (0, None) or (known is not None and not 0 < known < np.inf):
        got = f"the shape {scale.shape}" if known is None or scale.shape.rank else known.item()
        raise ValueError(f"{api}: loss_scale must be a single finite number above 0, got {got}.")
    return LossScale(scale, can_shrink)
