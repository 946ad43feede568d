"""Custom gradients in TensorFlow: each implementation takes `fx` and `gx` and returns a function of `x`.

The functions are made before the timing, as with a decorator at the top of a module.
"""

from collections.abc import Callable

import tensorflow as tf
import tensorflow_probability as tfp

import tf_cg_ops as cg
from tf_cg_ops._src.core import library

from .names import DECORATOR, EMBED, FORMULA, RAW_OP, TF, TFP

Function = Callable[[tf.Tensor], tf.Tensor]


def _raw_op(fx: tf.Tensor, gx: tf.Tensor) -> Function:
    """The op itself, without the conversion and the checks of `embed_gradient`: the least that eager mode can cost."""
    gx_list = [gx]
    attributes = {"fx_gx_manually_stopped": False, "axis": [], "all_axes": False, "name": None}
    return lambda x: library.custom_gradient_embed(fx, gx_list, [x], **attributes)


def _tfp(fx: tf.Tensor, gx: tf.Tensor) -> Function:
    """TensorFlow Probability's function. It only takes an `x` of the shape of `gx`.

    Its gradient is different unless the upstream is uniform.
    """
    return lambda x: tfp.math.custom_gradient(fx, gx, x if x.shape == gx.shape else tf.broadcast_to(x, gx.shape))


IMPLEMENTATIONS: dict[str, Callable[[tf.Tensor, tf.Tensor], Function]] = {
    RAW_OP: _raw_op,
    EMBED: lambda fx, gx: lambda x: cg.embed_gradient(fx, gx, x),
    DECORATOR: lambda fx, gx: cg.custom_gradient(lambda x: (fx, lambda dy: dy * gx)),
    TF: lambda fx, gx: tf.custom_gradient(lambda x: (fx, lambda dy: dy * gx)),
    # The formula in many code bases.
    FORMULA: lambda fx, gx: lambda x: fx + gx * (x - tf.stop_gradient(x)),
    TFP: _tfp,
}


def gradient(function: Function, x: tf.Tensor, dy: tf.Tensor | None = None) -> tf.Tensor:
    """One pass forward and one backward."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = function(x)
    return tape.gradient(h, x, dy)
