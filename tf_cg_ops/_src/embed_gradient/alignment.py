"""The alignment of `fx`, `gx` and `x`, as in cc/lib/alignment.cc.

`axis` names the event dimensions of `x`; the others are its batch dimensions. Shapes align from the right. `fx` aligns
with the batch dimensions. `gx` aligns with `x`, or with the batch dimensions if it has fewer dimensions than `x`. A
shape that aligns with the batch dimensions is spread along `x`: each event dimension gets a dimension of size 1.

The same steps are here in two forms. Lists of sizes need known ranks, and keep static sizes. Shapes that are Tensors
can have an unknown rank while tracing; that form has no control flow, and is constant for XLA if the shapes are.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# The sizes of some dimensions, as Python ints or scalar Tensors.
Sizes = list[Any]


def pad_sizes(sizes: Sizes, rank: int) -> Sizes:
    """Adds dimensions of size 1 in front, up to `rank`."""
    return [1] * (rank - len(sizes)) + sizes


def spread_sizes(sizes: Sizes, is_event: list[bool]) -> Sizes:
    """Spreads sizes along `x`, from its batch dimensions; `is_event` has an entry for each dimension of `x`."""
    batch_rank = is_event.count(False)
    padded = pad_sizes(sizes, batch_rank)
    num_leading = len(padded) - batch_rank
    along_batch = iter(padded[num_leading:])
    return padded[:num_leading] + [1 if event else next(along_batch) for event in is_event]


def align_sizes(sizes: dict[str, Sizes], is_event: list[bool]) -> dict[str, Sizes]:
    """Brings the sizes of `fx`, `gx` and `x` to one common rank, with 1 where each is broadcast."""
    fx, gx, x = spread_sizes(sizes["fx"], is_event), sizes["gx"], sizes["x"]
    if len(gx) < len(x):
        gx = spread_sizes(gx, is_event)
    rank = max(len(fx), len(gx), len(x))
    return {"fx": pad_sizes(fx, rank), "gx": pad_sizes(gx, rank), "x": pad_sizes(x, rank)}


def pad(shape: tf.Tensor, rank: tf.Tensor) -> tf.Tensor:
    """`pad_sizes` for a shape that is a Tensor."""
    return tf.concat([tf.ones([rank - tf.size(shape)], shape.dtype), shape], 0)


def spread(shape: tf.Tensor, is_event: tf.Tensor) -> tf.Tensor:
    """`spread_sizes` for a shape and an `is_event` that are Tensors."""
    is_batch = tf.cast(~is_event, tf.int32)
    batch_rank = tf.reduce_sum(is_batch)
    padded = pad(shape, tf.maximum(tf.size(shape), batch_rank))
    num_leading = tf.size(padded) - batch_rank
    # tf.gather needs one more element for event dimensions at the end; tf.where drops it.
    along_batch = tf.concat([padded[num_leading:], tf.ones([1], shape.dtype)], 0)
    # The number of batch dimensions before each dimension. XLA does not always know the value of a cumulative sum.
    dimension = tf.range(tf.size(is_batch))
    batch_index = tf.reduce_sum(tf.cast(dimension[None, :] < dimension[:, None], tf.int32) * is_batch[None, :], 1)
    along_x = tf.where(is_event, tf.ones_like(along_batch[:1]), tf.gather(along_batch, batch_index))
    return tf.concat([padded[:num_leading], along_x], 0)


def align(shapes: dict[str, tf.Tensor], axis: Sequence[int], all_axes: bool) -> dict[str, tf.Tensor]:
    """`align_sizes` for shapes that are Tensors, with an axis."""
    rank = tf.size(shapes["x"])
    if all_axes:
        is_event = tf.fill([rank], True)
    else:
        event_dims = tf.math.floormod(tf.constant(list(axis), tf.int32), rank)
        is_event = tf.reduce_any(tf.equal(tf.range(rank)[:, None], event_dims[None, :]), 1)
    along_x = {role: spread(shapes[role], is_event) for role in ("fx", "gx")}
    common_rank = tf.reduce_max(tf.stack([tf.size(shape) for shape in (*shapes.values(), *along_x.values())]))
    gx_aligns_with_x = tf.size(shapes["gx"]) >= rank
    return {
        "fx": pad(along_x["fx"], common_rank),
        "gx": tf.where(gx_aligns_with_x, pad(shapes["gx"], common_rank), pad(along_x["gx"], common_rank)),
        "x": pad(shapes["x"], common_rank),
    }
