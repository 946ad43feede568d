"""The bodies of a meta graph as graphs: that of the graph itself, and those of its functions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal


@dataclass(frozen=True)
class Body:
    """The nodes of the graph or of a function.

    Attributes:
      function: The name of the function; empty for the graph itself.
      nodes: The nodes in the proto of the graph or function.
      graph: A graph with an op for each node and with the shapes that TensorFlow infers. It holds all functions.
      references: For each output of a node, as the graph calls it, the reference to it in the proto of the function.
    """

    function: str
    nodes: Any
    graph: tf.Graph
    references: dict[str, str]


def import_bodies(graph_def: Any, wanted: Callable[[str, Any], bool]) -> Iterator[Body]:
    """The bodies that are wanted, which depends on the name of the function and its nodes."""
    library = {function.signature.name: function for function in graph_def.library.function}
    only_functions = tf.compat.v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    bodies: list[tuple[str, Any, Any, dict[str, str]]] = []
    if wanted("", graph_def.node):
        bodies.append(("", graph_def.node, graph_def, {}))
    with _import(only_functions).as_default():  # Shapes of calls are inferred from the called functions.
        for name, function in library.items():
            if wanted(name, function.node_def):
                body, flat_names = tf_internal.function_def_to_graph_def(function)
                references = {flat: reference for reference, flat in flat_names.items()}
                bodies.append((name, function.node_def, body, references))
    for name, nodes, body, references in bodies:
        only_functions.node.extend(body.node)
        graph = _import(only_functions)
        del only_functions.node[:]
        yield Body(name, nodes, graph, references)


def _import(graph_def: Any) -> tf.Graph:
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
    return graph
