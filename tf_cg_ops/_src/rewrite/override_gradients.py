"""`override_gradients`: changes the gradients of ops in a function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, pytree, signature, text, tf_internal
from tf_cg_ops._src.core.types import P, R
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.custom_gradient.traced_rule import in_forward_mode
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.graphs import control_flow
from tf_cg_ops._src.graphs.graph_copy import GraphCopy
from tf_cg_ops._src.rewrite import built_functions, own_gradients
from tf_cg_ops._src.rewrite.op_rules import Rule, RuleTable
from tf_cg_ops._src.rewrite.overridden_op import attach_rule
from tf_cg_ops._src.rewrite.traced_call import ThreadSafeFunction, TracedCall, arrays_to_tensors, spec_of, trace

_API = "override_gradients"
_CALL = "Write override_gradients(f, {'Relu': rule})."
_WORDING = without_gradient_function(_API)


@tf_internal.autograph_artifact
@misplaced_calls.explains(_API, f"{_CALL} As a decorator, write @functools.partial(override_gradients, rules=...).")
def override_gradients(
    f: Callable[P, R], rules: Mapping[Any, Rule], *, inside: bool = False, unmatched: str = "error"
) -> Callable[P, R]:
    """Returns a copy of `f` in which the ops that you name use your gradients.

    Use it for saliency maps, or to train through an op of a model whose code you cannot change.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> def f(x):
    ...     return 3 * tf.nn.relu(x)
    >>> g = cg.override_gradients(f, {"Relu": lambda op, dy: tf.nn.relu(dy)})
    >>> x = tf.constant([-1.0, 2.0, 4.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = g(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0, -100.0])).numpy().tolist()
    [3.0, 30.0, 0.0]

    An op `y = op(x)` that a rule matches has the gradient

        dx = rule(op, dy)

    and all other ops keep theirs. The value stays the same. `f` does not change, and both share their variables.

    A rule works like a gradient function for `tf.RegisterGradient`. It takes the op (with `op.inputs`, `op.outputs`,
    `op.get_attr` and `op.type`) and an upstream gradient for each output. It returns one gradient for each input, or a
    list of them, with None for no gradient. `tf_cg_ops.rules` has ready-made rules. For second derivatives,
    TensorFlow differentiates the ops in the rule. Through `op.outputs`, your rule is used again.

    Rules also apply inside called functions, loops and conditionals. A rule for one of these applies to it as a whole.
    The op type is the one in the graph: `tf.nn.relu` is a `Relu`, and a Keras layer can consist of several ops.

    A function with its own gradient, such as `tf.nn.silu` or one that `tf.custom_gradient` or this library decorates,
    skips the ops inside. So a rule for the `Sigmoid` in `tf.nn.silu` has no effect: you get an error, or a warning if
    the rule reaches other ops. With `inside=True`, such a function uses TensorFlow's gradient of its ops, with your
    rules, instead of its own.

    `f` is traced and copied, in eager mode in each call. For speed, wrap the result in `tf.function`. Nested calls are
    inlined, except those with `jit_compile=True`.

    Args:
      f: A Python function of TensorFlow ops, a `tf.function` or one of its traces, a Keras model, a loaded SavedModel
        or one of its functions.
      rules: A dict from an op type such as "Relu", a name with a slash such as "block3/Relu", or a predicate on a
        `tf.Operation`, to a rule. An op gets the first rule that matches, but a rule for its type or name comes
        before one for `rules.elementwise`.
      inside: Whether rules also reach into functions that have their own gradient, which then lose it.
      unmatched: What to do about a rule that matches no op that gradients reach: "error", or "ignore", so that you can
        use one dict for several functions. You still get the warning about functions with their own gradient.

    Returns:
      A function with the signature and the value of `f`.

    Raises:
      TypeError: An argument has the wrong type; a rule does not take `(op, *dy)`, or returns a wrong type or dtype.
      ValueError: `rules` is empty; a rule matches no op that it can reach (the message lists the op types), or its
        gradients do not fit in number or shape.
      NotImplementedError: `f` has control flow of TensorFlow 1.

    Differs from `tf.Graph.gradient_override_map` of TensorFlow 1, which TensorFlow 2 does not replace: it changes a
    function that already exists, and rules are functions, not registered names.
    """
    noun = "a function, a model, or a function of a loaded SavedModel such as loaded.signatures['serving_default']"
    misplaced_calls.check_function(_API, "f", f, _CALL, noun)
    table = RuleTable(_API, rules, inside, unmatched)

    built = built_functions.Table(16)  # Not the table of all functions, because these hold the rules.

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        inputs = arrays_to_tensors((list(args), kwargs))
        call = TracedCall(signature.traced(_API, function, "to give its ops other gradients"), *inputs)
        inside, values = call.inside, [*pytree.tensors_in(inputs), *call.outside.values]
        orders = 3 if in_forward_mode(values) else 2  # Forward mode transposes, which is one derivative more.
        # With a tangent, TensorFlow loses the variable of a handle that is an argument.
        handles = [handle for _, handle in call.outside.handles]
        captured = handles if in_forward_mode(handles) else []
        overridden = _with_rules(table, f"'{text.name_of(function)}'", call.graph, inside, orders, captured)
        for variable in call.variables:  # Their handles are inputs, so the call does not read them.
            tf_internal.variable_accessed(variable)
        call_graph = functools.partial(tf_internal.call_trace, overridden)
        if captured:
            outputs = call_graph(*values[: -len(captured)])
        else:
            graph = overridden.graph
            shared = built_functions.find_or_build(
                _API, graph, graph.inputs, lambda: ThreadSafeFunction(call_graph), built
            )
            outputs = shared(*values)
        call.forget_outside()
        value = call.pack(outputs)
        pytree.check_leaves(_API, text.name_of(function), value)  # All of it has gradients.
        return value

    return CustomGradient(_API, f, run)


def _with_rules(
    table: RuleTable, place: str, graph: Any, inside: Sequence[tf.Tensor], orders: int, captured: Sequence[Any]
) -> Any:
    """A copy of a traced graph as a function of these tensors, in which ops have the gradients of the rules.

    Handles that are captured stand for the last of the tensors.
    """

    def flat_function(*tensors: tf.Tensor) -> list[tf.Tensor]:
        outputs = copy_with_rules(_API, table, place, graph, zip(inside, [*tensors, *captured], strict=True), orders)
        return [tf.identity(output) for output in outputs]

    return trace(flat_function, [spec_of(tensor) for tensor in inside[: len(inside) - len(captured)]])


def copy_with_rules(
    api: str,
    table: RuleTable | None,
    place: str,
    graph: Any,
    values: Iterable[tuple[Any, Any]],
    orders: int = 2,
    names: bool = True,
) -> list[tf.Tensor]:
    """Copies a traced graph into the default graph for these values, perhaps with rules, and returns its outputs.

    `names` says whether the ops keep their names.
    """
    if table is None:
        return GraphCopy(values, names=names).outputs_of(graph)
    matching = table.matching()
    own = own_gradients.OwnGradients(matching, control_flow.functions_of)

    def replace(copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[tf.Tensor] | None:
        outputs = copy.copy_op(op, inputs)
        positions = own_gradients.differentiated_inputs(op)
        if positions is not None and not own.keeps(op, positions, table.inside, own_gradients.name_of_owner(op)):
            outputs = [tf.identity(result) for result in inputs[: len(op.outputs)]]
        rule = matching.rule_for(op) if op.inputs and op.outputs else None
        return outputs if rule is None else attach_rule(api, rule, op, inputs, outputs, orders=orders)

    outputs = GraphCopy(values, replace, names=names).outputs_of(graph)
    matching.check_all_matched(place)
    own.check_rules_reach(place, graph.outputs)
    return outputs
