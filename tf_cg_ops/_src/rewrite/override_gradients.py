"""`override_gradients`: a function whose ops have other gradients."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, pytree, text, tf_internal
from tf_cg_ops._src.core.types import P, R
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.rewrite import control_flow, traces
from tf_cg_ops._src.rewrite.graph_copy import GraphCopy
from tf_cg_ops._src.rewrite.overridden_op import attach_rule
from tf_cg_ops._src.rewrite.python_gradients import copy_with_python_gradient
from tf_cg_ops._src.rewrite.rule_table import Key, Rule, RuleTable
from tf_cg_ops._src.rewrite.traced_call import ThreadSafeFunction, TracedCall, trace

_API = "override_gradients"
_CALL = "Write override_gradients(f, {'Relu': rule})."
_WORDING = without_gradient_function(_API)


@tf_internal.autograph_artifact
@misplaced_calls.explains(_API, f"{_CALL} As a decorator, write @functools.partial(override_gradients, rules=...).")
def override_gradients(f: Callable[P, R], rules: Mapping[Key, Rule]) -> Callable[P, R]:
    """Makes a function with the value of `f`, some of whose ops have other gradients.

    An op `y = op(x)` in `f` that a rule is for has the gradient

        dx = rule(op, dy)

    and every other op its own. `f` may be a Python function, a tf.function or one of its traces, a Keras model, a
    SavedModel that was loaded or one of its functions. It does not change, nothing is registered, and variables are
    shared.

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

    Ops in functions that `f` calls, in loops and in conditionals have their rules, too. A rule for a loop, a
    conditional or a call is for it as a whole.

    `rule(op, *dy)` is a gradient function as `tf.RegisterGradient` takes it: `op.inputs`, `op.outputs`, `op.get_attr`
    and `op.type` describe the op, `dy` has an upstream gradient for each output, and the answer is one gradient for
    each input, or a list of them, with None for no gradient. `tf_cg_ops.rules` has rules that many people need. Second
    derivatives are those of the ops in the rule; there `op.outputs` have the gradient of the rule again.

    The op type is that of the graph: `tf.nn.relu` is a `Relu`, and a Keras layer may be several ops. The error for a
    rule that matched nothing lists the types.

    `f` is traced, in eager mode once for each signature of its arguments. A tf.function is not traced again for a
    signature that it knows. Nested calls are inlined, but for those with `jit_compile=True`.

    Compared with TensorFlow: `tf.Graph.gradient_override_map` of TensorFlow 1 changes the gradients of ops that are
    made in its context, by the names of registered functions. It has no successor in TensorFlow 2.

    Args:
      f: The function, which computes with TensorFlow ops.
      rules: A dictionary from an op type such as "Relu", or a predicate on a `tf.Operation`, to a rule. The first that
        matches an op is its rule.

    Returns:
      A function with the signature and the value of `f`.

    Raises:
      TypeError: `f` is not a function, or `rules` is not such a dictionary. When `f` is traced: it needs the numbers in
        a Tensor, or a predicate does not return a bool. When you compute a gradient: a rule does not take the op and
        its upstream gradients, or returned something else than Tensors, or complex numbers for a real input.
      ValueError: `rules` is empty. When `f` is traced: a rule matched no op. When you compute a gradient: a rule
        returned a wrong number of gradients, or one of the wrong shape.
      NotImplementedError: At the call: `f` has control flow of TensorFlow 1.
    """
    if not callable(f):
        raise TypeError(
            f"{_API}: f must be a function, a model, or a function of a loaded SavedModel such as "
            f"loaded.signatures['serving_default'], got {text.describe_type(f)}. {_CALL}"
        )
    table = RuleTable(_API, rules)
    own = traces.Traces()

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        args, kwargs = traces.arrays_to_tensors((args, kwargs))
        call = traces.find_or_make(
            _API,
            function,
            (table, args, kwargs),
            lambda: _OverriddenCall(table, function, args, kwargs),
            # The traces of a method live as long as its object. A rule, and so the others, may refer to the result:
            # only that may hold them.
            owner=own if function is f else None,
        )
        return call.pack(call.compute(*pytree.tensors_in((args, kwargs))))

    return CustomGradient(_API, f, run)


class _OverriddenCall:
    """A function traced for arguments of one signature, with other gradients.

    Attributes:
      compute: From the Tensors of the arguments to those of the value.
      pack: From these to the value.
    """

    def __init__(
        self, table: RuleTable, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        matching = table.matching()

        def replace(copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[tf.Tensor] | None:
            outputs = _copied(copy, op, inputs)
            rule = matching.rule_for(op) if op.inputs and op.outputs else None
            return outputs if rule is None else attach_rule(_API, rule, op, inputs, outputs)

        def flat_function(*tensors: tf.Tensor) -> list[tf.Tensor]:
            call = TracedCall(function, args, kwargs)
            self.pack = call.pack
            captures = [(inside, outside) for outside, inside in call.graph.captures]
            copy = GraphCopy([*zip(call.inputs, tensors, strict=True), *captures], replace)
            return [tf.identity(output) for output in copy.outputs_of(call.graph)]

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in pytree.tensors_in((list(args), kwargs))]
        self.compute = ThreadSafeFunction(functools.partial(tf_internal.call_trace, trace(flat_function, specs)))
        matching.check_all_matched(f"'{text.name_of(function)}'")


def _copied(copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[tf.Tensor]:
    compiled = op.node_def.attr.get("_XlaMustCompile") if op.type in control_flow.CALLS else None
    if compiled is not None and compiled.b:  # The copied function is compiled likewise.
        call = tf.function(
            lambda *inputs: control_flow.copy(op, list(inputs), copy.call), autograph=False, jit_compile=True
        )
        return call(*inputs)
    outputs = copy_with_python_gradient(_WORDING, copy, op, inputs)
    return copy.copy_op(op, inputs) if outputs is None else outputs
