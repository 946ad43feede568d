"""Custom gradients in TensorFlow: each implementation takes `fx` and `gx` and returns a function of `x`.

The functions are made before anything is timed, as a decorator at the top of a module would make them.
"""

from collections.abc import Callable

import tensorflow as tf
import tensorflow_probability as tfp

import tf_cg_ops as cg
from tf_cg_ops._src.core import library

from .names import DECORATOR, EMBED, FORMULA, RAW_OP, TF, TFP

Function = Callable[[tf.Tensor], tf.Tensor]


def raw_op(fx: tf.Tensor, gx: tf.Tensor) -> Function:
    """The op itself, without the conversion and the checks of `embed_gradient`: the least that eager mode can cost."""
    gx_list = [gx]

    def function(x: tf.Tensor) -> tf.Tensor:
        return library.custom_gradient_embed(
            fx, gx_list, [x], fx_gx_manually_stopped=False, axis=[], all_axes=False, name=None
        )

    return function


def embed_gradient(fx: tf.Tensor, gx: tf.Tensor) -> Function:
    """Ours, for values."""
    return lambda x: cg.embed_gradient(fx, gx, x)


def custom_gradient(fx: tf.Tensor, gx: tf.Tensor) -> Function:
    """Ours, the decorator."""
    return cg.custom_gradient(lambda x: (fx, lambda dy: dy * gx))


def tf_custom_gradient(fx: tf.Tensor, gx: tf.Tensor) -> Function:
    """TensorFlow's."""
    return tf.custom_gradient(lambda x: (fx, lambda dy: dy * gx))


def formula(fx: tf.Tensor, gx: tf.Tensor) -> Function:
    """The stop-gradient formula, as many code bases have it."""
    return lambda x: fx + gx * (x - tf.stop_gradient(x))


def tfp_custom_gradient(fx: tf.Tensor, gx: tf.Tensor) -> Function:
    """TensorFlow Probability's, which returns another gradient unless the upstream is uniform.

    It takes an `x` of the shape of `gx` only.
    """
    return lambda x: tfp.math.custom_gradient(fx, gx, x if x.shape == gx.shape else tf.broadcast_to(x, gx.shape))


IMPLEMENTATIONS: dict[str, Callable[[tf.Tensor, tf.Tensor], Function]] = {
    RAW_OP: raw_op,
    EMBED: embed_gradient,
    DECORATOR: custom_gradient,
    TF: tf_custom_gradient,
    FORMULA: formula,
    TFP: tfp_custom_gradient,
}


def step(name: str) -> Callable[..., tf.Tensor]:
    """One pass forward and one backward, as a function of all tensors."""
    return lambda fx, gx, x, dy: gradient(IMPLEMENTATIONS[name](fx, gx), x, dy)


def gradient(function: Function, x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    """One pass forward and one backward."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = function(x)
    return tape.gradient(h, x, dy)
