"""Reads and changes the protos of graphs and functions."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from tf_cg_ops._src.core import tf_internal


def node_name(reference: str) -> str:
    """The name of the node that an input refers to."""
    return reference.removeprefix("^").partition(":")[0]


def set_repeated(repeated: Any, messages: Iterable[Any]) -> None:
    """Makes a repeated field hold these messages, which may be its own."""
    copies = [type(message).FromString(message.SerializeToString()) for message in messages]
    del repeated[:]
    repeated.extend(copies)


def functions_in_nodes(nodes: Iterable[Any], library: Collection[str]) -> Iterator[str]:
    """The functions of the library that nodes name: in an attribute, or as their op."""
    for node in nodes:
        if node.op in library:
            yield node.op
        yield from functions_in_attributes(node.attr, library)


def functions_in_attributes(attributes: Mapping[str, Any], library: Collection[str]) -> Iterator[str]:
    """The functions of the library that attributes name: as a function, or in a string."""
    for attribute in attributes.values():
        for function in (attribute.func, *attribute.list.func):
            if function.name in library:
                yield function.name
            yield from functions_in_attributes(function.attr, library)
        for text in (attribute.s, *attribute.list.s):
            if text.decode(errors="replace") in library:
                yield text.decode()


def update_op_list(meta_graph: Any) -> None:
    """Updates the list of the ops that a meta graph needs."""
    graph_def = meta_graph.graph_def
    used = {node.op for node in graph_def.node}
    used.update(node.op for function in graph_def.library.function for node in function.node_def)
    ops = meta_graph.meta_info_def.stripped_op_list.op
    listed = {op.name: op for op in ops if op.name in used}
    for name in used - listed.keys():
        definition = tf_internal.op_def_registry.get(name)
        if definition is not None:  # Functions of TensorFlow 1 are used as ops.
            listed[name] = definition
    set_repeated(ops, [listed[name] for name in sorted(listed)])
