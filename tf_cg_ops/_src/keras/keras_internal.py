"""Private names of Keras 3 and tf_keras. No other module uses any; a comment says why no public name will do.

`tests/keras` fails when a Keras changes one of them. Neither Keras is imported here; their
modules are only read if they are loaded already. One exception: `core.variables`, which must not import this module,
reads the `_value` of a Variable, because its public `value` is rounded to 16 bits in mixed precision.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

# Mixed precision and stateless calls are scopes of a thread. Keras has public functions to enter them, but none that
# tells which are entered. These modules store them.
KERAS3, KERAS2 = "keras.src.backend.common.global_state", "tf_keras.src.mixed_precision.autocast_variable"


def current_scopes() -> tuple[Any, ...] | None:
    """The scopes of this thread, for `scopes_entered`, or None. It has to be fast, because every call asks."""
    keras3, keras2 = sys.modules.get(KERAS3), sys.modules.get(KERAS2)
    autocast = stateless = dtype = None
    if keras3 is not None:
        state = vars(keras3.GLOBAL_STATE_TRACKER)
        autocast, stateless = state.get("autocast_scope"), state.get("stateless_scope")
    if keras2 is not None:
        dtype = vars(keras2._autocast_dtype).get("dtype")
    return None if autocast is stateless is dtype is None else (autocast, stateless, dtype)


@contextlib.contextmanager
def scopes_entered(scopes: tuple[Any, ...] | None) -> Iterator[None]:
    """A context in which exactly these scopes are entered."""
    before = current_scopes()
    _enter(scopes)
    try:
        yield
    finally:
        _enter(before)


def _enter(scopes: tuple[Any, ...] | None) -> None:
    autocast, stateless, dtype = scopes or (None, None, None)
    if KERAS3 in sys.modules:
        state = sys.modules[KERAS3].GLOBAL_STATE_TRACKER
        state.autocast_scope, state.stateless_scope = autocast, stateless
    if KERAS2 in sys.modules:
        sys.modules[KERAS2]._autocast_dtype.dtype = dtype


def is_stateless() -> bool:
    """Whether a `keras.StatelessScope` is entered: Keras then reads and writes values instead of variables."""
    return (current_scopes() or (None, None, None))[1] is not None


# No public name tells which layer is the outermost.
def entry_layer() -> Any:
    """The outermost layer of Keras 3 that is being called, or None."""
    keras3 = sys.modules.get(KERAS3)
    call = None if keras3 is None else vars(keras3.GLOBAL_STATE_TRACKER).get("current_call_ctx")
    return None if call is None else call.entry_layer


def forward_arguments(wrapper: Any, layer: Any) -> None:
    """Makes Keras forward the same arguments through a wrapper as through the layer inside."""
    if hasattr(layer, "_call_context_args"):  # Older versions of tf_keras forward `training` by themselves.
        wrapper._register_call_context_args(*layer._call_context_args)


# Masks are attributes of Tensors. Keras sets them itself only in the call of a layer.
def mask_of(tensor: Any) -> Any:
    """The mask that Keras attached to a Tensor, or None."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: Any, mask: Any) -> None:
    """Attaches a mask to a Tensor."""
    tensor._keras_mask = mask


# Only models have a public list of their layers.
def is_layer(value: Any) -> bool:
    """Whether the value is a layer."""
    return hasattr(value, "_flatten_layers")


def has_keras_call(layer: Any) -> bool:
    """Whether Keras wrote the `call` of a layer or model. The user's own can take other arguments."""
    return layer.call.__module__.partition(".")[0] in ("keras", "tf_keras")


# The public `losses` is a copy, and includes the losses of weights.
def losses_in(layer: Any) -> dict[str, list[Any]]:
    """The lists in which the layer and its inner layers store the losses of their calls; empty for None.

    A layer of tf_keras has two: one for this thread, one for the shapes of a functional model.
    """
    layers = enumerate([] if layer is None else layer._flatten_layers())
    found = {f"{name}:{i}": getattr(each, name, None) for i, each in layers for name in ("_eager_losses", "_losses")}
    return {key: losses for key, losses in found.items() if losses is not None}


def clear_losses(layer: Any) -> None:
    """Drops the losses of earlier calls, as Keras does at the start of the outermost call."""
    layer._clear_losses()


def has_default_build(layer: Any) -> bool:
    """Whether a layer of Keras 3 does not override `build`; then Keras calls it to build it."""
    return getattr(layer.build, "_is_default", False)


# A KerasTensor has no public link to its layer, and no history while Keras computes shapes.
def is_input(tensor: Any, input_layer: type) -> bool:
    """Whether a KerasTensor of Keras 3 is an input of a model."""
    history = getattr(tensor, "_keras_history", None)
    return history is not None and isinstance(history.operation, input_layer)


# tf_keras has no public name for it.
def has_mask_of_call(wrapper: type) -> None:
    """Says that masks come out of the call of this tf_keras layer; `compute_mask` of a model would call it again."""
    wrapper._compute_output_and_mask_jointly = True  # type: ignore[attr-defined]


# A layer keeps the scope in which it was made, but has no public name for it.
def is_model_in_full_scope(layer: Any) -> bool:
    """Whether this is a model of Keras 3 with layers inside that was made in `keras.RematScope(mode="full")`."""
    scope = getattr(layer, "_remat_mode", None)
    return scope is not None and scope.mode == "full" and len(list(layer._flatten_layers())) > 1


# Keras has no public way to replace the function that recomputes in `keras.RematScope`. Keras 3.16 moved it.
def core_of_tensorflow_backend() -> Any:
    """The module in which Keras 3 looks up the basic functions of its TensorFlow backend."""
    backend = importlib.import_module("keras.src.backend.tensorflow")
    return getattr(backend, "ops", None) or backend.core
