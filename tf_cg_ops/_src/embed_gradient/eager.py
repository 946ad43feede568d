"""`embed_gradient` in eager mode: the gradient goes onto the tapes as a closure.

If the tapes recorded the op itself, they would keep all its inputs and pass its gradient function an imitation of the
op. The closure keeps `gx` and shapes, and a call of it takes a third of the time.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, library, tf_internal
from tf_cg_ops._src.core.tf_internal import EagerTensor, shape_of
from tf_cg_ops._src.embed_gradient.vjp import eager_shape, vjp

# By id: a DType hashes in Python.
_SUPPORTED = frozenset(map(id, convert.DTYPES))


def embed_elementwise(fx: tf.Tensor, gx: tf.Tensor, x: tf.Tensor) -> tf.Tensor | None:
    """`embed` for EagerTensors of one shape and dtype, which need no checks; None for others.

    Training loops call it: each line counts.
    """
    dtype, shape = fx.dtype, shape_of(fx)
    if not (gx.dtype is dtype is x.dtype and id(dtype) in _SUPPORTED and shape_of(gx) == shape == shape_of(x)):
        return None
    if not tf_internal.could_possibly_record():
        return tf_internal.execute("Identity", fx)
    h = tf_internal.execute_unrecorded("Identity", fx)

    def backward(dy: Any) -> tuple[tf.Tensor]:
        is_plain = type(dy) is EagerTensor and shape_of(dy) == shape and tf.executing_eagerly()
        if is_plain and not tf_internal.could_possibly_record():
            return (tf_internal.execute("CustomGradientEmbedGrad", dy, gx, eager_shape(shape), "wrt", "x"),)
        return (vjp(dy, shape, gx, shape, [], False),)

    tf_internal.record_operation("CustomGradientEmbed", (h,), (x,), backward)
    return h


def embed(
    fx: tf.Tensor,
    gx: Sequence[tf.Tensor | Callable[[], tf.Tensor]],
    x: Sequence[tf.Tensor],
    axis: list[int],
    all_axes: bool,
    name: str | None,
) -> tf.Tensor:
    """Runs the op, and records `gx` as its derivative with respect to each `x` that is watched.

    A `gx` may be a function without arguments: it is called when its gradient is asked for.
    """
    # The value of a function has no shape yet. With the shape of x, the op rejects shapes that no gx could fit.
    values = [x[i] if callable(g) else g for i, g in enumerate(gx)]
    with tf_internal.stop_recording():
        h = library.run_op(library.custom_gradient_embed, fx, values, x, axis=axis, all_axes=all_axes, name=name)
    watched = [i for i, t in enumerate(x) if tf_internal.possible_gradient_types([t])]
    if watched:
        backward = _backward(h, [gx[i] for i in watched], [x[i] for i in watched], axis, all_axes)
        tf_internal.record_operation("CustomGradientEmbed", [h], [x[i] for i in watched], backward)
    return h


def _backward(
    h: tf.Tensor, gx: Sequence[Any], x: Sequence[tf.Tensor], axis: list[int], all_axes: bool
) -> Callable[[Any], list[tf.Tensor]]:
    """The gradient function, which keeps the shapes of h and x, but neither of them."""
    shape = shape_of(h)
    x_shapes = [shape_of(t) for t in x]

    def backward(dy: Any) -> list[tf.Tensor]:
        return [
            vjp(dy, shape, g() if callable(g) else g, x_shape, axis, all_axes)
            for g, x_shape in zip(gx, x_shapes, strict=True)
        ]

    return backward
