"""Replaces and prunes in one meta graph of a SavedModel."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import _pruning, _replace_ops
from ._graph_def import functions_in_attributes, functions_in_nodes, set_repeated, update_op_list

_HOST_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


@dataclass
class Changes:
    """Counts the changes to a SavedModel."""

    replaced: Counter[str] = field(default_factory=Counter)
    nodes_dropped: int = 0
    functions_dropped: int = 0


def strip_meta_graph(meta_graph: Any, changes: Changes, progress: Callable[[str], None]) -> None:
    """Replaces the ops of this library in the meta graph and drops the nodes and functions that only they use."""
    graph_def = meta_graph.graph_def
    if not _replace_ops.has_library_ops(graph_def):
        return
    library = {function.signature.name: function for function in graph_def.library.function}
    progress(f"rewriting {len(library)} functions")
    replacer = _replace_ops.OpReplacer(library.keys())
    unread = replacer.replace_in_graph(graph_def)
    changes.nodes_dropped += _pruning.prune_graph(graph_def, unread, _serialize_without_graph(meta_graph))

    needed: set[str] = set()
    pending = _functions_named_outside(meta_graph, library)
    gradients = {gradient.function_name: gradient.gradient_func for gradient in graph_def.library.gradient}
    while pending:
        name = pending.pop()
        if name in needed or name not in library:
            continue
        needed.add(name)
        function = library[name]
        if replacer.replace_in_function(function):
            changes.nodes_dropped += _pruning.prune_function(function)
        pending += functions_in_nodes(function.node_def, library)
        pending += functions_in_attributes(function.attr, library)
        pending += [gradients[name]] if name in gradients else []
    changes.functions_dropped += len(library) - len(needed)
    changes.replaced += replacer.replaced

    kept = [function for name, function in library.items() if name in needed]
    set_repeated(graph_def.library.function, [*kept, *replacer.functions.values()])
    kept_gradients = [g for g in graph_def.library.gradient if g.function_name in needed]
    set_repeated(graph_def.library.gradient, kept_gradients)
    update_op_list(meta_graph)


def host_functions(meta_graph: Any) -> list[str]:
    """The nodes that call Python functions of the process that made the model."""
    graph_def = meta_graph.graph_def
    bodies = [("the graph", graph_def.node)]
    bodies += [(function.signature.name, function.node_def) for function in graph_def.library.function]
    return [f"{node.name} in {where}" for where, body in bodies for node in body if node.op in _HOST_OPS]


def _serialize_without_graph(meta_graph: Any) -> bytes:
    """All that may name a node of the graph from outside: signatures, collections, savers, objects."""
    without_graph = type(meta_graph)()
    without_graph.CopyFrom(meta_graph)
    without_graph.ClearField("graph_def")
    return without_graph.SerializeToString()


def _functions_named_outside(meta_graph: Any, library: dict[str, Any]) -> list[str]:
    """The functions that something other than a function names."""
    return [
        *functions_in_nodes(meta_graph.graph_def.node, library),
        *meta_graph.object_graph_def.concrete_functions,
        *meta_graph.meta_info_def.function_aliases,
        *(gradient.gradient_func for gradient in meta_graph.graph_def.library.registered_gradients),
    ]
