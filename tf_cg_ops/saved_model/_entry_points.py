"""The entry points of a loaded SavedModel: its signatures, and the functions of all its objects."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ._graphs import nodes_of

# The kinds of nodes in an object graph that are searched for functions, and the functions.
_SEARCHED_KINDS = ("user_object", "function", "bare_concrete_function")


@dataclass
class EntryPoint:
    """A signature, or one trace of a function. `function` is None if it cannot be reached."""

    name: str
    function: Any  # A ConcreteFunction.
    args: Any = ()
    kwargs: Any = None
    variables: Sequence[tf.Variable] = ()

    def is_random(self) -> bool:
        """Whether it, or a function that it calls, has a random operation without a seed, so that results differ."""
        graph_def = self.function.graph.as_graph_def() if self.function else tf.compat.v1.GraphDef()
        return any(
            {"seed", "seed2"} <= node.attr.keys() and not node.attr["seed"].i and not node.attr["seed2"].i
            for node in nodes_of(graph_def)
        )


def find_entry_points(loaded: Any, object_graph: Any) -> dict[str, EntryPoint]:
    """All entry points by name. A function's name is the shortest path of attributes that leads to it."""
    found = _signatures(loaded)
    # From the object graph, because `vars` and `dir` leave out __call__, and list much besides the model's functions.
    pending = deque([("", loaded, 0)] if object_graph.nodes else [])
    seen = {0}
    while pending:
        path, parent, number = pending.popleft()
        for child in sorted(object_graph.nodes[number].children, key=lambda child: child.local_name):
            # Resources are skipped: their functions run while a model is loaded.
            kind = object_graph.nodes[child.node_id].WhichOneof("kind")
            is_signatures = number == 0 and child.local_name == "signatures"
            if is_signatures or child.node_id in seen or kind not in _SEARCHED_KINDS:
                continue
            seen.add(child.node_id)
            name, value = f"{path}.{child.local_name}", _get_child(parent, child.local_name)
            if kind == "user_object":
                pending.append((name, value, child.node_id))
            else:
                found += _of_function(name, value)
    return {entry_point.name: entry_point for entry_point in found}


def _signatures(loaded: Any) -> list[EntryPoint]:
    # In a malformed file they can be anything.
    if not isinstance(loaded.signatures, Mapping):
        return [EntryPoint("signatures", None)]
    return [found for name, signature in loaded.signatures.items() for found in _of_function(name, signature)]


def _get_child(parent: Any, name: str) -> Any:
    try:
        if isinstance(parent, Mapping):
            return parent[name]
        if isinstance(parent, Sequence):
            return parent[int(name)]
    except (IndexError, KeyError, ValueError):
        pass  # Lists and dicts have further children, as attributes.
    return getattr(parent, name, None)


def _of_function(name: str, function: Any) -> list[EntryPoint]:
    if isinstance(function, tf.types.experimental.ConcreteFunction):
        return [_of_concrete_function(name, function)]
    if not isinstance(function, tf.types.experimental.PolymorphicFunction):
        return [EntryPoint(name, None)]
    names = [f"{name} ({i + 1})" if i else name for i in range(len(function.concrete_functions))]
    return [_of_concrete_function(n, f) for n, f in zip(names, function.concrete_functions, strict=True)]


def _of_concrete_function(name: str, function: Any) -> EntryPoint:
    # Calls the trace itself, because its function could choose another trace for the same inputs.
    args, kwargs = function.structured_input_signature
    return EntryPoint(name, function, args, kwargs, function.variables)
