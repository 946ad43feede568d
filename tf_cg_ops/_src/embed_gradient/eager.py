"""`embed_gradient` in eager mode: the gradient goes onto the tapes as a closure.

The tapes' own record of the op would keep all its inputs and give its gradient function an imitation of the op. The
closure keeps `gx` and shapes, and is called at a third of the cost.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src import errors
from tf_cg_ops._src.core import convert, library, slices, tf_internal
from tf_cg_ops._src.core.tf_internal import EagerTensor, shape_of

_Shape = tuple[int, ...]

# A DType hashes in Python.
_SUPPORTED = frozenset(map(id, convert.DTYPES))


def embed_elementwise(fx: tf.Tensor, gx: tf.Tensor, x: tf.Tensor) -> tf.Tensor | None:
    """embed() for EagerTensors of one shape and dtype, where nothing needs checking; None if they are not.

    What calls in a loop are made of: each line counts.
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
            return (tf_internal.execute("CustomGradientEmbedGrad", dy, gx, _eager_shape(shape), "wrt", "x"),)
        return (_gradient(dy, shape, gx, shape, [], False),)

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
    """Calls the op, and records `gx` as its derivative with respect to those `x` that are watched.

    A `gx` may be a function of no arguments: then it is called where its gradient is first asked for.
    """
    # A function's value has no shape yet. With that of x, the op refuses what no gx could put right.
    values = [x[i] if callable(g) else g for i, g in enumerate(gx)]
    with tf_internal.stop_recording():
        h = run_op(library.custom_gradient_embed, fx, values, x, axis=axis, all_axes=all_axes, name=name)
    watched = [i for i, t in enumerate(x) if tf_internal.possible_gradient_types([t])]
    if watched:
        backward = _backward(h, [gx[i] for i in watched], [x[i] for i in watched], axis, all_axes)
        tf_internal.record_operation("CustomGradientEmbed", [h], [x[i] for i in watched], backward)
    return h


# What TensorFlow puts around the message of an op that it runs by itself.
_AROUND_A_MESSAGE = re.compile(r"^\{\{function_node \S+\}\} | \[Op:\w+\](?: name:.*)?$", re.DOTALL)


def run_op(op: Callable[..., tf.Tensor], *inputs: Any, **attributes: Any) -> tf.Tensor:
    """Runs an op of the library; what it raises in eager mode is its own sentence alone."""
    try:
        return op(*inputs, **attributes)
    except tf.errors.OpError as error:
        message = _AROUND_A_MESSAGE.sub("", error.message)
        raise type(error)(error.node_def, error.op, message) from None


def _backward(
    h: tf.Tensor, gx: Sequence[Any], x: Sequence[tf.Tensor], axis: list[int], all_axes: bool
) -> Callable[[Any], list[tf.Tensor]]:
    """The gradient function, which keeps the shapes of h and x, but neither of them."""
    shape = shape_of(h)
    x_shapes = [shape_of(t) for t in x]

    def backward(dy: Any) -> list[tf.Tensor]:
        return [
            _gradient(dy, shape, g() if callable(g) else g, x_shape, axis, all_axes)
            for g, x_shape in zip(gx, x_shapes, strict=True)
        ]

    return backward


def _gradient(dy: Any, shape: _Shape, gx: tf.Tensor, x_shape: _Shape, axis: list[int], all_axes: bool) -> tf.Tensor:
    if isinstance(dy, tf.IndexedSlices) and not axis and not all_axes:
        gradient = slices.of_embedded(dy, tf.TensorShape(shape), gx, tf.TensorShape(x_shape))
        if gradient is not None:
            return gradient
    dy = tf.convert_to_tensor(slices.to_dense(dy))
    if not dy.shape.is_compatible_with(shape):
        message = errors.UPSTREAM_SHAPE
        raise ValueError(message.format(api="embed_gradient", value=tf.TensorShape(shape), upstream=dy.shape))
    shape_tensor = _eager_shape(x_shape) if tf.executing_eagerly() else _graph_shape(x_shape)
    return run_op(library.custom_gradient_embed_grad, dy, gx, shape_tensor, wrt="x", axis=axis, all_axes=all_axes)


def shape_tensor_of(like: tf.Tensor) -> tf.Tensor:
    """The shape as the gradient op takes it."""
    if type(like) is EagerTensor and tf.executing_eagerly():
        return _eager_shape(shape_of(like))
    if like.shape.is_fully_defined():
        return _graph_shape(tuple(like.shape))
    return tf.shape(like, out_type=tf.int64)


def _graph_shape(shape: _Shape) -> tf.Tensor:
    """A constant of the graph, which XLA can see through.

    On a GPU, constants of int32 are on the host, where shapes are read; others would be copied there in each step.
    """
    dtype = tf.int32 if max(shape, default=0) <= tf.int32.max else tf.int64
    return tf.constant(shape, dtype, [len(shape)], name="Shape")


@functools.lru_cache(maxsize=256)
def _eager_shape(shape: _Shape) -> tf.Tensor:
    with tf.device("CPU"):
        return tf.constant(shape, tf.int64, [len(shape)])
