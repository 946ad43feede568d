"""The places inside a traced function that a user names: ops, Keras layers, scopes of names, or a predicate on ops."""

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from tf_cg_ops._src.core import text, tf_internal
from tf_cg_ops._src.graphs import control_flow, graph_copy
from tf_cg_ops._src.keras import keras_internal
from tf_cg_ops._src.rewrite.op_rules import selects
from tf_cg_ops._src.rewrite.own_gradients import with_inner_ops

# A name, or a predicate on a tf.Operation.
Place: TypeAlias = str | Callable[[tf.Operation], bool]

# The attribute of an Identity for a value that a Keras layer returned: its number, and the name of the layer.
_LAYER = "_tf_cg_ops_layer"
_NOT_PLACES = frozenset(["NoOp", "Placeholder", "Const"])


def check_places(api: str, places: Any) -> dict[str, Place]:
    """The places by the names of their values; of a list of names, each is its own."""
    if isinstance(places, (list, tuple)) and all(isinstance(place, str) for place in places):
        places = {place: place for place in places}
    if not isinstance(places, Mapping) or not all(isinstance(key, str) for key in places):
        raise TypeError(
            f"{api}: places must be a dict such as {{'features': 'name_of_a_layer'}}, or a list of names, got "
            f"{text.describe(places)}. Name a layer, as in [layer.name]."
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


def mark(layer: Any, value: Any) -> Any:
    """What a Keras layer returns, with its Tensors in a graph marked."""
    leaves = tf.nest.flatten(value)
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, tf.Tensor) and not isinstance(leaf, tf_internal.EagerTensor):
            leaves[i] = tf.identity(leaf)
            tf_internal.set_attribute(leaves[i].op, _LAYER, tf.compat.v1.AttrValue(s=f"{i}:{layer.name}".encode()))
            mask = keras_internal.mask_of(leaf)
            if mask is not None:
                keras_internal.set_mask(leaves[i], mask)
    return tf.nest.pack_sequence_as(value, leaves)


def layer_of(op: Any) -> tuple[int, str] | None:
    """The number of the value, and the name of the layer, that an op marks, or None."""
    if op.type != "Identity" or _LAYER not in op.node_def.attr:
        return None
    number, name = op.get_attr(_LAYER).decode().split(":", 1)
    return int(number), name


class PlaceSearch:
    """Finds places among the ops of a graph without calls."""

    def __init__(self, api: str, function: str, graph: Any) -> None:
        self._api, self._function = api, function
        self._outputs = set(map(id, graph.outputs))
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
        tensors = self._of_layer(place, name) or self._of_op(place, name) or self._of_scope(place, name)
        self._check_inlined_once(place, tensors)
        if index is None and len(tensors) > 1:
            numbers = ", ".join(f"'{name}:{number}'" for number in tensors)
            raise self._error(place, f"{len(tensors)} values", f"Write one of {numbers}.")
        if index is not None and int(index) not in tensors:
            raise self._error(place, f"no number {index}", f"It has {', '.join(map(str, tensors))}.")
        return tensors[int(index)] if index is not None else next(iter(tensors.values()))

    def _of_layer(self, place: str, name: str) -> dict[int, Any]:
        """What the Keras layer with this name returns, by number."""
        tensors: dict[int, Any] = {}
        marks = [(mark[0], op) for op in self._ops if (mark := layer_of(op)) and mark[1] == name]
        for number, op in marks:
            if tensors.setdefault(number, op.outputs[0]) is not op.outputs[0]:
                found = text.quoted(dict.fromkeys(op.inputs[0].op.name for _, op in marks))
                raise self._error(place, "a layer that is called several times", f"Name one of the ops {found}.")
        for around, op in self._nested if not marks else ():
            if (mark := layer_of(op)) and mark[1] == name:
                raise self._inside_of(around, op)
        return tensors

    def _of_op(self, place: str, name: str) -> dict[int, Any]:
        """The outputs of the op with this name, or with a name that ends with it, by number."""
        ops = [op for op in self._ops if op.name == name]
        ops = ops or [op for op in self._ops if name and op.name.endswith(f"/{name}")]
        if len(ops) > 1:
            found = text.quoted(sorted(op.name for op in ops))
            raise self._error(place, f"{len(ops)} ops, {found}", "Write one of these.")
        return dict(enumerate(ops[0].outputs)) if ops else {}

    def _check_inlined_once(self, place: str, tensors: Mapping[int, Any]) -> None:
        """Raises ValueError if the op stands in a function that is called several times."""
        found = next(iter(tensors.values())).op
        original = graph_copy.original_of(found)
        same = [op for op in self._ops if graph_copy.original_of(op) is original and op.type == found.type]
        copies = [op.name for op in same if layer_of(op) is None]
        if len(copies) > 1:
            advice = f"Pass a predicate, such as lambda op: op.name == {copies[0]!r}."
            raise self._error(place, f"an op of a function that is called {len(copies)} times", advice)

    def _of_scope(self, place: str, name: str) -> dict[int, Any]:
        """What leaves the scope with this name: outputs of its last op with one that an op outside reads, by number."""
        scopes: dict[str, list[Any]] = {}
        for op in self._ops:
            position = f"/{op.name}".find(f"/{name}/") if name else -1
            if position >= 0:
                scopes.setdefault(op.name[: position + len(name)], []).append(op)
        if not scopes:
            for around, op in self._nested:
                if name and f"/{name}/" in f"/{op.name}/":
                    raise self._inside_of(around, op)
            layers = list(dict.fromkeys(mark[1] for op in self._ops if (mark := layer_of(op))))
            known = {*layers, *(op.name for op in self._ops)}
            known |= {part for op in self._ops for part in op.name.split("/")}
            near = difflib.get_close_matches(name, sorted(known), n=5, cutoff=0.4)
            advice = f"The nearest names are {text.quoted(near)}." if near else "No name is near."
            if layers:
                advice += f" The layers are {text.quoted(layers)}."
            raise self._error(place, "no such op, layer or scope on which the outputs depend", advice)
        if len(scopes) > 1:
            raise self._error(place, f"{len(scopes)} scopes, {text.quoted(sorted(scopes))}", "Write one of these.")
        ((scope, ops),) = scopes.items()
        for op in reversed(ops):
            leaving = {i: tensor for i, tensor in enumerate(op.outputs) if self._leaves(tensor, scope)}
            if leaving:
                return leaving
        raise self._error(place, "a scope that no value leaves", "Name an op.")

    def _leaves(self, tensor: Any, scope: str) -> bool:
        is_read = any(not use.name.startswith(f"{scope}/") for use in tensor.consumers())
        return (is_read or id(tensor) in self._outputs) and tensor.dtype not in (tf.resource, tf.variant)

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
