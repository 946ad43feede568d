"""Finds the upstream gradients of unused outputs, and replaces the zeros that TensorFlow passes by `None`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tapes

# The attribute of an upstream gradient that came through an identity of `marked`. It is on the gradient itself, because
# threads can share a persistent tape.
_MARK = "_tf_cg_ops_is_used"


def marked(name: str, outputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """The outputs; in eager mode behind identities, whose gradients run only for used outputs."""
    if not tf.executing_eagerly():
        return outputs
    copies = [tapes.unrecorded_identity(output) for output in outputs]
    for copy, output in zip(copies, outputs, strict=True):
        tapes.record(name, [copy], [output], lambda dy: [_with_mark(dy)])
    return copies


def with_none(upstream: Sequence[Any], has_marks: bool) -> list[Any]:
    """The upstream gradients with None for each unused output; `has_marks` in the mode that computed the value."""
    # Forward mode transposes each function by itself.
    if has_marks and tapes.new_tapes_record():
        return [dy if hasattr(dy, _MARK) else None for dy in upstream]
    return [None if _is_zero(dy) else dy for dy in upstream]


def _with_mark(dy: Any) -> Any:
    if isinstance(dy, tf.IndexedSlices):
        dy = tf.IndexedSlices(dy.values, dy.indices, dy.dense_shape)
    else:
        dy = tf.identity(dy)
    setattr(dy, _MARK, True)
    return dy


def _is_zero(dy: Any) -> bool:
    """Whether a Tensor of a graph is known to be zero while tracing."""
    if dy is None or isinstance(dy, tf.IndexedSlices) or not hasattr(dy, "op"):
        return dy is None
    if dy.op.type == "ZerosLike":
        return True
    if dy.op.type == "Fill":
        dy = dy.op.inputs[1]
    value = tf.get_static_value(dy) if dy.op.type == "Const" else None
    return value is not None and not value.any()
