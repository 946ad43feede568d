"""`override_gradients`: a function whose ops have other gradients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import pytree, text, tf_internal
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.rewrite import control_flow, traces
from tf_cg_ops._src.rewrite.graph_copy import GraphCopy
from tf_cg_ops._src.rewrite.overridden_op import attach_rule
from tf_cg_ops._src.rewrite.python_gradients import copy_with_python_gradient
from tf_cg_ops._src.rewrite.rule_table import Key, Matching, Rule, RuleTable
from tf_cg_ops._src.rewrite.traced_call import SharedCall, TracedCall, explained

_API = "override_gradients"
_WORDING = without_gradient_function(_API)


@tf_internal.autograph_artifact
def override_gradients(f: Callable[..., Any], rules: Mapping[Key, Rule]) -> Callable[..., Any]:
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
      TypeError: `f` is not a function, or `rules` no such dictionary; when it is traced: `f` needs the numbers in a
        Tensor.
      ValueError: At the call, when it is traced: a rule matched no op. When a gradient is asked for: a rule returned a
        wrong number of gradients, or one of the wrong dtype or shape.
      NotImplementedError: At the call: `f` has control flow of TensorFlow 1.
    """
    table = RuleTable(_API, rules)
    if not callable(f):
        raise TypeError(
            f"{_API}: f cannot be called; expected a function, a model, or a function of a loaded SavedModel such as "
            f"loaded.signatures['serving_default'], got {text.describe_type(f)}."
        )
    return CustomGradient(_API, f, _Override(f, table).call)


class _Override:
    """Calls a function, or methods made of it, with the rules of one table."""

    def __init__(self, f: Callable[..., Any], table: RuleTable) -> None:
        self._f = f
        self._table = table
        self._traces = traces.Traces()

    def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The value of a function, some of whose ops have other gradients."""
        if not tf.executing_eagerly():
            call = _OverriddenCall(self._table, function, args, kwargs)
        else:
            args, kwargs = traces.arrays_to_tensors((args, kwargs))
            call = self._traced(function, args, kwargs)
        return call.pack(call.compute(*pytree.tensors_in((args, kwargs))))

    def _traced(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> "_OverriddenCall":
        """In eager mode the same trace for the same signature."""

        def make() -> "_OverriddenCall":
            with explained(_API, function):
                return _OverriddenCall(self._table, function, args, kwargs)

        found = self._traces if function is self._f else traces.of(function)
        return found.find(_API, function, (self._table, args, kwargs), make)


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

        def flat_function(*tensors: tf.Tensor) -> list[tf.Tensor]:
            trace = TracedCall(function, args, kwargs)
            self.pack = trace.pack
            captures = [(inside, outside) for outside, inside in trace.graph.captures]
            copy = GraphCopy([*zip(trace.inputs, tensors, strict=True), *captures], _Overriding(matching))
            copy.operations([op for op in trace.graph.get_operations() if op.op_def.is_stateful])
            return [tf.identity(output) for output in copy.tensors(trace.graph.outputs)]

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in pytree.tensors_in((list(args), kwargs))]
        self.compute = SharedCall(tf.function(flat_function, autograph=False).get_concrete_function(*specs))
        matching.check_all_matched(f"'{text.name_of(function)}'")


class _Overriding:
    """Puts rules behind ops while a graph is copied."""

    def __init__(self, matching: Matching) -> None:
        self._matching = matching

    def __call__(self, copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[tf.Tensor] | None:
        outputs = self._copied(copy, op, inputs)
        rule = self._matching.rule_for(op) if op.inputs and op.outputs else None
        return outputs if rule is None else attach_rule(_API, rule, op, inputs, outputs)

    def _copied(self, copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[tf.Tensor]:
        if op.type in control_flow.CALLS and _is_compiled(op):
            return control_flow.copy_compiled_call(copy, op, inputs)
        with_python_gradient = copy_with_python_gradient(_WORDING, copy, op, inputs)
        return copy.copy_op(op, inputs) if with_python_gradient is None else with_python_gradient


def _is_compiled(op: Any) -> bool:
    """Whether a called function has jit_compile=True."""
    attribute = op.node_def.attr.get("_XlaMustCompile")
    return attribute is not None and attribute.b
