"""Shows and replaces what the layers inside a Keras model return."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_cg_ops._src.keras import keras_internal

# Two threads that trace one model would each restore what the other one put there.
_lock = threading.RLock()


@contextlib.contextmanager
def replaced(layers: Sequence[Any], replace: Callable[[str, Any], Any]) -> Iterator[None]:
    """A context in which each call of these layers returns `replace(name of the layer, value)`."""
    with _lock, contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(_replaced(layer, replace))
        yield


@contextlib.contextmanager
def _replaced(layer: Any, replace: Callable[[str, Any], Any]) -> Iterator[None]:
    call = layer.call  # Keras itself has no hook.

    @functools.wraps(call)
    def replacing(*args: Any, **kwargs: Any) -> Any:
        value = call(*args, **kwargs)
        new = replace(layer.name, value)
        mask = keras_internal.mask_of(value)
        if mask is not None:
            keras_internal.set_mask(new, mask)
        return new

    had = vars(layer).get("call")  # Not setattr, because Keras tracks that.
    vars(layer)["call"] = replacing
    try:
        yield
    finally:
        if had is None:
            del vars(layer)["call"]
        else:
            vars(layer)["call"] = had
