"""Sizes and alignment for batching the embedding ops, for tf.vectorized_map and Jacobians.

An input is stacked if it has a value for each member of the batch, along a new first dimension; otherwise it is
loop-invariant. "Sizes" here always belong to one member.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.embed_gradient.alignment import Sizes, align_sizes
from tf_cg_ops._src.embed_gradient.dynamic_axis import shape_of


def sizes_of(wrapped: Any) -> Sizes | None:
    """The sizes of one member; None if the rank is unknown."""
    if wrapped.t.shape.rank is None:
        return None
    sizes = wrapped.t.shape.as_list()
    if None in sizes:
        dynamic = tf.unstack(shape_of(wrapped.t), num=len(sizes))
        sizes = [dynamic[i] if size is None else size for i, size in enumerate(sizes)]
    return sizes[1:] if wrapped.is_stacked else sizes


def shape_of_member(pfor_input: Any, index: int) -> tf.Tensor:
    """An input that is a shape, the same for all members."""
    wrapped = pfor_input.input(index)
    return wrapped.t[0] if wrapped.is_stacked else wrapped.t


@dataclasses.dataclass(frozen=True)
class AlignedSizes:
    """The sizes of `fx` as they are, and the sizes of one `gx` and `x` at one common rank.

    So the batch can be one more dimension in front.
    """

    fx: Sizes
    gx: Sizes
    x: Sizes
    is_event: list[bool]  # For each dimension.
    scalar_fx_fits: Any  # Whether a scalar fx is allowed: True, or a Tensor if that is not known yet.

    @classmethod
    def of(cls, pfor_input: Any, fx: Sizes | None, gx: Sizes | None, x: Sizes | None) -> "AlignedSizes":
        """Aligns the sizes of one member."""
        if fx is None or gx is None or x is None:
            raise tf_internal.ConversionNotImplementedError(
                "embed_gradient: tf.vectorized_map and Jacobians need to know the rank of fx, gx and x while tracing. "
                "Set it with tf.ensure_shape, or allow the fallback to a while loop."
            )
        event_dims = {axis % len(x) for axis in pfor_input.get_attr("axis")}
        is_event = [pfor_input.get_attr("all_axes") or i in event_dims for i in range(len(x))]
        aligned = align_sizes({"fx": fx, "gx": gx, "x": x}, is_event)
        rank = len(aligned["x"])
        is_event = [False] * (rank - len(x)) + is_event
        # Beside batch dimensions, the op takes a scalar fx only if gx broadcasts to x. In a batch, fx is not a scalar
        # any more, so that is checked here.
        gx_has_leading = rank > len(x)
        scalar_fx_fits: Any = True
        if not fx:
            if not all(is_event):
                scalar_fx_fits = tf.constant(False) if gx_has_leading else _broadcasts_to(aligned["gx"], aligned["x"])
            # With any axis, a scalar depends on all of x. With a batch, the axis has to say so.
            is_event = [True] * rank
        return cls(fx, aligned["gx"], aligned["x"], is_event, scalar_fx_fits)

    def axis(self) -> list[int]:
        """The event dimensions, counted from the end."""
        return [i - len(self.is_event) for i, event in enumerate(self.is_event) if event]

    def move_event_last(self, tensor: tf.Tensor, num_event: int) -> tf.Tensor:
        """Moves the event dimensions to the end, and adds dimensions of size 1 before them up to `num_event`."""
        event_dims = [i + 1 for i, event in enumerate(self.is_event) if event]
        batch_dims = [i + 1 for i, event in enumerate(self.is_event) if not event]
        moved = tf.transpose(tensor, [0, *batch_dims, *event_dims])
        for _ in range(num_event - len(event_dims)):
            moved = tf.expand_dims(moved, 1 + len(batch_dims))
        return moved


def reshape_members(wrapped: Any, sizes: Sizes) -> tf.Tensor:
    """Reshapes a Tensor so that its members have these sizes; a loop-invariant one has a single member."""
    num_members = 1
    if wrapped.is_stacked:
        num_members = wrapped.t.shape[0] if wrapped.t.shape[0] is not None else shape_of(wrapped.t)[0]
    shape = [num_members, *sizes]
    # A constant where possible: tf.stack would hide the sizes from shape inference and from XLA.
    is_static = all(isinstance(size, int) for size in shape)
    return tf.reshape(wrapped.t, tf.constant(shape, tf.int64) if is_static else to_vector(shape))


def _broadcasts_to(sizes: Sizes, target: Sizes) -> Any:
    """Whether sizes broadcast to `target`, of the same rank: True, or a scalar Tensor if that is not known yet."""
    # What is known is decided now, so that static shapes cost no assertion at run time.
    pairs = zip(sizes, target, strict=True)
    unknown = [(a, b) for a, b in pairs if not (isinstance(a, int) and (a == 1 or (isinstance(b, int) and a == b)))]
    if not unknown:
        return True
    left, right = map(to_vector, zip(*unknown, strict=True))
    return tf.reduce_all(tf.equal(left, 1) | tf.equal(left, right))


def to_vector(sizes: Sequence[Any]) -> tf.Tensor:
    """Sizes as a Tensor."""
    return tf.stack([tf.cast(size, tf.int64) for size in sizes]) if sizes else tf.constant([], tf.int64)
