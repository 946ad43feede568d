"""Drops nodes of graphs and functions that are not needed any more.

Keeps every node that could be needed for something other than gradients.
"""

from collections.abc import Iterable
from typing import Any

from tf_cg_ops._src.core import tf_internal

from ._graphs import node_name, set_repeated

# Stateful only so that they do not move past a write. In a function, TensorFlow runs them only if they are read.
_READ_OPS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")


def prune_function(function: Any) -> int:
    """Drops the nodes that no result or side effect of a function needs, and returns how many."""
    nodes = {node.name: node for node in function.node_def}
    roots = list(function.ret.values())
    roots += [name for name in function.control_ret.values() if name in nodes and nodes[name].op not in _READ_OPS]
    roots += [node.name for node in function.node_def if _has_side_effects(node)]
    live = _find_live(nodes, roots)
    dropped = len(nodes) - len(live)
    if not dropped:
        return 0
    kept = [node for node in function.node_def if node.name in live]
    for node in kept:
        node.input[:] = _without_dead_controls(node.input, nodes, live)
    _forget_colocation(kept, nodes.keys() - live)
    set_repeated(function.node_def, kept)
    for output, name in list(function.control_ret.items()):
        if name in nodes and name not in live:
            del function.control_ret[output]
            function.signature.control_output.remove(output)
    return dropped


def _find_live(nodes: dict[str, Any], roots: Iterable[str]) -> set[str]:
    """The nodes that the roots need. If they only wait for a read, they wait for its inputs instead."""
    live: set[str] = set()
    skipped: set[str] = set()
    pending = list(roots)
    while pending:
        reference = pending.pop()
        name = node_name(reference)
        if name not in nodes or name in live:
            continue
        if reference.startswith("^") and nodes[name].op in _READ_OPS:
            if name in skipped:
                continue
            skipped.add(name)
            pending += ["^" + node_name(reference) for reference in nodes[name].input]
        else:
            live.add(name)
            pending += nodes[name].input
    return live


def _without_dead_controls(inputs: Iterable[str], nodes: dict[str, Any], live: set[str]) -> list[str]:
    """The inputs, with each dropped read replaced by the nodes that it waited for. Side effects keep their order."""
    data = [reference for reference in inputs if not reference.startswith("^")]
    controls: dict[str, None] = {}
    seen: set[str] = set()
    pending = [node_name(reference) for reference in inputs if reference.startswith("^")]
    while pending:
        name = pending.pop()
        if name in live or name not in nodes:  # What is not in nodes is an argument of the function.
            controls["^" + name] = None
        elif name not in seen:
            seen.add(name)
            # Arguments of the function are there from the start.
            pending += [node_name(reference) for reference in nodes[name].input if node_name(reference) in nodes]
    return [*data, *controls]


def _has_side_effects(node: Any) -> bool:
    definition = tf_internal.op_def_registry.get(node.op)
    return node.op not in _READ_OPS and (definition is None or definition.is_stateful)


def prune_graph(graph_def: Any, candidates: set[str], named_elsewhere: bytes) -> int:
    """Drops candidates that are not needed, and nodes that only these read. Returns how many.

    A node stays if it has side effects, if another node reads it or waits for it, or if its name occurs in
    `named_elsewhere`: the serialized signatures, collections and everything else that can name nodes.
    """
    nodes = {node.name: node for node in graph_def.node}
    readers: dict[str, set[str]] = {name: set() for name in nodes}
    for node in graph_def.node:
        for reference in node.input:
            readers[node_name(reference)].add(node.name)
    dropped: set[str] = set()
    pending = list(candidates)
    while pending:
        name = pending.pop()
        if name in dropped or readers[name] - dropped or _must_stay(nodes[name], named_elsewhere):
            continue
        dropped.add(name)
        pending += [node_name(reference) for reference in nodes[name].input]
    if dropped:
        kept = [node for node in graph_def.node if node.name not in dropped]
        _forget_colocation(kept, dropped)
        set_repeated(graph_def.node, kept)
    return len(dropped)


def _must_stay(node: Any, named_elsewhere: bytes) -> bool:
    return node.name.encode() in named_elsewhere or (_has_side_effects(node) and node.op != "VarHandleOp")


def _forget_colocation(nodes: Iterable[Any], dropped: Iterable[str]) -> None:
    """Removes colocations with dropped nodes, because TensorFlow would refuse to import them."""
    dropped_places = {b"loc:@" + name.encode() for name in dropped}
    for node in nodes:
        if "_class" in node.attr:
            places = node.attr["_class"].list
            places.s[:] = [place for place in places.s if place not in dropped_places]
            if not places.s:
                del node.attr["_class"]
