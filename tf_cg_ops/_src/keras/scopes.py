"""The scopes of Keras around a call, for `grad_fn`: it reads Variables as the function did, for example in 16 bits.

Keras has no public name for the scope that is entered. Its modules are read only if they are loaded.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

# For each package: the module, the object that keeps the scopes of a thread, and the attributes of that object.
_KERAS3 = ("keras.src.backend.common.global_state", "GLOBAL_STATE_TRACKER", ("autocast_scope", "stateless_scope"))
_KERAS2 = ("tf_keras.src.mixed_precision.autocast_variable", "_autocast_dtype", ("dtype",))


def current() -> tuple[Any, ...] | None:
    """The scopes of this thread, for `entered`; None for none. Written for speed: every call asks."""
    keras3, keras2 = sys.modules.get(_KERAS3[0]), sys.modules.get(_KERAS2[0])
    autocast = stateless = dtype = None
    if keras3 is not None:
        state = vars(keras3.GLOBAL_STATE_TRACKER)
        autocast, stateless = state.get("autocast_scope"), state.get("stateless_scope")
    if keras2 is not None:
        dtype = vars(keras2._autocast_dtype).get("dtype")
    return None if autocast is stateless is dtype is None else (autocast, stateless, dtype)


@contextlib.contextmanager
def entered(scopes: tuple[Any, ...] | None) -> Iterator[None]:
    """A context in which these scopes, and no others, are entered."""
    before = current()
    _set(scopes)
    try:
        yield
    finally:
        _set(before)


def _set(scopes: tuple[Any, ...] | None) -> None:
    values = iter(scopes or (None, None, None))
    for module, name, attributes in (_KERAS3, _KERAS2):
        state = getattr(sys.modules.get(module), name, None)
        for attribute in attributes:
            value = next(values)
            if state is not None:
                setattr(state, attribute, value)


def of_trace() -> tuple[Any, ...]:
    """The scopes, by what they change in a trace of layers: Keras 3 makes a new scope for each call of a layer."""
    autocast, stateless, dtype = current() or (None, None, None)
    return autocast is not None, getattr(autocast, "dtype", None), stateless, dtype


def is_stateless() -> bool:
    """Whether a `keras.StatelessScope` is entered: Keras then reads and writes values in place of variables."""
    keras3 = sys.modules.get(_KERAS3[0])
    return keras3 is not None and vars(keras3.GLOBAL_STATE_TRACKER).get("stateless_scope") is not None


def forwarded_arguments() -> list[tuple[str, Any]]:
    """The arguments that the layer that is called forwards to the layers inside of it, such as `training`."""
    forwarded = {}
    call = _keras3_call()
    if call is not None:
        forwarded.update({name: value for name, value in vars(call).items() if name != "entry_layer"})
    keras2 = sys.modules.get("tf_keras.src.engine.base_layer_utils")
    if keras2 is not None:
        forwarded.update({f"{name} of tf_keras": v for name, v in keras2.call_context().call_context_args.items()})
    return sorted(forwarded.items())


def entry_layer() -> Any:
    """The outermost layer of Keras 3 that is called; None outside of calls."""
    call = _keras3_call()
    return None if call is None else call.entry_layer


def _keras3_call() -> Any:
    keras3 = sys.modules.get(_KERAS3[0])
    return None if keras3 is None else vars(keras3.GLOBAL_STATE_TRACKER).get("current_call_ctx")
