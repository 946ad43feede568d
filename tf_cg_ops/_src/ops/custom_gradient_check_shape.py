"""CustomGradientCheckShape: its gradient and its batching rule."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import library, tf_internal
from tf_cg_ops._src.ops import batching


@tf.RegisterGradient("CustomGradientCheckShape")
def _custom_gradient_check_shape(op: Any, dy: Any) -> Sequence[Any]:
    """Forwards the gradient; the shape has none."""
    return [dy, None]


@tf_internal.RegisterPFor("CustomGradientCheckShape")
def _convert_check_shape(pfor_input: Any) -> Any:
    gradient, shape = pfor_input.input(0), batching.shape_of_member(pfor_input, 1)
    if gradient.is_stacked:
        shape = tf.concat([tf.shape(gradient.t, out_type=shape.dtype)[:1], shape], 0)
    checked = library.custom_gradient_check_shape(gradient.t, shape, message=pfor_input.get_attr("message"))
    return tf_internal.wrap_for_pfor(checked, gradient.is_stacked)
