"""Upstream gradients of outputs that nobody used, which TensorFlow makes zeros: `None` instead, where that is known."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tapes


class Marks:
    """Knows the outputs of one call that the gradient being computed uses."""

    def __init__(self) -> None:
        self._used: set[int] = set()
        self._are_on = False

    def put_on(self, name: str, outputs: list[tf.Tensor]) -> list[tf.Tensor]:
        """The outputs; in eager mode as identities of their own, which a gradient passes only if it is not zero.

        A tape computes the gradients of these before that of the call.
        """
        if not tf.executing_eagerly():
            return outputs
        self._are_on = True
        copies = [tapes.unrecorded_identity(output) for output in outputs]
        for i, (copy, output) in enumerate(zip(copies, outputs, strict=True)):
            tapes.record(name, [copy], [output], lambda dy, i=i: [self._mark(i, dy)])
        return copies

    def _mark(self, i: int, dy: Any) -> Any:
        self._used.add(i)
        return dy

    def before(self, backward: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """The function with None for the upstream gradient of each unused output."""

        def with_none(upstream: Sequence[Any], **kwargs: Any) -> list[Any]:
            used, self._used = self._used, set()
            is_unused = (lambda i, _: i not in used) if self._are_on else (lambda _, dy: _is_zero(dy))
            return backward([None if is_unused(i, dy) else dy for i, dy in enumerate(upstream)], **kwargs)

        return with_none


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
