"""The alignment of `fx`, `gx` and `x`: the rule of cc/lib/alignment.cc, for Python.

`axis` names the event dimensions of `x`; the others are its batch dimensions. Shapes align from the right. `fx` aligns
with the batch dimensions. `gx` aligns with `x`, or with the batch dimensions if it has fewer dimensions than `x`. A
shape that aligns with the batch dimensions is spread along `x`: each event dimension gets a dimension of size 1.

Two forms of the same steps: lists of sizes, which need known ranks and keep static sizes, and shapes that are Tensors,
of which not even the rank needs to be known while tracing. The second form has no control flow, and is a constant for
XLA if the shapes are.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# The sizes of some dimensions, as Python ints or scalar Tensors.
Sizes = list[Any]


def pad_sizes(sizes: Sizes, rank: int) -> Sizes:
    """Puts dimensions of size 1 in front, up to `rank`."""
    return [1] * (rank - len(sizes)) + sizes


def spread_sizes(sizes: Sizes, is_event: list[bool]) -> Sizes:
    """Spreads sizes that align with the batch dimensions along `x`, of which each dimension is an event one or not."""
    batch_rank = is_event.count(False)
    padded = pad_sizes(sizes, batch_rank)
    num_leading = len(padded) - batch_rank
    along_batch = iter(padded[num_leading:])
    return padded[:num_leading] + [1 if event else next(along_batch) for event in is_event]


def pad(shape: tf.Tensor, rank: tf.Tensor) -> tf.Tensor:
    """`pad_sizes` for a shape that is a Tensor."""
    return tf.concat([tf.ones([rank - tf.size(shape)], shape.dtype), shape], 0)


def spread(shape: tf.Tensor, is_event: tf.Tensor) -> tf.Tensor:
    """`spread_sizes` for a shape that is a Tensor, and a bool vector for the dimensions of `x`."""
    is_batch = tf.cast(~is_event, tf.int32)
    batch_rank = tf.reduce_sum(is_batch)
    padded = pad(shape, tf.maximum(tf.size(shape), batch_rank))
    num_leading = tf.size(padded) - batch_rank
    # One more element, since event dimensions at the end look there; the value is not used.
    along_batch = tf.concat([padded[num_leading:], tf.ones([1], shape.dtype)], 0)
    # The number of batch dimensions in front of each dimension. XLA does not always see the value of a cumulative sum.
    place = tf.range(tf.size(is_batch))
    position = tf.reduce_sum(tf.cast(place[None, :] < place[:, None], tf.int32) * is_batch[None, :], 1)
    along_x = tf.where(is_event, tf.ones_like(along_batch[:1]), tf.gather(along_batch, position))
    return tf.concat([padded[:num_leading], along_x], 0)


def align(shapes: dict[str, tf.Tensor], axis: Sequence[int], all_axes: bool) -> dict[str, tf.Tensor]:
    """The shapes of `fx`, `gx` and `x` at one common rank, with size 1 in the dimensions in which each is broadcast."""
    rank = tf.size(shapes["x"])
    if all_axes:
        is_event = tf.fill([rank], True)
    else:
        from_the_front = tf.math.floormod(tf.constant(list(axis), tf.int32), rank)
        is_event = tf.reduce_any(tf.equal(tf.range(rank)[:, None], from_the_front[None, :]), 1)
    along_x = {role: spread(shapes[role], is_event) for role in ("fx", "gx")}
    common_rank = tf.reduce_max(tf.stack([tf.size(shape) for shape in (*shapes.values(), *along_x.values())]))
    gx_aligns_with_x = tf.size(shapes["gx"]) >= rank
    return {
        "fx": pad(along_x["fx"], common_rank),
        "gx": tf.where(gx_aligns_with_x, pad(shapes["gx"], common_rank), pad(along_x["gx"], common_rank)),
        "x": pad(shapes["x"], common_rank),
    }
