"""Barriers that fix the order of a backward pass in a graph, where TensorFlow runs what is ready in any order.

A token is a number that goes through the forward pass; its gradient comes back when other gradients are computed.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import library, tf_internal
from tf_cg_ops._src.custom_gradient import unused_outputs

# Marks a barrier that passes a token together with other values.
_GATE = "_custom_gradient_gate"


def is_free() -> bool:
    """Whether the graph that is built now runs what is ready in any order. Eager mode does not, and XLA has its own.

    With our order, XLA found one that takes twice the memory.
    """
    return not tf.executing_eagerly() and not tf_internal.is_traced_for_xla(tf.compat.v1.get_default_graph())


def when_computed(gradients: Sequence[Any]) -> tf.Tensor:
    """A one, once these gradients are computed."""
    parts = [part for gradient in gradients for part in tf.nest.flatten(gradient, expand_composites=True)]
    return library.custom_gradient_barrier([tf.ones([])], parts)[0]


def alone(value: Any, after: Sequence[tf.Tensor]) -> Any:
    """The value as the only result of an op that TensorFlow does not know, once the other Tensors are computed."""
    # Not a handle, nor a shape, which XLA must know while it compiles.
    is_shape = value.dtype in (tf.int32, tf.int64) and value.shape.rank in (0, 1)
    if value.dtype == tf.resource or is_shape or isinstance(value, tf.IndexedSlices):
        return value
    return library.custom_gradient_barrier([value], after)[0]


def through_gate(values: Sequence[Any], token: tf.Tensor) -> tuple[list[Any], tf.Tensor]:
    """The values and the token; the gradient of each waits for the gradients of all."""
    chosen = [i for i, value in enumerate(values) if tf_internal.is_trainable(value) and value.dtype != tf.resource]
    # Gradients that no tape watches are not computed, unless it is not known yet who will ask.
    chosen = [i for i in chosen if tf_internal.possible_gradient_types([values[i]])] or chosen
    if not chosen:
        return list(values), token
    *passed, token = library.custom_gradient_barrier([*(values[i] for i in chosen), token], [])
    tf_internal.set_attribute(token.op, _GATE, tf.compat.v1.AttrValue(b=True))
    new = dict(zip(chosen, unused_outputs.marked("gate", passed), strict=True))
    return [new.get(i, value) for i, value in enumerate(values)], token


def is_gate(op: Any) -> bool:
    """Whether an op is a barrier that passes the token."""
    if op.type != "CustomGradientBarrier":
        return False
    output = op.outputs[0]  # A tape passes an imitation of the op without its node.
    return not isinstance(output, tf_internal.EagerTensor) and _GATE in output.op.node_def.attr


def gradients_of_gate(dys: Sequence[Any]) -> list[Any]:
    """The gradients of the values that are used, and of the token, once all of them are computed."""
    # A copy can lack the op that marks a gradient, and then only a zero means that the value is not used.
    marked = unused_outputs.with_none(dys[:-1])
    used = [dy if m is None and not _is_zero(dy) else m for m, dy in zip(marked, dys[:-1], strict=True)]
    done = when_computed([dy for dy in (*used, dys[-1]) if dy is not None])
    return [*(dy if dy is None else alone(dy, [done]) for dy in used), done]


def _is_zero(dy: Any) -> bool:
    """Whether an upstream gradient is None, or zeros as TensorFlow makes them for an unused output."""
    if dy is None or isinstance(dy, tf.IndexedSlices):
        return dy is None
    value = tf.get_static_value(dy.op.inputs[1] if dy.op.type == "Fill" else dy)
    return dy.op.type == "ZerosLike" or (value is not None and not value.any())
