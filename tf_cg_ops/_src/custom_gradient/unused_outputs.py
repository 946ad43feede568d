"""Finds the upstream gradients of unused outputs, and replaces the zeros that TensorFlow passes by `None`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import library, tapes, tf_internal

# The attribute of an upstream gradient that came through an output of `marked`. It is on the gradient itself, because
# threads can share a persistent tape.
_MARK = "_tf_cg_ops_is_used"


def marked(name: str, outputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """The outputs, each behind an op of its own whose gradient runs only if the output is used.

    In a graph this is a barrier: TensorFlow's optimizers confuse the results of one op, so that relu and max_pool of
    the second one read the first.
    """
    if not tf.executing_eagerly():
        # Not around a shape, which XLA must know while it compiles.
        has_gradient = tf_internal.is_trainable
        return [library.custom_gradient_barrier([o], [])[0] if has_gradient(o) else o for o in outputs]
    copies = [tapes.unrecorded_identity(output) for output in outputs]
    for copy, output in zip(copies, outputs, strict=True):
        tapes.record(name, [copy], [output], lambda dy: [with_mark(dy)])
    return copies


def with_none(upstream: Sequence[Any]) -> list[Any]:
    """The upstream gradients of marked outputs, with None for each unused one."""
    # Forward mode transposes each function by itself.
    return [dy if hasattr(dy, _MARK) else None for dy in upstream] if tapes.new_tapes_record() else list(upstream)


def with_mark(dy: Any) -> Any:
    """The upstream gradient of a marked output."""
    if isinstance(dy, tf.IndexedSlices):
        return mark(tf.IndexedSlices(dy.values, dy.indices, dy.dense_shape))
    return None if dy is None else mark(tf.identity(dy))


def mark(dy: Any) -> Any:
    """Marks a Tensor that is only used as the upstream gradient of a used output."""
    setattr(dy, _MARK, True)
    return dy
