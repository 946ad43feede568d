"""The two gradient rules of a value in a graph: the live one and the traced one.

In the process that computed the value, the gradient is the live rule: `grad_fn`, called in the current graph, as
`tf.custom_gradient` does it. So slices, distribution strategies and reads of shapes in loops work as they do there.
Elsewhere (in a loaded model, an imported graph, a batch of tf.vectorized_map) it is the traced rule: the function that
the op CustomGradientRule names. Its body is imported, not called, so that TensorFlow can differentiate its ops.
"""

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import slices, tapes, tf_internal, when_saved
from tf_cg_ops._src.custom_gradient import foreign_rule, live_rule, rule_op, traced_rule, variable_reads
from tf_cg_ops._src.custom_gradient.live_rule import LiveRule
from tf_cg_ops._src.custom_gradient.wording import Wording
from tf_cg_ops._src.graphs import inline


def attach(
    wording: Wording,
    name: str,
    results: list[tf.Tensor],
    inputs: list[tf.Tensor],
    backward: Callable[[list[Any]], Sequence[Any]],
    for_tapes: Callable[[list[Any]], Sequence[Any]] | None = None,
    tangents: Callable[..., Sequence[Any]] | None = None,
    saved_orders: int | None = None,
    error: str = "",
    api: str | None = None,
) -> list[tf.Tensor]:
    """Returns the results with `backward` as their gradient with respect to the inputs.

    Tapes that record now call `for_tapes` instead, which can leave out gradients that they do not watch. Accumulators
    that record now call `tangents` instead of transposing it. With an error, the traced rule raises it. `api` made the
    function, by default the one of the wording.
    """
    for_tapes = for_tapes or backward
    if tf.executing_eagerly():
        return tapes.recorded_copies(name, results, inputs, for_tapes, tangents)
    graph = tf.compat.v1.get_default_graph()
    if error:
        rule = traced_rule.without_rule(error)
    else:
        rule = traced_rule.trace_rule(wording, name, results, backward, foreign_rule.conversion, saved_orders)
        if rule.exception is not None:
            _warn_when_saved(rule.error)
    if not graph.building_function and any(isinstance(t, tf_internal.EagerTensor) for t in rule.captures):
        raise ValueError(
            f"{wording.subject_of(name)} must not use a Tensor or variable of eager mode, which a graph of TensorFlow "
            "1 or of a file cannot hold. Use its value instead, for example w.numpy()."
        )
    op, captured = rule_op.create(graph, name, [results, inputs, rule.captures], rule, api=_mark(api or wording.api))
    outputs = list(op.outputs)
    order = traced_rule.current_order()
    live = LiveRule(wording.subject_of(name), backward, lambda: captured, order, rule.exception)
    live_rule.keep(op, live)

    def on_tapes(*dys: Any) -> list[Any]:
        # `grad_fn` can use tapes, which do not work in forward mode. They worked when the rule was traced.
        if rule.exception or tapes.new_tapes_record():
            return _call_live(dataclasses.replace(live, backward=for_tapes), op, dys, rule.captures, inputs)
        traced, captures = with_traced_rule(op)
        return _import_traced(traced, dys, captures, inputs)

    # If TensorFlow recorded the op, forward mode would hash its attributes, which fails for the name of a function.
    tapes.record(op.type, outputs, rule_op.parts_of_inputs(op)[1], on_tapes, tangents)
    return outputs


def _mark(api: str) -> str:
    """What the op says of the function that made it: an audit knows those whose gradient differs on purpose."""
    return "" if api in ("custom_gradient", "custom_vjp", "custom_jvp", "CustomGradientRule") else api


def gradients_of_op(op: Any, dys: Sequence[Any]) -> list[Any]:
    """The gradients of a CustomGradientRule op with respect to all its inputs."""
    results, inputs, captures = rule_op.parts_of_inputs(op)
    live = live_rule.of(op)
    # In forward mode, tapes in `grad_fn` work only while it is traced. In a dead branch of a v1 conditional the inputs
    # of the op are dead but not the tensors that `grad_fn` captured.
    records = tapes.new_tapes_record()
    is_called = records and not tf_internal.is_in_v1_conditional(op) and not (live and live.is_foreign)
    if live is not None and (live.exception or is_called):
        by_input = _call_live(live, op, dys, captures, inputs)
    else:
        traced, traced_captures = with_traced_rule(op)
        by_input = _import_traced(traced, dys, traced_captures, inputs)
    return [None] * len(results) + by_input + [None] * len(captures)


def vectorize(
    op: Any, values: list[Any], is_stacked: list[bool], convert: Callable[[Sequence[Any]], list[tuple[Any, bool]]]
) -> list[tf.Tensor]:
    """Makes the op for a whole batch, with a rule that vectorizes the rule of the op.

    Results that have a derivative must be stacked, one for each example; all other values can be. `convert` converts
    other tensors of one example, and tells whether they are stacked.
    """
    num_results, num_inputs = len(op.outputs), len(op.get_attr("Tinputs"))
    results, inputs = values[:num_results], values[num_results : num_results + num_inputs]

    def backward(dys: Sequence[Any]) -> Sequence[Any]:
        rule_op.check_positions(op)
        traced, captured = with_traced_rule(op)
        if traced is op:
            captures = list(zip(values, is_stacked, strict=True))[num_results + num_inputs :]
        else:
            captures = convert(captured)
        stacked_captures = [value for value, stacked in captures if stacked]

        def gradients_of_example(example: tuple[Any, Any]) -> list[Any]:
            example_dys, example_captures = example[0], iter(example[1])
            all_captures = [next(example_captures) if stacked else value for value, stacked in captures]
            gradients = _import_traced(
                traced, dict(zip(differentiated, example_dys, strict=True)), all_captures, op.inputs[num_results:]
            )
            return [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]

        differentiated = traced.get_attr("differentiated_results")
        dense_dys = [slices.to_dense(dys[i]) for i in differentiated]
        gradients = iter(tf.vectorized_map(gradients_of_example, (dense_dys, stacked_captures)))
        by_input: list[Any] = [None] * num_inputs
        for position in traced.get_attr("differentiated_inputs"):
            gradient = next(gradients)
            by_input[position] = gradient if is_stacked[num_results + position] else tf.reduce_sum(gradient, 0)
        return by_input

    return attach(live_rule.OF_THE_OP, rule_op.function_name(op), results, inputs, backward, error=rule_op.error(op))


def run_eagerly(op: Any, values: list[Any]) -> list[tf.Tensor]:
    """In eager mode, the results of an op of a graph for values of its inputs, with its traced rule."""
    results, inputs, captures = rule_op.parts_of_inputs(op, values)

    def backward(dys: Sequence[Any]) -> list[Any]:
        exception = live_rule.exception_of(op)
        if exception is not None:
            raise exception
        function = tf.function(lambda dys, captures: _import_traced(op, dys, captures, inputs), autograph=False)
        values = list(map(slices.to_dense, dys)), captures
        return function.get_concrete_function(*values)(*values)  # Traced also if functions are run eagerly.

    return tapes.recorded_copies(rule_op.function_name(op), results, inputs, backward)


def _call_live(
    live: LiveRule, op: Any, dys: Sequence[Any], captures: list[tf.Tensor], inputs: Sequence[tf.Tensor]
) -> list[Any]:
    """Calls the live rule. If its trace has used up a tape of the forward pass, imports the trace instead."""
    graph = tf.compat.v1.get_default_graph()
    num_operations = graph.num_operations()
    try:
        return live.gradients(op, dys)
    except RuntimeError as error:
        if rule_op.error(op) or tf_internal.USED_UP_TAPE not in str(error):
            raise
        # The imported trace would repeat the side effects.
        created = graph.get_operations()[num_operations:]
        if any(tf_internal.is_ordered(op) and not tf_internal.is_read(op) for op in created):
            raise RuntimeError(
                f"{live.subject} has side effects, so a tape of the forward pass that it uses must be "
                "tf.GradientTape(persistent=True), got a tape that is not persistent."
            ) from error
        return _import_traced(op, dys, captures, inputs)


def _import_traced(
    op: Any, dys: Sequence[Any] | dict[int, Any], captures: list[tf.Tensor], inputs: Sequence[tf.Tensor]
) -> list[Any]:
    """Imports the traced rule; returns one gradient, or None, for each input, in the shape of the input."""
    if op.get_attr("error"):
        raise RuntimeError(rule_op.error(op))
    rule_op.check_positions(op)
    result: list[Any] = [None] * len(op.get_attr("Tinputs"))
    positions = op.get_attr("differentiated_inputs")
    if positions:
        upstream = [tf.convert_to_tensor(slices.to_dense(dys[i])) for i in op.get_attr("differentiated_results")]
        read = op.get_attr("variable_captures")
        values = op.inputs[len(op.inputs) - len(captures) :]
        captures = [
            variable_reads.read(capture, like) if i in read else capture
            for i, (capture, like) in enumerate(zip(captures, values, strict=True))
        ]
        rule_op.check_signature(op, captures)
        name, original = op.get_attr("rule").name, rule_op.rule_graph(op)
        outputs = iter(inline.inline(op.graph, name, upstream + captures, original, live_rule.copy_rules))
        sliced = op.get_attr("sliced_inputs")
        for position in positions:
            if position in sliced:
                values, indices, dense_shape = next(outputs), next(outputs), next(outputs)
                # The branches of a conditional must have the same dtype, and TensorFlow uses 32 bits.
                result[position] = tf.IndexedSlices(values, indices, tf.cast(dense_shape, tf.int32))
            else:
                result[position] = next(outputs)
                if inputs[position].dtype != tf.resource:  # A handle is a scalar, its contents are not.
                    result[position].set_shape(inputs[position].shape)
    return result


def with_traced_rule(op: Any) -> tuple[Any, list[tf.Tensor]]:
    """The op if it has a traced rule, or a new op in its own graph for which the rule is traced now; and the captures.

    If the rule cannot be traced in this process, this raises the error of the op.
    """
    results, inputs, captures = rule_op.parts_of_inputs(op)
    error, live = rule_op.error(op), live_rule.of(op)
    if not error:
        return op, captures
    if live is None:
        raise RuntimeError(error)
    if live.exception is not None:
        raise live.exception
    new_op, tensors = traced_for(op, live)
    return new_op, tensors[len(results) + len(inputs) :]


def traced_for(op: Any, live: LiveRule) -> tuple[Any, list[tf.Tensor]]:
    """A new op in its own graph, for which this live rule of the op is traced now; and the tensors that it gets."""
    results, inputs, _ = rule_op.parts_of_inputs(op)
    name, graph = rule_op.function_name(op), tf_internal.FuncGraph("custom_gradient_rule")
    with graph.as_default(), traced_rule.next_order(live.order):
        backward = functools.partial(live.captured_gradients, op)
        rule = traced_rule.trace_rule(live_rule.OF_THE_OP, name, results, backward, foreign_rule.conversion)
        if rule.error:
            raise rule.exception or RuntimeError(rule.error)
        groups = [results, inputs, rule.captures]
        return rule_op.create(graph, name, groups, rule)[0], list(itertools.chain(*groups))


def _warn_when_saved(message: str) -> None:
    """Adds an op to the graph whose gradient TensorFlow looks up only when it saves the graph: that warns."""
    otherwise = "TensorFlow could not trace it. To see why, compute the gradient before you save the model."
    name = when_saved.gradient_that_tells("TfCgOpsNotTraced", message, otherwise, _warn)
    with tf.compat.v1.get_default_graph().gradient_override_map({"NoOp": name}):
        tf.no_op()


def _warn(message: str) -> tf.Tensor:
    warnings.warn(f"The saved model will not have this gradient. {message}", stacklevel=2)
    return tf.constant(0.0)
