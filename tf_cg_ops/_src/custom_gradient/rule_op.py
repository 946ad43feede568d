"""The op CustomGradientRule, which returns its first inputs, the results, and names the function for their gradient.

Its other inputs are the inputs of the user's function, and what the rule captures.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import text, tf_internal
from tf_cg_ops._src.custom_gradient import variable_reads
from tf_cg_ops._src.custom_gradient.traced_rule import TracedRule

# The attribute of a tf.Operation that holds the graph of its rule, which exists in the process that traced it.
_RULE_GRAPH = "_tf_cg_ops_rule_graph"
# The attribute of the node that names the function of this library that made it, if it is not `custom_gradient` itself.
_API = "_custom_gradient_api"


def create(
    graph: tf.Graph, name: str, groups: Sequence[Sequence[tf.Tensor]], rule: TracedRule, api: str = ""
) -> tuple[Any, list[tuple[tf.Tensor, tf.Tensor]]]:
    """Creates the op; also returns a pair of tensor and capture for each tensor from an outer graph."""
    tf_internal.add_function(graph, rule.function)
    # Captured here so that tapes see it: the live rule reads the same tensors.
    inputs = [[tf_internal.capture(graph, tensor) for tensor in tensors] for tensors in groups]
    pairs = zip(itertools.chain(*groups), itertools.chain(*inputs), strict=True)
    captured = [(outside, inside) for outside, inside in pairs if inside is not outside]
    with tf_internal.stop_recording():
        for i in rule.variables:
            inputs[2][i] = variable_reads.read_for_rule(inputs[2][i])
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
        **({_API: value(s=api.encode())} if api else {}),
    }
    op = tf_internal.create_op(graph, "CustomGradientRule", list(itertools.chain(*inputs)), attributes)
    set_rule_graph(op, rule.function.graph)
    return op, captured


def rule_graph(op: Any) -> Any:
    """The graph behind the rule of the op, or None in another process."""
    return getattr(op, _RULE_GRAPH, None)


def set_rule_graph(op: Any, graph: Any) -> None:
    """Keeps the graph behind the rule of the op."""
    setattr(op, _RULE_GRAPH, graph)


def parts_of_inputs(op: Any, values: Sequence[Any] = ()) -> tuple[list[Any], list[Any], list[Any]]:
    """Splits an op's inputs, or values for them, into results, inputs of the function, and what the rule captures."""
    tensors, num_results, num_inputs = list(values or op.inputs), len(op.outputs), len(op.get_attr("Tinputs"))
    return tensors[:num_results], tensors[num_results:][:num_inputs], tensors[num_results + num_inputs :]


def function_name(op: Any) -> str:
    """The name of the user's function."""
    return tf.compat.as_str(op.get_attr("function_name"))


def api(op: Any) -> str:
    """The function of this library that made the op."""
    return tf.compat.as_str(op.node_def.attr[_API].s) if _API in op.node_def.attr else "custom_gradient"


def error(op: Any) -> str:
    """Why the op has no rule; empty if it has one."""
    return tf.compat.as_str(op.get_attr("error"))


def check_positions(op: Any) -> None:
    """Raises ValueError for positions out of range, in a malformed graph."""
    counts = {"differentiated_results": len(op.outputs), "differentiated_inputs": len(op.get_attr("Tinputs"))}
    allowed = {name: set(range(count)) for name, count in counts.items()}
    allowed["sliced_inputs"] = set(op.get_attr("differentiated_inputs"))
    for name, allowed_positions in allowed.items():
        positions = op.get_attr(name)
        is_repeated = name != "differentiated_results" and len(set(positions)) < len(positions)
        if is_repeated or not allowed_positions.issuperset(positions):
            raise ValueError(
                f"CustomGradientRule: {name} must hold positions from {sorted(allowed_positions)}, each once, got "
                f"{positions}. Load the graph as it was saved."
            )


def check_signature(op: Any, captures: list[tf.Tensor]) -> None:
    """Raises ValueError if the graph does not hold the rule, or holds another function under its name.

    TensorFlow checks the dtypes when it imports the body.
    """
    name = op.get_attr("rule").name
    function = tf_internal.find_function(op.graph, name)
    if function is None:
        raise ValueError(
            f"CustomGradientRule: the graph lacks the function '{name}', the gradient rule of this op. Import the "
            "functions of a graph with its nodes."
        )
    signature = tf_internal.function_def_of(function).signature
    num_sliced = len(op.get_attr("sliced_inputs"))  # Each has values, indices and a shape.
    expected = (
        len(op.get_attr("differentiated_results")) + len(captures),
        len(op.get_attr("differentiated_inputs")) + 2 * num_sliced,
    )
    got = len(signature.input_arg), len(signature.output_arg)
    if got != expected:
        raise ValueError(
            f"CustomGradientRule: the gradient rule '{name}' must have {text.count(expected[0], 'argument')} and "
            f"{text.count(expected[1], 'result')}, got {got[0]} and {got[1]}. Load the graph as it was saved."
        )
