"""`override_gradients`: changes the gradients of ops in a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, pytree, text, tf_internal
from tf_cg_ops._src.core.types import P, R
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.rewrite import control_flow
from tf_cg_ops._src.rewrite.graph_copy import GraphCopy
from tf_cg_ops._src.rewrite.overridden_op import attach_rule
from tf_cg_ops._src.rewrite.python_gradients import copy_with_python_gradient
from tf_cg_ops._src.rewrite.rule_table import Key, Rule, RuleTable
from tf_cg_ops._src.rewrite.traced_call import TracedCall, arrays_to_tensors, trace

_API = "override_gradients"
_CALL = "Write override_gradients(f, {'Relu': rule})."
_WORDING = without_gradient_function(_API)


@tf_internal.autograph_artifact
@misplaced_calls.explains(_API, f"{_CALL} As a decorator, write @functools.partial(override_gradients, rules=...).")
def override_gradients(f: Callable[P, R], rules: Mapping[Key, Rule]) -> Callable[P, R]:
    """Returns a copy of `f` in which the ops that you name use your gradients.

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

    `f` is traced, in eager mode once for each signature of its arguments, unless it is a `tf.function` that knows the
    signature. Nested calls are inlined, except those with `jit_compile=True`.

    Args:
      f: A Python function of TensorFlow ops, a `tf.function` or one of its traces, a Keras model, a loaded SavedModel
        or one of its functions.
      rules: A dict from an op type such as "Relu", or a predicate on a `tf.Operation`, to a rule. An op gets the first
        rule that matches.

    Returns:
      A function with the signature and the value of `f`.

    Raises:
      TypeError: `f` is not a function, or `rules` is not such a dict. When `f` is traced: it needs the numbers in a
        Tensor, or a predicate does not return a bool. When you compute a gradient: a rule does not take the op and its
        upstream gradients, or returns something other than Tensors, or complex numbers for a real input.
      ValueError: `rules` is empty. When `f` is traced: a rule matches no op (the message lists the op types). When you
        compute a gradient: a rule returns the wrong number of gradients, or a gradient of the wrong shape.
      NotImplementedError: When `f` is traced: it has control flow of TensorFlow 1.

    Differs from `tf.Graph.gradient_override_map` of TensorFlow 1, which TensorFlow 2 does not replace:

    - It changes a function that already exists, not only ops that are made in a context.
    - Rules are functions, not names of registered functions.
    """
    if not callable(f):
        raise TypeError(
            f"{_API}: f must be a function, a model, or a function of a loaded SavedModel such as "
            f"loaded.signatures['serving_default'], got {text.describe_type(f)}. {_CALL}"
        )
    table = RuleTable(_API, rules)

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        inputs = arrays_to_tensors((list(args), kwargs))
        call = TracedCall(function, *inputs)
        inside, values = [*call.inputs, *call.outside.inside], [*pytree.tensors_in(inputs), *call.outside.values]
        overridden = _with_rules(table, f"'{text.name_of(function)}'", call.graph, inside)
        for variable in call.variables:  # Their handles are inputs, so the call does not read them.
            tf_internal.variable_accessed(variable)
        outputs = tf_internal.call_trace(overridden, *values)
        call.forget_outside()
        return call.pack(outputs)

    return CustomGradient(_API, f, run)


def _with_rules(table: RuleTable, place: str, graph: Any, inside: Sequence[tf.Tensor]) -> Any:
    """A copy of a traced graph as a function of these tensors, in which ops have the gradients of the rules."""
    matching = table.matching()

    def replace(copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[tf.Tensor] | None:
        outputs = _copied(copy, op, inputs)
        rule = matching.rule_for(op) if op.inputs and op.outputs else None
        return outputs if rule is None else attach_rule(_API, rule, op, inputs, outputs)

    def flat_function(*tensors: tf.Tensor) -> list[tf.Tensor]:
        copy = GraphCopy(zip(inside, tensors, strict=True), replace)
        return [tf.identity(output) for output in copy.outputs_of(graph)]

    overridden = trace(flat_function, [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inside])
    matching.check_all_matched(place)
    return overridden


def _copied(copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[tf.Tensor]:
    compiled = op.node_def.attr.get("_XlaMustCompile") if op.type in control_flow.CALLS else None
    if compiled is not None and compiled.b:  # The copy is compiled, too.
        call = tf.function(
            lambda *inputs: control_flow.copy(op, list(inputs), copy.call), autograph=False, jit_compile=True
        )
        return call(*inputs)
    outputs = copy_with_python_gradient(_WORDING, copy, op, inputs)
    return copy.copy_op(op, inputs) if outputs is None else outputs
