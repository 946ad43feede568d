"""The traces of eager mode: `tf.function` decides which one a call may use again.

A `tf.function` without ops stands for each function that is traced here. It compares the arguments of a call with those
of earlier calls, locks, and warns when it retraces too often.
"""

import threading
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import text, tf_internal
from tf_cg_ops._src.core.variables import as_variable, read_from_outside
from tf_cg_ops._src.core.weak import IdentityKey, WeakIdentityDict
from tf_cg_ops._src.keras import scopes

# The attribute of a graph that holds the slot of its signature.
_SLOT = "_tf_cg_ops_slot"
# Values of these types are compared with their types, and by what they print: -0.0 is not 0.0, nan is nan.
_NUMBERS = (bool, int, float, complex)
_PLAIN = (str, bytes, np.str_, np.bytes_, type(None), tf.DType, tf.TensorShape, range, type(Ellipsis))

_of_functions = WeakIdentityDict()
_of_methods = WeakIdentityDict()  # By the object, then by its function.
_lock = threading.RLock()


def of(function: Callable[..., Any]) -> "Traces":
    """The traces of a function; of a method, for its object. They live as long as both, and must not refer to them."""
    with _lock:
        if isinstance(function, types.MethodType):
            return _of_methods.setdefault(function.__self__, WeakIdentityDict).setdefault(function.__func__, Traces)
        return _of_functions.setdefault(function, Traces)


class Traces:
    """Keeps what was made of one function, for each signature of its arguments."""

    def __init__(self) -> None:
        self._signatures = tf.function(_keep_slot, autograph=False)
        # Here and not in the graph, which takes two collections of garbage to go.
        self._made: dict[_Slot, Any] = {}

    def find(
        self,
        api: str,
        function: Callable[..., Any],
        key: Any,
        make: Callable[[], Any],
        others: Sequence[Callable[..., Any]] = (),
    ) -> Any:
        """`make()`, or what it returned for the same signature.

        The signature consists of the structure of `key`, the specs of its Tensors and its other values, the scopes of
        Keras, the arguments that Keras forwards, the replica of a strategy, and the Tensors and variables that the
        function, or one of the others, finds outside. Objects count by identity. When one of them dies, what was made
        for it goes, too.
        """
        slot = _Slot(self)
        arguments = tf.nest.map_structure(lambda leaf: _argument(leaf, slot), key)
        # A trace has a gradient with respect to the Tensor that it captured, and none to one that took its place.
        found_outside = [value for each in (function, *others) for value in read_from_outside(each)]
        outside = [IdentityKey(value, slot.empty) for value in found_outside]
        scope = _Static((*(_key(value, slot) for value in _scope()), *outside), slot)
        graph = self._signatures.get_concrete_function(scope, arguments).graph
        found = getattr(graph, _SLOT)
        # get_concrete_function warns of nothing: only a call does.
        if found is slot:
            tf_internal.frequent_tracing.called_with_tracing(self, f"{api} of '{text.name_of(function)}'", False)
        else:
            tf_internal.frequent_tracing.called_without_tracing(self)
        with found.lock:
            made = self._made.get(found)
            if made is None:
                made = self._made[found] = make()
            return made

    def drop(self, slot: "_Slot") -> None:
        """Drops what was made for a signature: an object of it has died."""
        self._made.pop(slot, None)


def arrays_to_tensors(structure: Any) -> Any:
    """The structure with Tensors for its NumPy arrays and numbers, which are inputs of a trace as in a tf.function."""
    return tf.nest.map_structure(lambda leaf: tf.convert_to_tensor(leaf) if _is_array(leaf) else leaf, structure)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "biufc"


class _Slot:
    """Stands for a signature, on the graph that tf.function finds for it."""

    def __init__(self, traces: Traces) -> None:
        self.lock = threading.RLock()
        self._traces = weakref.ref(traces)

    def empty(self, _: Any) -> None:
        """Called when an object of the signature has died."""
        traces = self._traces()
        if traces is not None:
            traces.drop(self)


def _keep_slot(scope: "_Static", arguments: Any) -> None:
    setattr(tf.compat.v1.get_default_graph(), _SLOT, scope.slot)


class _Static(tf.types.experimental.TraceType):
    """An argument that is no Tensor, by a key that keeps no object alive."""

    def __init__(self, key: Any, slot: _Slot | None = None) -> None:
        self._key = key
        self.slot = slot

    def __tf_tracing_type__(self, context: Any) -> "_Static":
        return self

    def is_subtype_of(self, other: Any) -> bool:
        return self == other

    def most_specific_common_supertype(self, others: Sequence[Any]) -> "_Static | None":
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: Any = None) -> "_Static":
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _argument(leaf: Any, slot: _Slot) -> Any:
    """The leaf as tf.function gets it: Tensors are inputs, all else is part of the signature."""
    return leaf if tf.is_tensor(leaf) and as_variable(leaf) is None else _Static(_key(leaf, slot))


def _key(value: Any, slot: _Slot) -> Any:
    """A key of a value that is no input of the trace."""
    kind = type(value)
    if kind in _NUMBERS:
        return kind, repr(value)
    if kind in _PLAIN or isinstance(value, tf.TypeSpec):
        return kind, value
    if kind is slice:
        return kind, *(_key(part, slot) for part in (value.start, value.stop, value.step))
    if kind is tuple:
        return kind, *(_key(part, slot) for part in value)
    if kind is types.MethodType:  # A new object each time.
        return kind, _key(value.__self__, slot), _key(value.__func__, slot)
    return IdentityKey(value, slot.empty)


def _scope() -> tuple[Any, ...]:
    """Everything around a call that changes a trace. A Tensor that Keras forwards is captured, with its value."""
    strategy = replica = None
    if tf.distribute.has_strategy():  # Each replica has its own variables.
        strategy, context = tf.distribute.get_strategy(), tf.distribute.get_replica_context()
        replica = None if context is None else int(context.replica_id_in_sync_group)
    return *scopes.of_trace(), tuple(scopes.forwarded_arguments()), strategy, replica
