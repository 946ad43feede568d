"""Copies of ops of `tf.custom_gradient`, whose gradients are Python functions that refer to their graph."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.custom_gradient.graph_rule import attach
from tf_cg_ops._src.custom_gradient.wording import Wording
from tf_cg_ops._src.rewrite.graph_copy import GraphCopy


def copy_with_python_gradient(
    wording: Wording, copy: GraphCopy, op: Any, inputs: list[tf.Tensor]
) -> list[tf.Tensor] | None:
    """The inputs of an op of `tf.custom_gradient`, which is an identity, with its gradient; None for other ops.

    The gradient is traced beside the graph of the op, and copied like that graph.
    """
    gradient = _python_gradient(op)
    if gradient is None:
        return None
    graph = tf_internal.FuncGraph("gradient_of_" + op.type)
    # The graph of the gradient lies inside that of the op, so that it may capture tensors of it.
    with op.graph.as_default(), graph.as_default():
        upstream = [tf_internal.graph_placeholder(t.dtype, t.shape, "upstream") for t in op.outputs]
        gradients = [g if g is None else tf.convert_to_tensor(g) for g in gradient(op, *upstream)]
        gradients = [g if g is None else graph.capture(g) for g in gradients]
    captures = [(inside, outside) for outside, inside in graph.captures if inside.op.type == "Placeholder"]
    values = [(inside, _copied(copy, op.graph, outside)) for inside, outside in captures]

    def backward(dys: Sequence[Any]) -> list[Any]:
        again = GraphCopy([*values, *zip(upstream, dys, strict=True)], copy.replace)
        results = iter(again.tensors([g for g in gradients if g is not None]))
        return [None if g is None else next(results) for g in gradients]

    return attach(wording, op.name, inputs, inputs, backward)


def _copied(copy: GraphCopy, graph: Any, tensor: Any) -> Any:
    """The tensor that stands for one that the gradient of an op in this graph reads."""
    if isinstance(tensor, tf_internal.EagerTensor):
        return tensor
    if tensor not in copy and tensor.graph is not graph:
        # From outside of this graph: its capture is a tensor of this graph.
        captured = [inside for outside, inside in graph.captures if outside is tensor]
        if captured:
            return copy[captured[0]]
        if not any(tensor.graph is around for around in copy.graphs_around(graph)):
            return tensor  # From outside of all that is copied.
    return copy.tensors([tensor])[0]


def _python_gradient(op: Any) -> Any:
    """The gradient function of an op of `tf.custom_gradient`, which refers to tensors of its own graph; else None."""
    # Other ops have such an attribute, too, to refuse to be saved: those that call Python functions.
    if op.type not in ("Identity", "IdentityN") or "_gradient_op_type" not in op.node_def.attr:
        return None
    return tf_internal.find_gradient_function(op)
