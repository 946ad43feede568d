"""The traces of eager mode: how long they live, and which may be used again."""

import contextlib
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core.variables import as_variable
from tf_cg_ops._src.keras import scopes

_traces: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def kept_with(function: Callable[..., Any]) -> dict[Any, Any]:
    """The traces of a function, kept as long as the function, or as the object of a method.

    They must not refer to it. A function without weak references or a hash has a new, empty dictionary each time. A
    function may say by its attribute `traces_of` for which other one its traces are kept.
    """
    function, kind = getattr(function, "traces_of", function), type(function)
    with contextlib.suppress(TypeError):
        if isinstance(function, types.MethodType):
            return _traces.setdefault(function.__self__, {}).setdefault((function.__func__, kind), {})
        return _traces.setdefault(function, {}).setdefault(kind, {})
    return {}


def signature_of(arguments: Any) -> Any:
    """A key of everything that changes a trace.

    These are the structure of the arguments, the specs of Tensors, all other values, the scopes of Keras, the arguments
    that Keras forwards, and the replica of a strategy.
    """
    # A Tensor that Keras forwards is captured, with its value.
    forwarded = [
        (name, Identity(value) if tf.is_tensor(value) else _key_of_leaf(value))
        for name, value in scopes.forwarded_arguments()
    ]
    structure = repr(tf.nest.map_structure(lambda _: 0, arguments))
    return structure, scopes.of_trace(), tuple(forwarded), _replica(), *map(_key_of_leaf, tf.nest.flatten(arguments))


def _key_of_leaf(leaf: Any) -> Any:
    variable = as_variable(leaf)
    if variable is not None:
        return "variable", Identity(leaf)
    if tf.is_tensor(leaf):
        return tf.type_spec_from_value(leaf)
    if isinstance(leaf, (np.ndarray, np.generic)):
        return "array", str(leaf.dtype), leaf.shape, leaf.tobytes()
    if isinstance(leaf, (str, bytes, int, float, complex, bool, type(None))):
        return type(leaf), leaf
    return Identity(leaf)


def _replica() -> Any:
    """The replica that calls: each has its own variables."""
    if not tf.distribute.has_strategy():
        return None
    context = tf.distribute.get_replica_context()
    return Identity(tf.distribute.get_strategy()), None if context is None else int(context.replica_id_in_sync_group)


class Identity:
    """Equal for the same object only, which it keeps."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)
