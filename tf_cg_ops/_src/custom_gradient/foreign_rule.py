"""Replaces ops of `tf.custom_gradient` by ops of this library, in each graph that this library traces and copies.

The gradient of such an op is a Python closure over the graph. It is called once here, next to the op, and the new op
captures what it reads. If the rule contains such ops, too, their closures are only called when you differentiate the
rule. So if a rule calls its own function, the function is traced once.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.custom_gradient import live_rule, rule_op, traced_rule
from tf_cg_ops._src.custom_gradient.wording import NO_RULE, without_gradient_function
from tf_cg_ops._src.graphs import control_flow, graph_copy
from tf_cg_ops._src.graphs.graph_copy import GraphCopy

API = "tf.custom_gradient"
_WORDING = dataclasses.replace(
    without_gradient_function(API),
    no_rule=f"{NO_RULE}, or decorate it with tf_cg_ops.custom_gradient(saved_orders={{order}}).",
)


def conversion(graph: Any) -> Callable[..., list[Any]] | None:
    """A function that copies a traced graph with its foreign ops replaced; None if there are none."""
    if not _has_foreign_ops(graph):
        return None
    outside = [(inside, outside) for outside, inside in graph.captures]

    def converted(*tensors: Any) -> list[Any]:
        here = tf.compat.v1.get_default_graph()

        def replace(copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> list[tf.Tensor] | None:
            return _converted(copy, op, inputs, here) if _is_foreign(op) else None

        values = [*zip(graph.inputs, tensors, strict=False), *outside]
        return GraphCopy(values, replace, names=True).outputs_of(graph)

    return converted


def _has_foreign_ops(graph: Any) -> bool:
    if graph is None:  # Of a function of TensorFlow 1.
        return False
    return any(
        any(map(_has_foreign_ops, control_flow.functions_of(op))) if op.type in control_flow.TYPES else _is_foreign(op)
        for op in graph.get_operations()
    )


def _is_foreign(op: Any) -> bool:
    # A loaded model may not have the gradient.
    return tf_internal.has_python_gradient(op) and tf_internal.find_gradient_function(op) is not None


def _converted(copy: GraphCopy, op: Any, inputs: list[tf.Tensor], around: Any) -> list[tf.Tensor]:
    """Copies an op of `tf.custom_gradient`. Its inputs are the results, and what the user's function reads.

    `around` is the graph into which everything is copied.
    """
    gradient, name = tf_internal.find_gradient_function(op), tf_internal.name_of_python_gradient(op) or op.name
    # A loaded model does not say which inputs are results. Results have no gradients.
    known = tf_internal.num_results_of_python_gradient(op)
    num_results, first = (len(op.inputs), 0) if known is None else (known, known)

    def backward(dys: Sequence[Any]) -> list[Any]:
        if unreachable:
            raise unreachable[0]
        given = gradient(op, *dys, *[None] * (len(op.inputs) - num_results))
        gradients = [g if g is None or isinstance(g, tf.IndexedSlices) else tf.convert_to_tensor(g) for g in given]
        if len(gradients) != len(op.inputs):
            raise ValueError(
                f"{API}: the gradient function of '{name}' must return one gradient for each argument and variable, "
                f"{len(op.inputs) - first} in all, got {len(gradients) - first}. Return None for those without one."
            )
        for tensor, g in zip(op.inputs, gradients, strict=True):
            if g is not None and tensor.dtype != tf.resource and not g.shape.is_compatible_with(tensor.shape):
                raise ValueError(
                    f"{API}: the gradient of '{name}' must have the shape of its argument, {tensor.shape}, got "
                    f"{g.shape}. Sum over what was broadcast, broadcast over what was summed."
                )
        return gradients[first:]

    unreachable: list[ValueError] = []
    with op.graph.as_default():
        rule = traced_rule.trace_rule(_WORDING, name, list(op.outputs[:num_results]), backward, conversion)
    captures = [_copied_capture(copy, op, tensor) for tensor in rule.captures]
    if any(tensor is None for tensor in captures):
        unreachable.append(
            ValueError(
                f"{API}: the gradient of '{name}' must only read tensors that are saved with it, got one of its loop "
                "or branch. Repair the model with tf_cg_ops.saved_model.adopt."
            )
        )
        rule, captures = traced_rule.without_rule(str(unreachable[0]), unreachable[0]), []
    groups = [inputs[:num_results], inputs[first:], captures]
    new, _ = rule_op.create(tf.compat.v1.get_default_graph(), name, groups, rule, api=API)
    graph_copy.note_original(new, op)
    if rule.error:

        def captured() -> list[tuple[Any, Any]]:
            return [*copy.pairs(), *around.captures]

        order = traced_rule.current_order()
        subject = _WORDING.subject_of(name)
        live_rule.keep(new, live_rule.LiveRule(subject, backward, captured, order, rule.exception, is_foreign=True))
    return [*new.outputs, *inputs[num_results:]]


def _copied_capture(copy: GraphCopy, op: Any, tensor: Any) -> Any:
    """The copy of a tensor that the gradient of this op reads. A tensor from outside stands for itself.

    None if it belongs to another function. The gradients of a loaded loop read such tensors.
    """
    graph = op.graph
    tensor = next((inside for outside, inside in graph.captures if outside is tensor), tensor)
    if isinstance(tensor, tf_internal.EagerTensor):
        return tensor
    if tensor in copy or any(tensor.graph is around for around in (graph, *copy.graphs_around(graph))):
        return copy.tensors([tensor])[0]
    here = tf.compat.v1.get_default_graph()
    while here is not None and here is not tensor.graph:
        here = getattr(here, "outer_graph", None)
    return None if here is None else tensor  # It is outside of everything that is copied.
