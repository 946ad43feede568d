"""A batch of the embedding ops, for tf.vectorized_map and Jacobians.

An input is stacked if the batch is its new first dimension, and loop-invariant otherwise.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.embed_gradient import dynamic_axis
from tf_cg_ops._src.embed_gradient.alignment import Sizes, pad_sizes, spread_sizes


def sizes_of(wrapped: Any) -> Sizes | None:
    """The sizes of one member of the batch; None if not even the rank is known."""
    if wrapped.t.shape.rank is None:
        return None
    sizes = wrapped.t.shape.as_list()
    if None in sizes:
        known, sizes = sizes, tf.unstack(dynamic_axis.shape_of(wrapped.t), num=len(sizes))
        sizes = [size if k is None else k for k, size in zip(known, sizes, strict=True)]
    return sizes[1:] if wrapped.is_stacked else sizes


def shape_of_one(pfor_input: Any, index: int) -> tf.Tensor:
    """An input that is a shape; it is the same for all members of a batch."""
    wrapped = pfor_input.input(index)
    return wrapped.t[0] if wrapped.is_stacked else wrapped.t


@dataclasses.dataclass(frozen=True)
class Aligned:
    """One pair: fx as it is, gx and x with a dimension for each of the joint shape.

    So the batch can come before all of them.
    """

    fx: Sizes
    gx: Sizes
    x: Sizes
    domain: list[bool]  # For each dimension of x, whether it belongs to the domain of one function.
    scalar_fits: Any  # Whether fx may be a scalar if it is one: True, or a Tensor where that does not show yet.

    @classmethod
    def of(cls, pfor_input: Any, fx: Sizes | None, gx: Sizes | None, x: Sizes | None) -> "Aligned":
        """Aligns the dimensions of one member of the batch."""
        if fx is None or gx is None or x is None:
            message = (
                "embed_gradient: a rank is unknown inside tf.vectorized_map or a jacobian; expected fx, gx and x "
                "of known rank, got one that is not known while tracing. Name it with tf.ensure_shape, or allow "
                "the fallback to a while loop."
            )
            raise tf_internal.ConversionNotImplementedError(message)
        rank = len(x)
        named = {axis % rank for axis in pfor_input.get_attr("axis")}
        domain = [pfor_input.get_attr("all_axes") or i in named for i in range(rank)]
        spread_fx = spread_sizes(fx, domain)
        spread_gx = gx if len(gx) >= rank else spread_sizes(gx, domain)
        joint_rank = max(len(spread_fx), len(spread_gx), rank)
        domain = [False] * (joint_rank - rank) + domain
        scalar_fits = bool(fx) or all(domain) or _adds_nothing_to(x, spread_gx)
        if not fx:  # A scalar is a function of all of x, whatever the axis; with a batch that has to be said.
            domain = [True] * joint_rank
        return cls(fx, pad_sizes(spread_gx, joint_rank), pad_sizes(x, joint_rank), domain, scalar_fits)

    def axis(self) -> list[int]:
        """The domain counted from the end."""
        return [i - len(self.domain) for i, named in enumerate(self.domain) if named]

    def lay_out(self, wrapped: Any, dims: Sizes) -> tf.Tensor:
        """A Tensor with these dimensions behind the batch, of which a loop-invariant one has a single member."""
        batch = dynamic_axis.shape_of(wrapped.t)[0] if wrapped.is_stacked else 1
        if wrapped.is_stacked and wrapped.t.shape[0] is not None:
            batch = wrapped.t.shape[0]
        return _reshape(wrapped.t, [batch, *dims])

    def move_domain_last(self, tensor: tf.Tensor, size: int) -> tf.Tensor:
        """Puts the domain at the end, with dimensions of size 1 in front of it up to `size`."""
        places = [i + 1 for i, named in enumerate(self.domain) if named]
        others = [i + 1 for i, named in enumerate(self.domain) if not named]
        moved = tf.transpose(tensor, [0, *others, *places])
        for _ in range(size - len(places)):
            moved = tf.expand_dims(moved, 1 + len(others))
        return moved


def _adds_nothing_to(x: Sizes, gx: Sizes) -> Any:
    """Whether gx broadcasts to x: True, or a scalar Tensor where that does not show yet."""
    if len(gx) > len(x):
        return tf.constant(False)
    pairs = zip(pad_sizes(gx, len(x)), x, strict=True)
    open_ = [(a, b) for a, b in pairs if not (isinstance(a, int) and (a == 1 or (isinstance(b, int) and a == b)))]
    if not open_:
        return True
    sizes, expected = map(to_vector, zip(*open_, strict=True))
    return tf.reduce_all(tf.equal(sizes, 1) | tf.equal(sizes, expected))


def _reshape(tensor: tf.Tensor, dims: Sizes) -> tf.Tensor:
    if all(isinstance(dim, int) for dim in dims):
        return tf.reshape(tensor, tf.constant(dims, tf.int64))
    return tf.reshape(tensor, to_vector(dims))


def to_vector(dims: Sequence[Any]) -> tf.Tensor:
    """Sizes as a Tensor."""
    return tf.stack([tf.cast(dim, tf.int64) for dim in dims]) if dims else tf.constant([], tf.int64)
