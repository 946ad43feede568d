"""Copies ops of `tf.custom_gradient`. Their gradients are Python functions that refer to the op's graph."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.custom_gradient.graph_rule import attach
from tf_cg_ops._src.custom_gradient.wording import Wording
from tf_cg_ops._src.rewrite.graph_copy import GraphCopy


class TracedGradient(NamedTuple):
    """The gradient function of an op of `tf.custom_gradient`, traced next to the graph of the op."""

    graph: Any
    upstream: list[tf.Tensor]
    gradients: list[tf.Tensor | None]  # One for each input of the op.

    @property
    def captures(self) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Pairs of a placeholder and the tensor from outside that it stands for."""
        return [(inside, outside) for outside, inside in self.graph.captures if inside.op.type == "Placeholder"]


def trace_gradient(op: Any) -> TracedGradient | None:
    """Traces the gradient of an op of `tf.custom_gradient`; None for other ops."""
    gradient = _python_gradient(op)
    if gradient is None:
        return None
    graph = tf_internal.FuncGraph("gradient_of_" + op.type)
    # Inside the graph of the op, so that the gradient can capture its tensors.
    with op.graph.as_default(), graph.as_default():
        upstream = [tf_internal.graph_placeholder(t.dtype, t.shape, "upstream") for t in op.outputs]
        gradients = [g if g is None else tf.convert_to_tensor(g) for g in gradient(op, *upstream)]
        gradients = [g if g is None else graph.capture(g) for g in gradients]
    graph.outputs = [g for g in gradients if g is not None]
    return TracedGradient(graph, upstream, gradients)


def copy_with_python_gradient(
    wording: Wording, copy: GraphCopy, op: Any, inputs: list[tf.Tensor], is_differentiated: bool = True
) -> list[tf.Tensor] | None:
    """Copies an op of `tf.custom_gradient`: returns its inputs with its gradient. Returns None for other ops.

    Such an op is an identity. Its gradient is traced next to the graph of the op, and copied like it.
    """
    traced = trace_gradient(op)
    if traced is None:
        return None
    _, upstream, gradients = traced
    for tensor, g in zip(op.inputs, gradients, strict=True):
        if g is not None and tensor.dtype != tf.resource and not g.shape.is_compatible_with(tensor.shape):
            name = tf_internal.name_of_python_gradient(op) or op.name
            raise ValueError(
                f"{wording.api}: the gradient of '{name}' must have the shape of its argument, {tensor.shape}, got "
                f"{g.shape}. Sum over what was broadcast, broadcast over what was summed."
            )
    values = [(inside, _copied(wording, copy, op, outside)) for inside, outside in traced.captures]

    def backward(dys: Sequence[Any]) -> list[Any]:
        pairs = [*values, *zip(upstream, dys, strict=True)]
        again = GraphCopy(pairs, copy.replace if is_differentiated else None, records=copy.records)
        results = iter(again.tensors([g for g in gradients if g is not None]))
        return [None if g is None else next(results) for g in gradients]

    name = tf_internal.name_of_python_gradient(op) or op.name
    orders = None if is_differentiated else 1
    return attach(wording, name, inputs, inputs, backward, saved_orders=orders, api="tf.custom_gradient")


def _copied(wording: Wording, copy: GraphCopy, op: Any, tensor: Any) -> Any:
    """The copy of a tensor that the gradient of this op reads."""
    graph, is_eager = op.graph, isinstance(tensor, tf_internal.EagerTensor)
    if is_eager or (tensor not in copy and tensor.graph is not graph):
        # The tensor is from outside, so look for the tensor of this graph that captures it.
        captured = [inside for outside, inside in graph.captures if outside is tensor]
        if captured:
            return copy.tensors(captured)[0]
        if is_eager:
            return tensor
        if not any(tensor.graph is around for around in copy.graphs_around(graph)):
            here = tf.compat.v1.get_default_graph()
            while here is not None and here is not tensor.graph:
                here = getattr(here, "outer_graph", None)
            if here is None:
                name = tf_internal.name_of_python_gradient(op) or op.name
                raise ValueError(
                    f"{wording.api}: the gradient of '{name}' must only read tensors that are saved with it, got "
                    f"'{tensor.name}' of its loop or branch. Repair the model with tf_cg_ops.saved_model.adopt."
                )
            return tensor  # It is outside of everything that is copied.
    return copy.tensors([tensor])[0]


def _python_gradient(op: Any) -> Any:
    """The gradient function of an op of `tf.custom_gradient`, which refers to tensors of its graph; else None."""
    return tf_internal.find_gradient_function(op) if tf_internal.has_python_gradient(op) else None
