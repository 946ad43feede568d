"""`embed_gradient` in eager mode: the gradient goes onto the tapes as a closure.

A tape that recorded the op itself would keep all inputs. The closure only keeps `gx` and shapes, and calling it takes a
third of the time.
"""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, library, tapes, tf_internal
from tf_cg_ops._src.core.tf_internal import EagerTensor, dtype_number_of, shape_of
from tf_cg_ops._src.embed_gradient.vjp import eager_shape, vjp

_SUPPORTED = frozenset(dtype.as_datatype_enum for dtype in convert.DTYPES)
# TensorFlow's product of real numbers is the same, bit for bit, and faster to call. Ours is faster for large tensors.
_REAL = frozenset(dtype.as_datatype_enum for dtype in convert.DTYPES if dtype.is_floating)
_FEW = 10_000


def embed_elementwise(fx: tf.Tensor, gx: tf.Tensor, x: tf.Tensor) -> tf.Tensor | None:
    """`embed_and_record` for EagerTensors of one shape and dtype, which need no checks; None for all others.

    Every line counts, because training loops call this.
    """
    dtype, shape = dtype_number_of(fx), shape_of(fx)
    if not (dtype_number_of(gx) == dtype == dtype_number_of(x) and shape_of(gx) == shape == shape_of(x)):
        return None
    if dtype not in _SUPPORTED:
        return None
    h = tapes.unrecorded_identity(fx)
    if not tf_internal.could_possibly_record():
        return h

    def backward(dy: Any) -> tuple[tf.Tensor]:
        is_plain = type(dy) is EagerTensor and shape_of(dy) == shape and tf.executing_eagerly()
        if is_plain and not tf_internal.could_possibly_record():
            is_small_product = dtype in _REAL and dtype_number_of(dy) == dtype and math.prod(shape) <= _FEW
            if is_small_product and not tf_internal.are_ops_watched():
                return (tf_internal.execute("Mul", dy, gx),)
            return (tf_internal.execute("CustomGradientEmbedGrad", dy, gx, eager_shape(shape), "wrt", "x"),)
        return (vjp(dy, shape, gx, shape, {}),)

    tf_internal.record_operation("CustomGradientEmbed", (h,), (x,), backward)
    return h


def embed_and_record(
    fx: tf.Tensor, gx: Sequence[tf.Tensor], x: Sequence[tf.Tensor], alignment: dict[str, Any], name: str | None
) -> tf.Tensor:
    """Runs the op, and records `gx` as its derivative with respect to each `x` that is watched."""
    with tf_internal.stop_recording():
        h = library.run_op(library.custom_gradient_embed, fx, gx, x, name=name, **alignment)
    watched = [i for i, t in enumerate(x) if tf_internal.possible_gradient_types([t])]
    if watched:
        # The gradient function keeps shapes, but not h and x.
        shape = shape_of(h)
        rows = [(gx[i], shape_of(x[i])) for i in watched]

        def backward(dy: Any) -> list[tf.Tensor]:
            return [vjp(dy, shape, g, x_shape, alignment) for g, x_shape in rows]

        tf_internal.record_operation("CustomGradientEmbed", [h], [x[i] for i in watched], backward)
    return h
