"""`tfp.math.custom_gradient` with its signature, as a true vector-Jacobian product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, misplaced_calls
from tf_cg_ops._src.core.types import TensorLike
from tf_cg_ops._src.embed_gradient import dynamic_axis
from tf_cg_ops._src.embed_gradient.api import embed_tensors
from tf_cg_ops._src.keras import dispatch

__all__ = ["custom_gradient"]

_API = "compat.tfp_math.custom_gradient"


@dispatch.takes_keras_tensors(_API, misplaced_calls.for_values(_API))
def custom_gradient(
    fx: TensorLike,
    gx: TensorLike | Sequence[TensorLike],
    x: TensorLike | Sequence[TensorLike],
    fx_gx_manually_stopped: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Returns `fx` with `gx` as its derivative with respect to `x`, as `tfp.math.custom_gradient` promises.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x = tf.constant([1.0, 2.0, 3.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     h = cg.compat.tfp_math.custom_gradient(fx=x**2, gx=2 * x, x=x)
    >>> tape.gradient(h, x, output_gradients=tf.constant([1.0, 10.0, 100.0])).numpy().tolist()
    [2.0, 40.0, 600.0]

    The promise is `tf.gradients(h, x) == gx`, for `fx` of any shape. This function keeps it with a vector-Jacobian
    product that depends on the shapes `F` of `fx` and `X` of `x`:

    | shapes                               | `fx` is                              | `dx`                              |
    |--------------------------------------|--------------------------------------|-----------------------------------|
    | `F == X`                             | an elementwise function              | `dy * conj(gx)`                   |
    | `F` is a leading part of `X`, or `()`| a function of one row `x[i]`         | `dy[..., None] * conj(gx)`        |
    | any other                            | something else                       | `mean(dy) * conj(gx)`, as in TFP  |

    Only the shapes are checked: if `x` is square, an `fx` of one dimension always counts as a function of its rows.

    Args:
      fx: The value, a Tensor or a value that converts to one, of a dtype that `tf_cg_ops.embed_gradient` takes.
      gx: The derivative: a Tensor of the shape of `x`, or a list of them if `x` is a list. As in TFP, a scalar also
        goes with an `x` of one dimension, and the other way round, and so do `[n]` and `[n, ..., n]`. Then `gx` is
        broadcast to the shape of `x`, or summed down to it.
      x: The variable of the derivative: a Tensor or a list of Tensors, in the dtype of `fx`.
      fx_gx_manually_stopped: If True, `fx` and `gx` are differentiated, too. Otherwise no gradient flows into them.
      name: A name for the operation.

    Returns:
      A Tensor with the value, shape and dtype of `fx`.

    Raises:
      ValueError: `gx` and `x` are lists of different lengths, or empty; or a `gx` has another shape than its `x`, and
        is not one of the exceptions above.
      TypeError: See `tf_cg_ops.embed_gradient`.
      tf.errors.InvalidArgumentError: A `gx` has another shape than its `x`, and that is only known at run time.

    Differs from TensorFlow Probability's `tfp.math.custom_gradient`, which makes this promise:

    - TFP returns `mean(dy) * gx` for all shapes. If `dy` is uniform, as under `reduce_sum`, that equals the table.
      Otherwise it is wrong in the first two rows.
    - The value is `fx` bit for bit, even where `x` or `gx` is not finite.
    """
    stopped = convert.to_bool(_API, "fx_gx_manually_stopped", fx_gx_manually_stopped)
    fx, gx, x, suffixes = convert.to_tensor_pairs(_API, fx, gx, x)
    gx = [_like_x(g, t, suffix) for g, t, suffix in zip(gx, x, suffixes, strict=True)]

    leading = [_is_leading_part(fx.shape, t.shape) for t in x]
    ranks = {t.shape.rank for t in x}
    if all(leading) and fx.shape.rank == 0:
        return embed_tensors(fx, gx, x, None, stopped, name)
    if all(leading) and len(ranks) == 1:
        return embed_tensors(fx, gx, x, list(range(fx.shape.rank, ranks.pop())), stopped, name)
    # One call takes one axis, so every pair gets one event dimension, the last.
    pairs = [_with_event_last(fx, g, t, lead, stopped) for g, t, lead in zip(gx, x, leading, strict=True)]
    return embed_tensors(fx, [pair[0] for pair in pairs], [pair[1] for pair in pairs], [-1], stopped, name)


def _like_x(gx: tf.Tensor, x: tf.Tensor, suffix: str) -> tf.Tensor:
    """The gx in the shape of x: broadcast to it, and summed down to it, as `gx * (x - stop(x))` is differentiated."""
    if gx.shape.is_fully_defined() and x.shape.is_fully_defined():
        if not _tfp_takes(gx.shape, x.shape):
            raise ValueError(_message(suffix, f", {x.shape}", gx.shape))
        return gx if gx.shape == x.shape else _sum_to_x(gx, x)
    have_same_rank = gx.shape.rank is not None and gx.shape.rank == x.shape.rank
    if have_same_rank and not gx.shape.is_compatible_with(x.shape):
        raise ValueError(_message(suffix, f", {x.shape}", gx.shape))
    message = _message(suffix, "", "the shapes that follow for gx and x")
    shapes = dynamic_axis.shape_of(gx), dynamic_axis.shape_of(x)
    with tf.control_dependencies([tf.debugging.assert_equal(shapes[0], shapes[1], message)]):
        gx = tf.identity(gx)
    return gx if have_same_rank else _sum_to_x(gx, x)


def _message(suffix: str, shape_of_x: str, got: Any) -> str:
    gx, x = "gx" + suffix, "x" + suffix
    return (
        f"{_API}: {gx} must have the shape of {x}{shape_of_x}, got {got}. Broadcast {gx} to the shape of {x}, or use "
        "tf_cg_ops.embed_gradient, which broadcasts."
    )


def _tfp_takes(gx: tf.TensorShape, x: tf.TensorShape) -> bool:
    """Whether TFP takes these shapes: it compares them as two vectors of sizes, and broadcasts one of them."""
    sizes, other = sorted((gx.as_list(), x.as_list()), key=len)
    if len(other) == len(sizes):
        return sizes == other
    return len(other) == 1 if not sizes else len(sizes) == 1 and other == sizes * len(other)


def _sum_to_x(gx: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    gx_shape, x_shape = dynamic_axis.shape_of(gx), dynamic_axis.shape_of(x)
    broadcast_shape = tf.raw_ops.BroadcastArgs(s0=gx_shape, s1=x_shape)
    reduction_dims, _ = tf.raw_ops.BroadcastGradientArgs(s0=x_shape, s1=broadcast_shape)
    # The gradient of reduce_sum needs 32-bit dimensions.
    return tf.reshape(tf.reduce_sum(tf.broadcast_to(gx, broadcast_shape), tf.cast(reduction_dims, tf.int32)), x_shape)


def _is_leading_part(fx: tf.TensorShape, x: tf.TensorShape) -> bool | None:
    """Whether the shape of fx is a leading part of the shape of x; None if only the run time knows."""
    if fx.rank == 0:
        return True
    if fx.rank is None or x.rank is None:
        return None
    if fx.rank > x.rank or not fx.is_compatible_with(x[: fx.rank]):
        return False
    return True if fx.is_fully_defined() and x[: fx.rank].is_fully_defined() else None


def _with_event_last(
    fx: tf.Tensor, gx: tf.Tensor, x: tf.Tensor, is_leading: bool | None, stopped: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Reshapes the pair to have one event dimension, the last."""
    fx_shape, x_shape = dynamic_axis.shape_of(fx), dynamic_axis.shape_of(x)
    rank = tf.size(fx_shape)
    if is_leading is False:
        function = embed_tensors(tf.zeros([], fx.dtype), [gx], [x], None, stopped, None)
        return _divide_by_size(fx, function, False)
    # Both cases at once: h = fx + weight * z with z = 0 + gx * (x - stop(x)). If the shape of fx is a leading part of
    # the shape of x, z has the shape of fx and the weight is 1. Otherwise z is a scalar and the weight 1 / size of fx.
    padding = tf.fill([rank], tf.constant(-1, tf.int64))
    # Not ==, because it compares identities in a TensorFlow 1 graph.
    leads = tf.reduce_all(tf.equal(tf.concat([x_shape, padding], 0)[:rank], fx_shape))
    batch = tf.where(leads, fx_shape, tf.ones_like(fx_shape))
    event_size = tf.where(leads, tf.reduce_prod(x_shape[rank:]), tf.reduce_prod(x_shape))
    shape = tf.concat([batch, [event_size]], 0)
    functions = embed_tensors(
        tf.zeros(batch, fx.dtype), [tf.reshape(gx, shape)], [tf.reshape(x, shape)], [-1], stopped, None
    )
    return _divide_by_size(fx, functions, leads)


def _divide_by_size(fx: tf.Tensor, functions: tf.Tensor, weigh_one: bool | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The weight 1 / size of fx (or 1 if `weigh_one`), and the functions with a last dimension for it."""
    # In float16 the weight would be zero for more than 65,504 elements, so its square root is applied twice.
    steps = 2 if fx.dtype == tf.float16 else 1
    size = tf.cast(tf.maximum(tf.size(fx, out_type=tf.int64), 1), tf.float64)
    weight = tf.cast(tf.where(weigh_one, tf.ones_like(size), size ** (-1.0 / steps)), fx.dtype)
    for _ in range(steps - 1):
        functions = embed_tensors(tf.zeros_like(functions), [weight], [functions], [], False, None)
    return weight, functions[..., None]
