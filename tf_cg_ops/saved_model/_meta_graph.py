"""Strips one meta graph of a SavedModel."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tf_cg_ops._src.core import tf_internal

from . import _prune, _rewrite

_HOST_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


@dataclass
class Changes:
    """What was done to a SavedModel."""

    replaced: Counter[str] = field(default_factory=Counter)
    nodes_dropped: int = 0
    functions_dropped: int = 0


def strip(meta_graph: Any, changes: Changes, progress: Callable[[str], None]) -> None:
    """Replaces the ops of this library in a meta graph, in place, and drops what only they needed."""
    graph_def = meta_graph.graph_def
    if not _rewrite.holds_our_ops(graph_def):
        return
    library = {function.signature.name: function for function in graph_def.library.function}
    progress(f"rewriting {len(library)} functions")
    rewriter = _rewrite.Rewriter(library.keys())
    freed = rewriter.graph(graph_def)
    changes.nodes_dropped += _prune.prune_graph(graph_def, freed, _all_but_the_graph(meta_graph))

    needed: set[str] = set()
    pending = list(_roots(meta_graph, library))
    gradients = {gradient.function_name: gradient.gradient_func for gradient in graph_def.library.gradient}
    while pending:
        name = pending.pop()
        if name in needed or name not in library:
            continue
        needed.add(name)
        function = library[name]
        if rewriter.function(function):
            changes.nodes_dropped += _prune.prune_function(function)
        pending += _prune.functions_named_by(function.node_def, library)
        pending += _prune.functions_named_in(function.attr, library)
        pending += [gradients[name]] if name in gradients else []
    changes.functions_dropped += len(library) - len(needed)
    changes.replaced += rewriter.replaced

    kept = [function for name, function in library.items() if name in needed]
    _prune.replace_all(graph_def.library.function, [*kept, *rewriter.functions.values()])
    kept_gradients = [g for g in graph_def.library.gradient if g.function_name in needed]
    _prune.replace_all(graph_def.library.gradient, kept_gradients)
    _list_ops(meta_graph)


def host_functions(meta_graph: Any) -> list[str]:
    """The nodes that call back into the Python process in which the model was made."""
    graph_def = meta_graph.graph_def
    bodies = [("the graph", graph_def.node)]
    bodies += [(function.signature.name, function.node_def) for function in graph_def.library.function]
    return [f"{node.name} in {where}" for where, body in bodies for node in body if node.op in _HOST_OPS]


def _all_but_the_graph(meta_graph: Any) -> bytes:
    """Everything that may name a node of the graph: signatures, collections, savers, objects."""
    others = type(meta_graph)()
    others.CopyFrom(meta_graph)
    others.ClearField("graph_def")
    return others.SerializeToString()


def _roots(meta_graph: Any, library: dict[str, Any]) -> list[str]:
    """The functions that something else than a function names."""
    return [
        *_prune.functions_named_by(meta_graph.graph_def.node, library),
        *meta_graph.object_graph_def.concrete_functions,
        *meta_graph.meta_info_def.function_aliases,
        *(gradient.gradient_func for gradient in meta_graph.graph_def.library.registered_gradients),
    ]


def _list_ops(meta_graph: Any) -> None:
    """Makes the list of the ops that a meta graph needs say what it needs now."""
    graph_def = meta_graph.graph_def
    used = {node.op for node in graph_def.node}
    used.update(node.op for function in graph_def.library.function for node in function.node_def)
    ops = meta_graph.meta_info_def.stripped_op_list.op
    listed = {op.name: op for op in ops if op.name in used}
    for name in used - listed.keys():
        definition = tf_internal.op_def_registry.get(name)
        if definition is not None:  # A function of TensorFlow 1 that is used as an op is none.
            listed[name] = definition
    _prune.replace_all(ops, [listed[name] for name in sorted(listed)])
