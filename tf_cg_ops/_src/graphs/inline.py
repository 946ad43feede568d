"""Imports the body of a function into a graph and inlines the functions that it calls.

An imported call op would not have a gradient, because TensorFlow keeps gradients of calls in Python, with the original
graph.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import calls, tapes, tf_internal


def inline(
    source: Any,
    name: str,
    arguments: list[tf.Tensor],
    original: Any = None,
    carry: Callable[[list[tuple[Any, Any]]], None] | None = None,
) -> list[tf.Tensor]:
    """Imports the body of a function, which `source` or a graph around it holds, into the default graph.

    `carry` gets pairs of a tensor of `original`, the graph behind the function, and its copy. Returns the results.
    """
    target = tf.compat.v1.get_default_graph()
    definition = _definition(source, name)
    add_called_functions(source, target, definition)
    # An import does not capture tensors of outer graphs; an identity does.
    arguments = [tf.identity(argument) for argument in arguments]
    nodes, parameters, returned = _flatten(definition, functools.partial(_definition, source))
    graph_def = tf.compat.v1.GraphDef(node=nodes)
    graph_def.versions.CopyFrom(target.graph_def_versions)
    # import_graph_def only maps references that a node reads. Control inputs ("^x") are references, too.
    read = {reference.removesuffix(":0") for node in nodes for reference in node.input}
    read.update(reference.removesuffix(":0") for reference in returned)
    input_map = {}
    for parameter, argument in zip(parameters, arguments, strict=True):
        keys = (f"{parameter}:0", f"^{parameter}")
        input_map.update({key: argument for key in keys if key.removesuffix(":0") in read})
    num_operations = len(target.get_operations())
    with tf.name_scope("custom_gradient_rule") as scope:
        outputs = tf.graph_util.import_graph_def(graph_def, input_map=input_map, return_elements=returned, name=scope)
    imported = target.get_operations()[num_operations:]
    for op in imported:
        tf_internal.cache_control_flow_graphs(op)
    if carry and original is not None:  # An accumulator differentiates each op as soon as it is recorded.
        carry(list(_copies(original, scope, {op.name: op for op in imported}, arguments).values()))
    for op in imported:
        if tf_internal.is_ordered(op):  # After the side effects of the rules that the arguments come from.
            tf_internal.wait_for(op, [argument.op for argument in arguments])
        record(op)
    return outputs


def _copies(
    graph: Any, scope: str, copy_by_name: dict[str, tf.Operation], arguments: Sequence[Any]
) -> dict[int, tuple[tf.Tensor, tf.Tensor]]:
    """Each tensor of a graph, and of the functions that it calls, with its copy, by the id of the tensor."""
    copies = {id(t): (t, copy) for t, copy in zip(graph.inputs, arguments, strict=True) if copy is not None}
    for op in graph.get_operations():
        copied = list(getattr(copy_by_name.get(scope + op.name), "outputs", ()))
        is_call = op.type in calls.CALLS
        callee = is_call and tf_internal.graph_of_function(tf_internal.find_function(graph, op.get_attr("f").name))
        if callee:
            given = [copies.get(id(tensor), (tensor, None))[1] for tensor in op.inputs]
            inside = _copies(callee, f"{scope}{op.name}/", copy_by_name, given)
            copied = [inside[id(tensor)][1] for tensor in callee.outputs if id(tensor) in inside]
            copies |= inside
        if len(copied) == len(op.outputs):
            copies |= {id(tensor): (tensor, copy) for tensor, copy in zip(op.outputs, copied, strict=True)}
    return copies


def record(op: tf.Operation) -> None:
    """Records an imported or copied op on the tapes. TensorFlow only records ops that its Python functions create."""
    gradient_function = tf_internal.find_gradient_function(op)
    is_python = op.type in ("PyFunc", "PyFuncStateless")  # Their registered gradient only prevents saving.
    if gradient_function is None or not op.outputs or is_python:
        return

    def backward(*dys: Any) -> Any:
        gradients = gradient_function(op, *dys)
        return list(gradients) if isinstance(gradients, (list, tuple)) else [gradients]

    tapes.record(op.type, list(op.outputs), list(op.inputs), backward)


def _definition(graph: Any, name: str) -> Any:
    return tf_internal.function_def_of(tf_internal.find_function(graph, name))


def add_called_functions(source: Any, target: Any, definition: Any) -> None:
    """Adds all functions that the body calls, directly or indirectly, to the target."""
    for name in calls.reachable(definition, functools.partial(_definition, source)):
        # The target may hold a function without those that it calls.
        if not tf_internal.holds_function(target, name):
            tf_internal.add_function(target, tf_internal.find_function(source, name))


def _flatten(definition: Any, find: Callable[[str], Any]) -> tuple[list[Any], list[str], list[str]]:
    """The nodes of a body with its calls inlined, the names of its parameters, and the references that it returns."""
    graph_def, flat_names = tf_internal.function_def_to_graph_def(definition)
    parameters = [argument.name for argument in definition.signature.input_arg]
    returned = [flat_names[definition.ret[output.name]] for output in definition.signature.output_arg]
    nodes: list[Any] = []
    replaced: dict[str, str] = {}
    # The body starts with one placeholder for each parameter, which is not imported.
    for node in graph_def.node[len(parameters) :]:
        if node.op in calls.CALLS:
            body, outputs = _flatten_call(node, find(node.attr["f"].func.name), find)
            nodes.extend(body)
            replaced.update({f"{node.name}:{i}": output for i, output in enumerate(outputs)})
        else:
            node.attr.pop("_class", None)  # Colocation with a node that was inlined would fail.
            nodes.append(node)

    def resolve(reference: str) -> str:
        full = reference if ":" in reference or reference.startswith("^") else f"{reference}:0"
        while full in replaced:  # A call can return what another call returned.
            full = replaced[full]
        return full

    for node in nodes:
        node.input[:] = [resolve(reference) for reference in node.input]
    return nodes, parameters, [resolve(reference) for reference in returned]


def _flatten_call(call: Any, callee: Any, find: Callable[[str], Any]) -> tuple[list[Any], list[str]]:
    """The nodes of a called body, with the name of the call as their scope, and the references of its outputs."""
    nodes, parameters, returned = _flatten(callee, find)
    arguments = dict(zip(parameters, (i for i in call.input if not i.startswith("^")), strict=False))
    control_inputs = [i for i in call.input if i.startswith("^")]

    def rename(reference: str) -> str:
        is_control, name = reference.startswith("^"), reference.removeprefix("^")
        node, _, _ = name.partition(":")
        if node not in arguments:
            return f"^{call.name}/{name}" if is_control else f"{call.name}/{name}"
        return "^" + arguments[node].partition(":")[0] if is_control else arguments[node]

    for node in nodes:
        node.input[:] = [*map(rename, node.input), *control_inputs]
        node.name = f"{call.name}/{node.name}"
    outputs = [rename(reference) for reference in returned]
    # The NoOp has the name of the call, so that control inputs from the call wait for its outputs and side effects.
    done = tf.compat.v1.NodeDef(name=call.name, op="NoOp")
    waits = {"^" + output.partition(":")[0] for output in outputs}
    waits.update(f"^{call.name}/{name}" for name in callee.control_ret.values())
    done.input.extend(sorted(waits))
    return [*nodes, done], outputs
