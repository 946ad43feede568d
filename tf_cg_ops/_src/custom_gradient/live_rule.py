"""The live rule of a value in a graph: `grad_fn` itself, called in the graph at hand."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.custom_gradient import rule_op, traced_rule
from tf_cg_ops._src.custom_gradient.rule_graph import capture_substitutes
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function

# The attribute of a tf.Operation that keeps its live rule as long as the graph lives.
_LIVE_RULE = "_tf_cg_ops_live_rule"

OF_THE_OP = without_gradient_function("CustomGradientRule")


@dataclasses.dataclass(frozen=True)
class LiveRule:
    """The gradient function of an op, and what it needs to be called in another graph."""

    subject: str  # The start of messages about it.
    backward: Callable[[list[Any]], Sequence[Any]]
    captured: list[tuple[tf.Tensor, tf.Tensor]]  # Each tensor of an outer graph with its capture in the op's graph.
    order: int  # The order of the derivative that the op belongs to.
    exception: Exception | None  # The user's exception if the rule could not be traced.

    def gradients(self, op: Any, dys: Sequence[Any]) -> list[Any]:
        """One gradient, or None, for each input; TensorFlow passes None as the upstream gradient of an integer."""
        pairs = zip(dys, op.outputs, strict=True)
        upstream = [traced_rule.zeros_like(result) if dy is None else dy for dy, result in pairs]
        with traced_rule.derivative(self.order + 1):
            return _after_effects(lambda: self.captured_gradients(op, upstream), upstream)

    def captured_gradients(self, op: Any, upstream: Sequence[Any]) -> list[Any]:
        """The gradients as tensors of the default graph."""
        capture_by_id = {id(outside): inside for outside, inside in self.captured}
        with capture_substitutes(capture_by_id):
            return [_captured(gradient) for gradient in self.backward(list(upstream))]


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


def _captured(gradient: Any) -> Any:
    """A gradient as a tensor of the default graph: a rule can return a tensor that it closes over."""
    graph = tf.compat.v1.get_default_graph()
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient if gradient is None else tf_internal.capture(graph, gradient)
    parts = (gradient.values, gradient.indices, gradient.dense_shape)
    return tf.IndexedSlices(*(part if part is None else tf_internal.capture(graph, part) for part in parts))


def of(op: Any) -> LiveRule | None:
    """The live rule of an op, or None in another process."""
    return getattr(op, _LIVE_RULE, None)


def exception_of(op: Any) -> Exception | None:
    """The exception that the rule of an op of this process raised while it was traced."""
    live_rule = of(op)
    return None if live_rule is None else live_rule.exception


def keep(op: Any, live_rule: LiveRule) -> None:
    """Gives an op its live rule."""
    setattr(op, _LIVE_RULE, live_rule)


def with_traced_rule(op: Any) -> tuple[Any, list[tf.Tensor]]:
    """The op if it has a traced rule, or a new op in its own graph for which the rule is traced now; and the captures.

    If the rule cannot be traced in this process, this raises the error of the op.
    """
    results, inputs, captures = rule_op.parts_of_inputs(op)
    error, live_rule, name = rule_op.error(op), of(op), rule_op.function_name(op)
    if not error:
        return op, captures
    if live_rule is None:
        raise RuntimeError(error)
    if live_rule.exception is not None:
        raise live_rule.exception
    graph = tf_internal.FuncGraph("custom_gradient_rule")
    with graph.as_default(), traced_rule.derivative(live_rule.order):
        backward = functools.partial(live_rule.captured_gradients, op)
        rule = traced_rule.trace(OF_THE_OP, name, results, backward, live_rule.order + 1)
        if rule.error:
            raise rule.exception or RuntimeError(rule.error)
        return rule_op.create(graph, name, [results, inputs, rule.captures], rule)[0], rule.captures


def copy_rules(copies: list[tuple[tf.Tensor, tf.Tensor]]) -> None:
    """Gives copied ops the live rules of the originals; `copies` are pairs of a tensor and its copy."""
    copy_of = {id(tensor): copy for tensor, copy in copies}
    for op, copy in {tensor.op: copy.op for tensor, copy in copies}.items():
        live_rule = of(op)
        if live_rule is None:
            continue
        rule_op.set_rule_graph(copy, rule_op.rule_graph(op))
        if rule_op.error(op):
            captured = [(outside, copy_of.get(id(inside), inside)) for outside, inside in live_rule.captured]
            keep(copy, dataclasses.replace(live_rule, captured=[*copies, *captured]))
