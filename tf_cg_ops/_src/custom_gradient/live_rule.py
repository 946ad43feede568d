"""The live rule of a value in a graph: `grad_fn` itself, called in the graph at hand."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.custom_gradient import rule_op, traced_rule
from tf_cg_ops._src.custom_gradient.captures import capture_substitutes
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.graphs import control_flow, graph_copy

# The attribute of a tf.Operation that keeps its live rule as long as the graph lives.
_LIVE_RULE = "_tf_cg_ops_live_rule"

OF_THE_OP = without_gradient_function("CustomGradientRule")


@dataclasses.dataclass(frozen=True)
class LiveRule:
    """The gradient function of an op, and what it needs to be called in another graph."""

    subject: str  # The start of messages about it.
    backward: Callable[[list[Any]], Sequence[Any]]
    # Pairs of a tensor that the function can read and the tensor that has its value where the op is.
    captured: Callable[[], Sequence[tuple[Any, Any]]]
    order: int  # The order of the derivative that the op belongs to.
    exception: Exception | None  # The user's exception if the rule could not be traced.
    # Whether the function is of `tf.custom_gradient`: what it traces is converted, and not used as it is.
    is_foreign: bool = False

    def gradients(self, op: Any, dys: Sequence[Any]) -> list[Any]:
        """One gradient, or None, for each input; TensorFlow passes None as the upstream gradient of an integer."""
        pairs = zip(dys, op.outputs, strict=True)
        upstream = [traced_rule.zeros_like(result) if dy is None else dy for dy, result in pairs]
        with traced_rule.computing_derivative(self.order + 1):
            return _after_effects(lambda: self.captured_gradients(op, upstream), upstream)

    def captured_gradients(self, op: Any, upstream: Sequence[Any]) -> list[Any]:
        """The gradients as tensors of the default graph."""
        captured = self.captured()  # Kept, so that the ids stay valid.
        with capture_substitutes({id(outside): inside for outside, inside in captured}):
            return [_captured_gradient(gradient) for gradient in self.backward(list(upstream))]


def _after_effects(rule: Callable[[], list[Any]], upstream: Sequence[Any]) -> list[Any]:
    """Orders a rule: its reads and side effects wait for the upstream gradients, and the gradients wait for them."""
    graph = tf.compat.v1.get_default_graph()
    num_operations = graph.num_operations()
    with tf_internal.control_dependencies_added(graph) as order:
        gradients = rule()
        ordered = [op for op in graph.get_operations()[num_operations:] if tf_internal.is_ordered(op)]
        parts = [part for dy in upstream for part in tf.nest.flatten(dy, expand_composites=True)]
        for op in ordered:
            tf_internal.wait_for(op, [part.op for part in parts if part.graph is graph])
        if all(map(tf_internal.is_read, ordered)):
            return gradients
        gradients = [None if gradient is None else order.mark_as_return(gradient) for gradient in gradients]
        order.__exit__(None, None, None)
    return gradients


def _captured_gradient(gradient: Any) -> Any:
    """A gradient as a tensor of the default graph: a rule can return a tensor that it closes over."""
    graph = tf.compat.v1.get_default_graph()
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient if gradient is None else tf_internal.capture(graph, gradient)
    parts = (gradient.values, gradient.indices, gradient.dense_shape)
    return tf.IndexedSlices(*(part if part is None else tf_internal.capture(graph, part) for part in parts))


def of(op: Any) -> LiveRule | None:
    """The live rule of an op, or None in another process."""
    return getattr(op, _LIVE_RULE, None)


def is_needed(op: Any) -> bool:
    """Whether the op has no other rule than its live one."""
    return op.type == "CustomGradientRule" and of(op) is not None and bool(rule_op.error(op))


def exception_of(op: Any) -> Exception | None:
    """The exception that the rule of an op of this process raised while it was traced."""
    live_rule = of(op)
    return None if live_rule is None else live_rule.exception


def keep(op: Any, live_rule: LiveRule) -> None:
    """Gives an op its live rule."""
    setattr(op, _LIVE_RULE, live_rule)


def copy_rules(copies: list[tuple[Any, Any]], around: Sequence[tuple[Any, Any]] = ()) -> None:
    """Gives copied ops the live rules of the originals.

    `copies` pairs each tensor with its copy. `around` does the same for the graphs around this one.
    """
    known = [*around, *copies]
    for op, copy in {tensor.op: copy.op for tensor, copy in copies}.items():
        _carry(op, copy, lambda: known)
        if op.type in control_flow.LOOPS | control_flow.CONDITIONALS and op.type == copy.type:
            functions = zip(control_flow.functions_of(op), control_flow.functions_of(copy), strict=True)
            for function, copied in functions:
                by_name = {inner.name: inner for inner in copied.get_operations()}
                found = [(inner, by_name[inner.name]) for inner in function.get_operations() if inner.name in by_name]
                tensors = [pair for inner, new in found for pair in zip(inner.outputs, new.outputs, strict=True)]
                # In an imported graph, the inputs have other names.
                copy_rules([*zip(function.inputs, copied.inputs, strict=False), *tensors], known)


def _carry(op: Any, copy: Any, pairs: Callable[[], Sequence[tuple[Any, Any]]]) -> None:
    """Gives a copied op the live rule of the original. `pairs` gives each tensor with its copy."""
    if op.type != "CustomGradientRule" or copy.type != op.type:
        return
    rule_op.set_rule_graph(copy, rule_op.rule_graph(op))
    live_rule = of(op)
    if live_rule is None or not rule_op.error(op):
        return

    def captured() -> list[tuple[Any, Any]]:
        copies = pairs()
        copy_of = {id(tensor): copy for tensor, copy in copies}
        return [*copies, *((outside, copy_of.get(id(inside), inside)) for outside, inside in live_rule.captured())]

    keep(copy, dataclasses.replace(live_rule, captured=captured))


graph_copy.carriers.append(lambda op, new, copy: _carry(op, new, copy.pairs))
