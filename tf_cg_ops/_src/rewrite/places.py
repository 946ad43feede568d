"""The places inside a traced function that a user names: ops, Keras layers, scopes of names, or a predicate on ops."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tf_cg_ops._src.core import text, tf_internal
from tf_cg_ops._src.graphs import control_flow
from tf_cg_ops._src.rewrite.op_rules import selects
from tf_cg_ops._src.rewrite.own_gradients import with_inner_ops

# A name, or a predicate on a tf.Operation.
Place: TypeAlias = str | Callable[[tf.Operation], bool]

# The attribute of an Identity that holds the name of a Keras layer and the number of its output.
_LAYER = "_tf_cg_ops_layer"
_NOT_PLACES = frozenset(["NoOp", "Placeholder", "Const"])


def check_places(api: str, places: Any) -> dict[str, Place]:
    """The places by the names of their values; of a list of names, each is its own."""
    if isinstance(places, (list, tuple)) and all(isinstance(place, str) for place in places):
        places = {place: place for place in places}
    if not isinstance(places, Mapping) or not all(isinstance(key, str) for key in places):
        raise TypeError(
            f"{api}: places must be a dict such as {{'features': 'name_of_a_layer'}}, or a list of names, got "
            f"{text.describe(places)}."
        )
    if not places:
        raise ValueError(f"{api}: places must have at least one place, got {places!r}.")
    for key, place in places.items():
        if not isinstance(place, str) and not callable(place):
            raise TypeError(
                f"{api}: the place {key!r} must be the name of an op, a layer or a scope, or a function of a "
                f"tf.Operation that returns a bool, got {text.describe(place)}."
            )
    return dict(places)


def mark(layer: str, value: Any) -> Any:
    """The value of a call of a Keras layer, marked in the graph as the place with the layer's name."""

    def marked(number: int, leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor):
            return leaf
        new = tf.identity(leaf)
        tf_internal.set_attribute(new.op, _LAYER, tf.compat.v1.AttrValue(s=f"{layer}:{number}".encode()))
        return new

    return tf.nest.pack_sequence_as(value, [marked(i, leaf) for i, leaf in enumerate(tf.nest.flatten(value))])


class PlaceSearch:
    """Finds places among the ops of a graph without calls."""

    def __init__(self, api: str, function: str, graph: Any, layers: Sequence[str] = ()) -> None:
        self._api, self._function, self._layers = api, function, layers
        self._ops = [op for op in graph.get_operations() if op.outputs and op.type not in _NOT_PLACES]
        self._nested = [
            (op, inner)
            for op in self._ops
            for inner in with_inner_ops(op, control_flow.functions_of)
            if inner is not op
        ]

    def find(self, key: str, place: Place) -> list[Any] | Any:
        """The tensor of a name, or a list of tensors for a predicate: the first output of each op."""
        if isinstance(place, str):
            return self._named(place)
        what = f"the place {key!r}"
        chosen = [op for op in self._ops if selects(self._api, what, place, op)]
        for around, op in self._nested:
            if selects(self._api, what, place, op):
                raise self._inside_of(around, op)
        if not chosen:
            types = sorted({op.type for op in self._ops})
            raise ValueError(
                f"{self._api}: the place {key!r} must select an op of '{self._function}', got none. Its op types are "
                f"{', '.join(types)}."
            )
        return [op.outputs[0] for op in chosen]

    def _named(self, place: str) -> Any:
        name, index = re.fullmatch(r"(.*?)(?::(\d+))?", place, re.DOTALL).groups()  # type: ignore[union-attr]
        of_layer = {_layer_of(op): op for op in self._ops if _layer_of(op).rpartition(":")[0] == name}
        calls = [op for op in self._ops if _layer_of(op) == f"{name}:0"]
        if name in self._layers and not calls:
            raise self._error(place, f"the layer {name!r}, which is not called", "Name a layer that computes.")
        if len(calls) > 1:
            advice = f"Pass a predicate instead, for example lambda op: op.name == {calls[0].name!r}."
            raise self._error(place, f"the layer {name!r}, which is called {len(calls)} times", advice)
        tensors = [op.outputs[0] for op in of_layer.values()]
        if not tensors:
            named = [op for op in self._ops if op.name == name] or [
                op for op in self._ops if op.name.endswith(f"/{name}")
            ]
            if len(named) > 1:
                found = text.quoted(sorted(op.name for op in named))
                raise self._error(place, f"{len(named)} ops, {found}", "Write one of these.")
            tensors = [tensor for op in named for tensor in op.outputs]
        if not tensors:
            tensors = self._of_scope(place, name)
        if index is None and len(tensors) > 1:
            raise self._error(place, f"{len(tensors)} values", f"Write '{name}:0' for the first one.")
        if int(index or 0) >= len(tensors):
            raise self._error(place, f"number {index} of {text.count(len(tensors), 'value')}", "They begin with 0.")
        return tensors[int(index or 0)]

    def _of_scope(self, place: str, name: str) -> list[Any]:
        """What leaves the scope with this name: the outputs of its last op that an op outside, or nothing, reads."""
        scopes: dict[str, list[Any]] = {}
        for op in self._ops:
            position = f"/{op.name}".find(f"/{name}/")
            if position >= 0:
                scopes.setdefault(op.name[: position + len(name)], []).append(op)
        if not scopes:
            for around, op in self._nested:
                if f"/{name}/" in f"/{op.name}/":
                    raise self._inside_of(around, op)
            known = {*self._layers, *(op.name for op in self._ops)}
            known |= {part for op in self._ops for part in op.name.split("/")}
            near = difflib.get_close_matches(name, sorted(known), n=5, cutoff=0.4)
            advice = f"The nearest names are {text.quoted(near)}." if near else "No name is near."
            if self._layers:
                advice += f" The layers are {text.quoted(self._layers)}."
            raise self._error(place, "no such op, layer or scope", advice)
        if len(scopes) > 1:
            raise self._error(place, f"{len(scopes)} scopes, {text.quoted(sorted(scopes))}", "Write one of these.")
        ((_, ops),) = scopes.items()
        inside = set(map(id, ops))
        leaving = [op for op in ops if any(_leaves(tensor, inside) for tensor in op.outputs)]
        return [tensor for tensor in (leaving or ops)[-1].outputs if not leaving or _leaves(tensor, inside)]

    def _inside_of(self, around: Any, op: Any) -> NotImplementedError:
        return NotImplementedError(
            f"{self._api}: a place must be outside of loops, branches and compiled functions, got '{op.name}' in "
            f"'{around.name}' ({around.type}) of '{self._function}'. Return the value from there, from a loop for "
            "example in a TensorArray."
        )

    def _error(self, place: str, got: str, advice: str) -> ValueError:
        return ValueError(
            f"{self._api}: a place must name one value of '{self._function}', got {place!r}: {got}. {advice}"
        )


def _layer_of(op: Any) -> str:
    return op.get_attr(_LAYER).decode() if op.type == "Identity" and _LAYER in op.node_def.attr else ""


def _leaves(tensor: Any, inside: set[int]) -> bool:
    uses = tensor.consumers()
    return tensor.dtype not in (tf.resource, tf.variant) and (not uses or any(id(use) not in inside for use in uses))
