"""What of a loaded SavedModel can be called: its signatures, and the functions of all its objects."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

_PARENTS_AND_FUNCTIONS = ("user_object", "function", "bare_concrete_function")


@dataclass
class Call:
    """A signature, or one traced form of a function; `function` is None where it cannot be reached."""

    name: str
    function: Any  # A ConcreteFunction.
    args: Any = ()
    kwargs: Any = None
    variables: Sequence[tf.Variable] = ()

    def is_random(self) -> bool:
        """Whether an operation in it, or in what it calls, has no seed, and so draws other numbers each time."""
        graph_def = self.function.graph.as_graph_def() if self.function else tf.compat.v1.GraphDef()
        bodies = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
        return any(
            {"seed", "seed2"} <= node.attr.keys() and not node.attr["seed"].i and not node.attr["seed2"].i
            for body in bodies
            for node in body
        )


def find(loaded: Any, object_graph: Any) -> dict[str, Call]:
    """All calls by name: that of a function is the shortest path of attributes that leads to it."""
    calls = _signatures(loaded)
    # The names that Python gives, as those of `vars`, tell of no __call__ and of much that is nobody's function.
    pending = deque([("", loaded, 0)] if object_graph.nodes else [])
    seen = {0}
    while pending:
        path, owner, number = pending.popleft()
        for child in sorted(object_graph.nodes[number].children, key=lambda child: child.local_name):
            # Functions of resources, the third kind of parents, are those that run while a model is loaded.
            kind = object_graph.nodes[child.node_id].WhichOneof("kind")
            is_signatures = number == 0 and child.local_name == "signatures"
            if is_signatures or child.node_id in seen or kind not in _PARENTS_AND_FUNCTIONS:
                continue
            seen.add(child.node_id)
            name, value = f"{path}.{child.local_name}", _child(owner, child.local_name)
            if kind == "user_object":
                pending.append((name, value, child.node_id))
            else:
                calls += _of_function(name, value)
    return {call.name: call for call in calls}


def _signatures(loaded: Any) -> list[Call]:
    # In a file that somebody changed, they may be anything.
    if not isinstance(loaded.signatures, Mapping):
        return [Call("signatures", None)]
    return [call for name, signature in loaded.signatures.items() for call in _of_function(name, signature)]


def _child(owner: Any, name: str) -> Any:
    try:
        if isinstance(owner, Mapping):
            return owner[name]
        if isinstance(owner, Sequence):
            return owner[int(name)]
    except (IndexError, KeyError, ValueError):
        pass  # Lists and dicts have further children, as attributes.
    return getattr(owner, name, None)


def _of_function(name: str, function: Any) -> list[Call]:
    if isinstance(function, tf.types.experimental.ConcreteFunction):
        return [_of_traced(name, function)]
    if not isinstance(function, tf.types.experimental.PolymorphicFunction):
        return [Call(name, None)]
    names = [f"{name} ({i + 1})" if i else name for i in range(len(function.concrete_functions))]
    return [_of_traced(n, t) for n, t in zip(names, function.concrete_functions, strict=True)]


def _of_traced(name: str, traced: Any) -> Call:
    # It is called itself: the function that it is a form of may take another form for the same inputs.
    args, kwargs = traced.structured_input_signature
    return Call(name, traced, args, kwargs, traced.variables)
