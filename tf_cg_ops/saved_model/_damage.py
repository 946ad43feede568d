"""Damage that TensorFlow does not survive, found before it builds a graph."""

import functools
import graphlib
from collections.abc import Iterator, Mapping
from typing import Any

from tf_cg_ops._src.core import tf_internal

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def check(graph_def: Any) -> None:
    """Raises ValueError where TensorFlow would end the process, or ask for memory without bound.

    It follows calls to infer shapes, and so overflows its stack where a function calls itself; and it writes down the
    type of each of a list's inputs, as many as an attribute says, before it compares that with the inputs.
    """
    library = {function.signature.name: function for function in graph_def.library.function}
    for body in [graph_def.node, *(function.node_def for function in library.values())]:
        for node in body:
            _check_lists(node)
    called = {name: set(_called_by(function, library)) for name, function in library.items()}
    try:
        graphlib.TopologicalSorter(called).prepare()
    except graphlib.CycleError as error:
        raise ValueError(f"function '{error.args[1][0]}' calls itself") from error


def _check_lists(node: Any) -> None:
    for attribute in _sizes_of_lists(node.op):
        size = node.attr[attribute].i if attribute in node.attr else 0
        if size > len(node.input):
            inputs = f"{len(node.input)} inputs and an attribute '{attribute}' of {size}"
            raise ValueError(f"operation '{node.name}' ({node.op}) with {inputs}")


@functools.cache
def _sizes_of_lists(op: str) -> tuple[str, ...]:
    """The attributes that say how many inputs a list has."""
    definition = tf_internal.op_def_registry.get(op)
    return tuple(arg.number_attr for arg in definition.input_arg if arg.number_attr) if definition else ()


def _called_by(function: Any, library: Mapping[str, Any]) -> Iterator[str]:
    for node in function.node_def:
        if node.op in library:
            yield node.op
        elif node.op in _CALLS and "f" in node.attr:
            yield node.attr["f"].func.name
