"""The traces of eager mode: how long they live, and which may be used again."""

import contextlib
import types
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.keras import scopes

_traces: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def kept_with(function: Callable[..., Any]) -> dict[Any, Any]:
    """The traces of a function, kept as long as the function, or as the object of a method.

    They must not refer to it. A function without weak references or a hash has a new, empty dictionary each time.
    """
    with contextlib.suppress(TypeError):
        if isinstance(function, types.MethodType):
            return _traces.setdefault(function.__self__, {}).setdefault(function.__func__, {})
        return _traces.setdefault(function, {}).setdefault(None, {})
    return {}


def surroundings() -> Any:
    """Everything around a call that changes its trace: the scopes of Keras, and the replica of a strategy."""
    return scopes.of_trace(), _replica()


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
