"""Finds malformed graphs that would end the process, before TensorFlow builds them."""

import functools
import graphlib
from collections.abc import Iterator, Mapping
from typing import Any

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.core.calls import CALLS


def check_graph(graph_def: Any) -> None:
    """Raises ValueError if TensorFlow would end the process, or ask for memory without bound.

    TensorFlow follows calls to infer shapes, and overflows its stack if a function calls itself. It lists the types of
    the inputs, as many as an attribute says, before it compares that number with the inputs.
    """
    library = {function.signature.name: function for function in graph_def.library.function}
    for body in [graph_def.node, *(function.node_def for function in library.values())]:
        for node in body:
            _check_list_lengths(node)
    callees = {name: set(_callees(function, library)) for name, function in library.items()}
    try:
        graphlib.TopologicalSorter(callees).prepare()
    except graphlib.CycleError as error:
        raise ValueError(f"function '{error.args[1][0]}' calls itself") from error


def _check_list_lengths(node: Any) -> None:
    for attribute in _length_attributes(node.op):
        length = node.attr[attribute].i if attribute in node.attr else 0
        if length > len(node.input):
            raise ValueError(
                f"operation '{node.name}' ({node.op}) with {len(node.input)} inputs and an attribute '{attribute}' of "
                f"{length}"
            )


@functools.cache
def _length_attributes(op: str) -> tuple[str, ...]:
    """The attributes of an op that hold the length of an input list."""
    definition = tf_internal.op_def_registry.get(op)
    return tuple(arg.number_attr for arg in definition.input_arg if arg.number_attr) if definition else ()


def _callees(function: Any, library: Mapping[str, Any]) -> Iterator[str]:
    for node in function.node_def:
        if node.op in library:
            yield node.op
        elif node.op in CALLS and "f" in node.attr:
            yield node.attr["f"].func.name
