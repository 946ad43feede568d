"""Drops nodes that only gradients read."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from tf_cg_ops._src.core import tf_internal

from ._graphs import node_name, reachable, set_repeated

# Stateful only so that they stay in order with writes.
_READ_OPS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarHandleOp")


def prune_graph(graph_def: Any, candidates: Iterable[str], named_elsewhere: bytes) -> int:
    """Drops candidates, and nodes that only these read. Returns how many.

    A node stays if it has side effects, if another node needs it, or if its name occurs in
    `named_elsewhere`: the serialized signatures, collections and everything else that can name nodes.
    """
    return len(_prune(graph_def.node, candidates, lambda node: node.name.encode() in named_elsewhere))


def prune_function(function: Any, candidates: Iterable[str]) -> int:
    """The same for a function, where the nodes stay that it returns."""
    returned = {node_name(reference) for reference in function.ret.values()}
    dropped = _prune(function.node_def, candidates, lambda node: node.name in returned)
    for output, name in list(function.control_ret.items()):
        if name in dropped:
            del function.control_ret[output]
            function.signature.control_output.remove(output)
    return len(dropped)


def _prune(repeated: Any, candidates: Iterable[str], stays: Callable[[Any], bool]) -> set[str]:
    nodes = {node.name: node for node in repeated}
    readers = defaultdict(set)
    for node in repeated:
        for reference in node.input:
            # The results of a function wait for each read, so waiting for a read does not keep it.
            if not (reference.startswith("^") and _is_read(nodes.get(node_name(reference)))):
                readers[node_name(reference)].add(node.name)
    dropped: set[str] = set()
    pending = list(candidates)
    while pending:
        name = pending.pop()
        if name not in nodes or name in dropped or readers[name] - dropped:  # An argument is not a node.
            continue
        if not stays(nodes[name]) and not _has_side_effects(nodes[name]):
            dropped.add(name)
            pending += _inputs(nodes[name])
    if dropped:
        kept = [node for node in repeated if node.name not in dropped]
        for node in kept:
            _wait_for_more(node, nodes, dropped)
        _forget_colocation(kept, dropped)
        set_repeated(repeated, kept)
    return dropped


def _wait_for_more(node: Any, nodes: dict[str, Any], dropped: set[str]) -> None:
    """Lets a node that waits for a dropped read wait for what the read waited for, so that writes keep their order."""
    controls = [node_name(reference) for reference in node.input if reference.startswith("^")]
    if not dropped.isdisjoint(controls):
        data = [reference for reference in node.input if not reference.startswith("^")]
        before = reachable(controls, lambda name: _inputs(nodes[name]) if name in dropped else [])
        left = [f"^{name}" for name in before if name in controls or name in nodes if name not in dropped]
        node.input[:] = [*data, *left]


def _inputs(node: Any) -> list[str]:
    return [node_name(reference) for reference in node.input]


def _is_read(node: Any) -> bool:
    return node is not None and node.op in _READ_OPS


def _has_side_effects(node: Any) -> bool:
    definition = tf_internal.op_def_registry.get(node.op)
    return not _is_read(node) and (definition is None or definition.is_stateful)


def _forget_colocation(nodes: Iterable[Any], dropped: Iterable[str]) -> None:
    """Removes colocations with dropped nodes, because TensorFlow would refuse to import them."""
    dropped_places = {b"loc:@" + name.encode() for name in dropped}
    for node in nodes:
        if "_class" in node.attr:
            places = node.attr["_class"].list
            places.s[:] = [place for place in places.s if place not in dropped_places]
            if not places.s:
                del node.attr["_class"]
