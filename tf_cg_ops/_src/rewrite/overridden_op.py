"""Attaches a rule to an op, so that the rule computes its gradient."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import pytree, text, tf_internal
from tf_cg_ops._src.core.signature import as_function
from tf_cg_ops._src.custom_gradient import live_rule
from tf_cg_ops._src.custom_gradient.attaching import attach
from tf_cg_ops._src.custom_gradient.checks import GradientChecks
from tf_cg_ops._src.custom_gradient.wording import Wording
from tf_cg_ops._src.graphs import graph_copy
from tf_cg_ops._src.rewrite.op_rules import Rule

_ORDERS = 3  # Of derivatives that the graph has of a rule.


class OverriddenOp:
    """The op that a rule gets: a tf.Operation whose outputs have the gradient of the rule, too.

    Attributes:
      inputs: The inputs, as Tensors of the graph with the copy of the op.
      values: The outputs, without the gradient of the rule.
      orders: How many orders of derivatives the graph needs, if each is expensive.
    """

    def __init__(
        self,
        op: Any,
        inputs: Sequence[tf.Tensor],
        values: Sequence[tf.Tensor],
        overridden: Callable[[], list[tf.Tensor]] | None = None,
        orders: int = 2,
    ) -> None:
        self._op = op
        self.orders = orders
        self.inputs, self.values = list(inputs), list(values)
        self._overridden = overridden

    # If a rule reads an output, the second derivative goes through the rule again, which takes one more trace. Most
    # rules do not read any.
    @functools.cached_property
    def outputs(self) -> list[tf.Tensor]:
        """The outputs."""
        return self._overridden() if self._overridden else self.values

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)


def attach_rule(
    api: str,
    rule: Rule,
    op: Any,
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    place: str = "",
    orders: int = 2,
) -> list[tf.Tensor]:
    """Returns the outputs of an op, or of a copy of it, with the rule's gradient with respect to these inputs.

    `place` follows the name of the op in messages, and `orders` is for the OverriddenOp.
    """
    # A rule that reads a value captures it. TensorFlow then sends zeros there: the op's own gradient can make them nan.
    values = [tf.stop_gradient(output) if tf_internal.is_trainable(output) else output for output in outputs]
    wording = _wording(api, rule)
    name = f"{op.name} ({op.type}){place}"
    names = [f"op.inputs[{i}]" for i in range(len(inputs))]
    leaves = pytree.Leaves(list(inputs), lambda: list(map(pytree.Argument, names, inputs)))
    differentiable = [[tensor] if tf_internal.is_trainable(tensor) else [] for tensor in inputs]
    checks = GradientChecks(wording, name, leaves, differentiable, [])

    def overridden() -> list[tf.Tensor]:
        sources = [tensor for tensors in differentiable for tensor in tensors]
        # A rule that reads an output calls itself for the next order.
        results = attach(wording, name, list(outputs), sources, backward, saved_orders=_ORDERS)
        for result in results if not tf.executing_eagerly() else []:
            graph_copy.note_original(result.op, op)
        return results

    def backward(upstream: Sequence[Any]) -> list[Any]:
        seen = OverriddenOp(op, inputs, values, overridden, orders)
        dys = pytree.upstream_gradients(list(outputs), [[output] for output in outputs], upstream)
        return checks.checked_gradients(checks.answer(functools.partial(as_function(rule), seen), dys, {}))

    return overridden()


def attach_traced_rule(
    api: str, rule: Rule, op: Any, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor], place: str
) -> list[tf.Tensor]:
    """`attach_rule` for a graph that is saved: if the rule raises an exception, it is raised here."""
    results = attach_rule(api, rule, op, inputs, outputs, place)
    exception = live_rule.exception_of(results[0].op)
    if exception is not None:
        raise exception
    return results


def _wording(api: str, rule: Rule) -> Wording:
    return Wording(
        api,
        subject=f"the rule '{text.name_of(rule)}' for the op {{function}}",
        gradient_function="rule",
        parameters="op, *dys",
        binds_arguments=True,
        takes="the op and {upstream} (one for each output)",
        not_traced=(
            "{subject} must be a function that TensorFlow can trace into a graph, got {error}. Correct the rule, or "
            "compute it with TensorFlow operations."
        ),
        is_for_users_code=False,  # A rule can call `rules.built_in`, which raises its own error for some ops.
    )
