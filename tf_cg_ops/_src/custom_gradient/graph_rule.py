"""The two gradient rules of a value in a graph: the live one and the traced one.

The process that computed the value calls the live rule, `grad_fn`, in the current graph, as `tf.custom_gradient` does:
slices, distribution strategies and reads of shapes in loops then work as they do there. Elsewhere (in a loaded model,
an imported graph, a batch of tf.vectorized_map) the gradient is the traced rule, the function that the op
CustomGradientRule names. Its body is imported, not called, so that its ops are differentiated like any others.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import slices, tapes, tf_internal
from tf_cg_ops._src.core.rule_graph import capture_substitutes
from tf_cg_ops._src.custom_gradient import inline, traced_rule, variable_reads
from tf_cg_ops._src.custom_gradient.wording import Wording, without_gradient_function

# The attribute of a tf.Operation that holds its live rule, and keeps it as long as the graph lives.
_LIVE_RULE = "_tf_cg_ops_live_rule"


@dataclasses.dataclass(frozen=True)
class _LiveRule:
    backward: traced_rule.Backward
    captured: list[tuple[tf.Tensor, tf.Tensor]]  # Each tensor of an outer graph with its capture in the op's graph.
    order: int  # The order of the derivative in which the op stands.
    exception: Exception | None  # The user's exception if the rule could not be traced.

    def gradients(self, op: Any, dys: Sequence[Any]) -> list[Any]:
        """One gradient, or None, for each input; TensorFlow passes None as the upstream gradient of an integer."""
        pairs = zip(dys, op.outputs, strict=True)
        upstream = [traced_rule.zeros_like(result) if dy is None else dy for dy, result in pairs]
        capture_by_id = {id(outside): inside for outside, inside in self.captured}
        with traced_rule.derivative(self.order + 1), capture_substitutes(capture_by_id, op.graph):
            return _after_effects(lambda: [_captured(gradient) for gradient in self.backward(upstream)], upstream)


def _after_effects(rule: Callable[[], list[Any]], upstream: Sequence[Any]) -> list[Any]:
    """The gradients of a rule, which wait for its side effects, as its reads and side effects wait for the upstream."""
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
    """A gradient in the default graph: a rule may return a tensor as it is that it closes over."""
    graph = tf.compat.v1.get_default_graph()
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient if gradient is None else tf_internal.capture(graph, gradient)
    parts = (gradient.values, gradient.indices, gradient.dense_shape)
    return tf.IndexedSlices(*(part if part is None else tf_internal.capture(graph, part) for part in parts))


def attach(
    wording: Wording,
    name: str,
    results: list[tf.Tensor],
    inputs: list[tf.Tensor],
    backward: traced_rule.Backward,
    for_tapes: traced_rule.Backward | None = None,
    tangents: Callable[..., Sequence[Any]] | None = None,
) -> list[tf.Tensor]:
    """Returns the results with `backward` as their gradient with respect to the inputs.

    The tapes that record now call `for_tapes` instead, if it is there: it may leave out gradients that none of them
    watches. The accumulators that record now call `tangents` instead of transposing that.
    """
    for_tapes = for_tapes or backward
    if tf.executing_eagerly():
        return tapes.recorded_copies(name, results, inputs, for_tapes, tangents)
    graph = tf.compat.v1.get_default_graph()
    rule = traced_rule.trace(wording, name, results, backward)
    if not graph.building_function and any(isinstance(t, tf_internal.EagerTensor) for t in rule.captures):
        raise ValueError(
            f"{wording.subject_of(name)} closes over a Tensor or reads a variable of eager mode, which a "
            "graph of TensorFlow 1 or of a file cannot hold; expected numbers, NumPy arrays and tensors of the graph, "
            "got an EagerTensor. Pass its value, as by w.numpy()."
        )
    tf_internal.add_function(graph, rule.function)
    # Captured here, where the tapes see it: the live rule reads the same tensors.
    groups = [[(t, tf_internal.capture(graph, t)) for t in tensors] for tensors in (results, inputs, rule.captures)]
    results, inside_inputs, captures = ([inside for _, inside in group] for group in groups)
    with tf_internal.stop_recording():
        for i in rule.variables:
            captures[i] = variable_reads.read_for_rule(captures[i])
    op = _create_op(graph, name, [results, inside_inputs, captures], rule)
    outputs = list(op.outputs)
    captured = [(outside, inside) for group in groups for outside, inside in group if inside is not outside]
    live_rule = _LiveRule(backward, captured, traced_rule.current_order(), rule.exception)
    setattr(op, _LIVE_RULE, live_rule)

    def on_tapes(*dys: Any) -> list[Any]:
        # Forward mode stops tapes, which `grad_fn` may use; while the traced rule was made, they worked.
        if rule.error or tapes.new_tapes_record():
            return dataclasses.replace(live_rule, backward=for_tapes).gradients(op, dys)
        return _import(op, dys, rule.captures, inputs)

    # The record that tapes make of an op by themselves hashes its attributes; forward mode cannot hash a function name.
    tapes.record(op.type, outputs, inputs, on_tapes, tangents)
    return outputs


def _create_op(graph: tf.Graph, name: str, inputs: list[list[tf.Tensor]], rule: traced_rule.TracedRule) -> Any:
    value = tf.compat.v1.AttrValue
    types = [value.ListValue(type=[t.dtype.base_dtype.as_datatype_enum for t in tensors]) for tensors in inputs]
    positions = {
        "differentiated_results": rule.results,
        "differentiated_inputs": rule.inputs,
        "sliced_inputs": rule.sliced_inputs,
        "variable_captures": rule.variables,
    }
    attributes = {
        **{f"T{group}": value(list=t) for group, t in zip(("results", "inputs", "captures"), types, strict=True)},
        "rule": value(func=tf.compat.v1.NameAttrList(name=rule.function.name)),
        **{attribute: value(list=value.ListValue(i=which)) for attribute, which in positions.items()},
        "function_name": value(s=name.encode()),
        "error": value(s=rule.error.encode()),
    }
    return tf_internal.create_op(graph, "CustomGradientRule", [t for tensors in inputs for t in tensors], attributes)


def exception_of(op: Any) -> Exception | None:
    """The exception that the rule of a CustomGradientRule op raised while it was traced in this process."""
    return getattr(op, _LIVE_RULE).exception


def gradients(op: Any, dys: Sequence[Any]) -> list[Any]:
    """The gradients of a CustomGradientRule op with respect to all its inputs."""
    inputs = list(op.inputs)
    num_results, num_inputs = len(op.outputs), len(op.get_attr("Tinputs"))
    captures = inputs[num_results + num_inputs :]
    live_rule = getattr(op, _LIVE_RULE, None)
    # In a dead branch of a v1 conditional the inputs of the op are dead, but tensors that `grad_fn` captured are not.
    if live_rule is not None and tf_internal.is_in_v1_conditional(op) and not op.get_attr("error"):
        live_rule = None
    by_input = _import(op, dys, captures, inputs[num_results:]) if live_rule is None else live_rule.gradients(op, dys)
    return [None] * num_results + by_input + [None] * len(captures)


def vectorize(op: Any, values: list[Any], is_stacked: list[bool]) -> list[tf.Tensor]:
    """The op for a whole batch, whose rule maps the rule of the op.

    The results that have a derivative are stacked, one for each example; all other values may be.
    """
    num_results, num_inputs = len(op.outputs), len(op.get_attr("Tinputs"))
    results, inputs = values[:num_results], values[num_results : num_results + num_inputs]
    captures = list(zip(values, is_stacked, strict=True))[num_results + num_inputs :]

    def backward(dys: Sequence[Any]) -> Sequence[Any]:
        _check_positions(op)
        stacked_captures = [value for value, stacked in captures if stacked]

        def gradients_of_example(example: tuple[Any, Any]) -> list[Any]:
            example_dys, example_captures = example[0], iter(example[1])
            all_captures = [next(example_captures) if stacked else value for value, stacked in captures]
            gradients = _import(
                op, dict(zip(differentiated, example_dys, strict=True)), all_captures, op.inputs[num_results:]
            )
            return [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]

        differentiated = op.get_attr("differentiated_results")
        dense_dys = [slices.to_dense(dys[i]) for i in differentiated]
        gradients = iter(tf.vectorized_map(gradients_of_example, (dense_dys, stacked_captures)))
        by_input: list[Any] = [None] * num_inputs
        for position in op.get_attr("differentiated_inputs"):
            gradient = next(gradients)
            by_input[position] = gradient if is_stacked[num_results + position] else tf.reduce_sum(gradient, 0)
        return by_input

    wording = without_gradient_function("CustomGradientRule")  # An op does not tell which API made it.
    return attach(wording, tf.compat.as_str(op.get_attr("function_name")), results, inputs, backward)


def _import(
    op: Any, dys: Sequence[Any] | dict[int, Any], captures: list[tf.Tensor], inputs: Sequence[tf.Tensor]
) -> list[Any]:
    """Returns the gradients of the traced rule, one for each input, in the shapes of the inputs."""
    error = tf.compat.as_str(op.get_attr("error"))
    if error:
        raise getattr(getattr(op, _LIVE_RULE, None), "exception", None) or RuntimeError(error)
    _check_positions(op)
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
        _check_signature(op, captures)
        outputs = iter(inline.inline(op.graph, op.get_attr("rule").name, upstream + captures))
        sliced = op.get_attr("sliced_inputs")
        for position in positions:
            if position in sliced:
                values, indices, dense_shape = next(outputs), next(outputs), next(outputs)
                # The branches of a conditional must agree on the dtype, and TensorFlow uses 32 bits.
                result[position] = tf.IndexedSlices(values, indices, tf.cast(dense_shape, tf.int32))
            else:
                result[position] = next(outputs)
                if inputs[position].dtype != tf.resource:  # A handle is a scalar, its contents are not.
                    result[position].set_shape(inputs[position].shape)
    return result


def _check_positions(op: Any) -> None:
    """Raises ValueError for positions out of range: a loaded graph may be malformed."""
    counts = {"differentiated_results": len(op.outputs), "differentiated_inputs": len(op.get_attr("Tinputs"))}
    allowed = {name: set(range(count)) for name, count in counts.items()}
    allowed["sliced_inputs"] = set(op.get_attr("differentiated_inputs"))
    for name, allowed_positions in allowed.items():
        positions = op.get_attr(name)
        is_repeated = name != "differentiated_results" and len(set(positions)) < len(positions)
        if is_repeated or not allowed_positions.issuperset(positions):
            raise ValueError(
                f"CustomGradientRule: {name} names a position that is not there, or one twice; expected positions "
                f"among {sorted(allowed_positions)}, got {positions}. Load the graph as it was saved."
            )


def _check_signature(op: Any, captures: list[tf.Tensor]) -> None:
    """Raises ValueError if the graph does not hold the rule, or holds another function under its name."""
    name = op.get_attr("rule").name
    function = tf_internal.find_function(op.graph, name)
    if function is None:
        raise ValueError(
            f"CustomGradientRule: the graph does not hold the gradient rule; expected a function named '{name}' in "
            "it, got none. Import the functions of a graph with its nodes."
        )
    signature = tf_internal.function_def_of(function).signature
    parameters = [tf.as_dtype(argument.type) for argument in signature.input_arg]
    returned = [tf.as_dtype(argument.type) for argument in signature.output_arg]
    inputs = op.inputs[len(op.outputs) :]
    expected: list[tf.DType] = []
    for position in op.get_attr("differentiated_inputs"):
        dtype = inputs[position].dtype.base_dtype
        if dtype in (tf.resource, tf.variant) and len(expected) < len(returned):
            dtype = returned[len(expected)]  # Only the rule knows the dtype of the contents.
        expected.append(dtype)
        expected += [tf.int64] * 2 if position in op.get_attr("sliced_inputs") else []
    upstream = [op.outputs[i].dtype.base_dtype for i in op.get_attr("differentiated_results")]
    for i, parameter in enumerate(parameters[: len(upstream)]):
        upstream[i] = parameter if upstream[i] == tf.resource else upstream[i]
    arguments = upstream + [tensor.dtype.base_dtype for tensor in captures]
    if (parameters, returned) != (arguments, expected):
        expected_text, got_text = (
            f"({', '.join(t.name for t in before)}) -> ({', '.join(t.name for t in after)})"
            for before, after in ((arguments, expected), (parameters, returned))
        )
        raise ValueError(
            f"CustomGradientRule: the function '{name}' is no gradient rule of this op; expected {expected_text}, "
            f"got {got_text}. Load the graph as it was saved."
        )
