"""Sees and replaces what Keras layers return."""

import collections
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tf_cg_ops._src.keras import registration

_thread = threading.local()
_lock = threading.Lock()
_num_entered: collections.Counter[type] = collections.Counter()
_plain: dict[type, Any] = {}


@contextlib.contextmanager
def replaced(replace: Callable[[Any, Any], Any]) -> Iterator[None]:
    """A context in which each call of a Keras layer in this thread returns `replace(layer, value)`."""
    before, _thread.replace = getattr(_thread, "replace", None), replace
    try:
        with contextlib.ExitStack() as stack:
            for module in registration.loaded_modules():
                stack.enter_context(_watched(module.keras.layers.Layer))
            yield
    finally:
        _thread.replace = before


@contextlib.contextmanager
def _watched(base: Any) -> Iterator[None]:
    """Calls of layers ask their thread what to return. Keras itself has no hook."""
    plain: Any = None

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        value, replace = plain(layer, *args, **kwargs), getattr(_thread, "replace", None)
        return value if replace is None else replace(layer, value)

    with _lock:
        _num_entered[base] += 1
        if _num_entered[base] == 1:
            _plain[base] = plain = base.__call__
            base.__call__ = call
    try:
        yield
    finally:
        with _lock:
            _num_entered[base] -= 1
            if not _num_entered[base]:
                base.__call__ = _plain.pop(base)
