"""Drops from graphs and functions what nothing needs any more.

What TensorFlow would have run for something else than gradients stays: it is kept wherever that is not certain.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from tf_cg_ops._src.core import tf_internal

# Ops that are stateful only in that they must not be moved past a write. TensorFlow runs them in a function for the
# sake of what consumes their values.
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")


def node_of(reference: str) -> str:
    """The name of the node that an input refers to."""
    return reference.removeprefix("^").partition(":")[0]


def prune_function(function: Any) -> int:
    """Drops the nodes that neither a result nor an effect of a function needs; returns their number."""
    nodes = {node.name: node for node in function.node_def}
    roots = list(function.ret.values())
    roots += [name for name in function.control_ret.values() if name in nodes and nodes[name].op not in _READS]
    roots += [node.name for node in function.node_def if _has_effects(node)]
    live = _live(nodes, roots)
    dropped = len(nodes) - len(live)
    if not dropped:
        return 0
    kept = [node for node in function.node_def if node.name in live]
    for node in kept:
        node.input[:] = _without_dead_controls(node.input, nodes, live)
    _forget_colocation(kept, nodes.keys() - live)
    replace_all(function.node_def, kept)
    for output, name in list(function.control_ret.items()):
        if name in nodes and name not in live:
            del function.control_ret[output]
            function.signature.control_output.remove(output)
    return dropped


def _live(nodes: dict[str, Any], roots: Iterable[str]) -> set[str]:
    """The nodes that the roots need. A read that is only waited for is passed over, for what it waits for itself."""
    live: set[str] = set()
    passed: set[str] = set()
    pending = list(roots)
    while pending:
        reference = pending.pop()
        name = node_of(reference)
        if name not in nodes or name in live:
            continue
        if reference.startswith("^") and nodes[name].op in _READS:
            if name in passed:
                continue
            passed.add(name)
            pending += ["^" + node_of(given) for given in nodes[name].input]
        else:
            live.add(name)
            pending += nodes[name].input
    return live


def _without_dead_controls(inputs: Iterable[str], nodes: dict[str, Any], live: set[str]) -> list[str]:
    """The inputs, with what a dropped read waited for in its place, so that the order of effects stays."""
    data = [reference for reference in inputs if not reference.startswith("^")]
    controls: dict[str, None] = {}
    seen: set[str] = set()
    pending = [node_of(reference) for reference in inputs if reference.startswith("^")]
    while pending:
        name = pending.pop()
        if name in live or name not in nodes:  # Also arguments of the function.
            controls["^" + name] = None
        elif name not in seen:
            seen.add(name)
            # The function's own arguments are there from the start.
            pending += [node_of(given) for given in nodes[name].input if node_of(given) in nodes]
    return [*data, *controls]


def _has_effects(node: Any) -> bool:
    definition = tf_internal.op_def_registry.get(node.op)
    return node.op not in _READS and (definition is None or definition.is_stateful)


def prune_graph(graph_def: Any, freed: set[str], named: bytes) -> int:
    """Drops the nodes of a graph that only the `freed` ones' readers needed; returns their number.

    A node stays if it has effects, if another node reads it or waits for it, or if its name occurs in `named`, where
    signatures, collections and whatever else names nodes are.
    """
    nodes = {node.name: node for node in graph_def.node}
    readers: dict[str, set[str]] = {name: set() for name in nodes}
    for node in graph_def.node:
        for reference in node.input:
            readers[node_of(reference)].add(node.name)
    dropped: set[str] = set()
    pending = list(freed)
    while pending:
        name = pending.pop()
        if name in dropped or readers[name] - dropped or _stays(nodes[name], named):
            continue
        dropped.add(name)
        pending += [node_of(reference) for reference in nodes[name].input]
    if dropped:
        kept = [node for node in graph_def.node if node.name not in dropped]
        _forget_colocation(kept, dropped)
        replace_all(graph_def.node, kept)
    return len(dropped)


def _stays(node: Any, named: bytes) -> bool:
    return node.name.encode() in named or (_has_effects(node) and node.op != "VarHandleOp")


def _forget_colocation(nodes: Iterable[Any], dropped: Iterable[str]) -> None:
    """TensorFlow refuses to import a node whose place is that of a node that is not there."""
    gone = {b"loc:@" + name.encode() for name in dropped}
    for node in nodes:
        if "_class" in node.attr:
            places = node.attr["_class"].list
            places.s[:] = [place for place in places.s if place not in gone]
            if not places.s:
                del node.attr["_class"]


def replace_all(repeated: Any, messages: Iterable[Any]) -> None:
    """Makes a repeated field hold these messages, which may be its own."""
    copies = [type(message).FromString(message.SerializeToString()) for message in messages]
    del repeated[:]
    repeated.extend(copies)


def functions_named_by(nodes: Iterable[Any], library: Collection[str]) -> Iterator[str]:
    """The functions that nodes name: in an attribute, or as their op."""
    for node in nodes:
        if node.op in library:
            yield node.op
        yield from functions_named_in(node.attr, library)


def functions_named_in(attributes: Mapping[str, Any], library: Collection[str]) -> Iterator[str]:
    """The functions that attributes name: as a function, or in a string."""
    for attribute in attributes.values():
        for function in (attribute.func, *attribute.list.func):
            if function.name in library:
                yield function.name
            yield from functions_named_in(function.attr, library)
        for text in (attribute.s, *attribute.list.s):
            if text.decode(errors="replace") in library:
                yield text.decode()
