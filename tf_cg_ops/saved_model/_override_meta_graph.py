"""Puts rules behind the ops of one meta graph of a SavedModel that a table chooses."""

import functools
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.rewrite import control_flow
from tf_cg_ops._src.rewrite.overridden_op import attach_traced_rule
from tf_cg_ops._src.rewrite.rule_table import Matching

from . import _graph_errors, _malformed
from ._graph_def import functions_in_attributes, update_op_list
from ._imported import Body, import_bodies
from ._rewrite_body import BodyRewriter


def override_meta_graph(
    api: str, source: pathlib.Path, meta_graph: Any, matching: Matching, progress: Callable[[str], None]
) -> None:
    """Attaches rules to the ops of the graph, and of the functions that compute values.

    A function that only a gradient calls, such as the rule of an op of this library, stays as it is.
    """
    graph_def = meta_graph.graph_def
    with _graph_errors.raised_as_value_error(api, source):
        _malformed.check_graph(graph_def)
        reached = _functions_of_values(meta_graph)
        bodies = list(import_bodies(graph_def, lambda name, _: not name or name in reached))
    functions = {function.signature.name: function for function in graph_def.library.function}
    for i, body in enumerate(bodies):
        progress(f"overriding gradients: {body.function or 'the graph'} ({i + 1} of {len(bodies)})")
        rewriter = BodyRewriter(body, functools.partial(_attach_rule, api, body, matching))
        rewriter.rewrite(functions[body.function] if body.function else None)
        graph_def.library.function.extend(rewriter.new_functions(functions))
    update_op_list(meta_graph)


def _functions_of_values(meta_graph: Any) -> set[str]:
    """The functions that signatures and objects name, and those that these call."""
    library = {function.signature.name: function for function in meta_graph.graph_def.library.function}
    reached: set[str] = set()
    waiting = [*meta_graph.object_graph_def.concrete_functions, *_called(meta_graph.graph_def.node, library)]
    while waiting:
        name = waiting.pop()
        if name in library and name not in reached:
            reached.add(name)
            waiting.extend(_called(library[name].node_def, library))
    return reached


def _called(nodes: Iterable[Any], library: dict[str, Any]) -> list[str]:
    """The functions that calls, loops and conditionals among the nodes run."""
    calls = [node for node in nodes if node.op in control_flow.TYPES]
    by_name = [node.op for node in nodes if node.op in library]  # Functions of TensorFlow 1 are used as ops.
    return [*by_name, *(name for node in calls for name in functions_in_attributes(node.attr, library))]


def _attach_rule(api: str, body: Body, matching: Matching, op: Any) -> list[tf.Tensor] | None:
    rule = matching.rule_for(op)
    if rule is None:
        return None
    place = f" in the function '{body.function}'" if body.function else ""
    return attach_traced_rule(api, rule, op, op.inputs, op.outputs, place)
