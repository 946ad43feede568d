"""Private names of Keras 3 and tf_keras, used here and nowhere else, each with the reason why no public name will do.

`tests/packaging/test_keras_internal.py` fails when a Keras changes one of them. Neither Keras is imported here: their
modules are read only if they are loaded. `core.variables`, which lies below, reads the `_value` of a Variable itself:
its public `value` may be rounded to 16 bits.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

# The scopes that a thread has entered: mixed precision and stateless calls. Keras has functions to enter them, and none
# that tells which one is entered. The module, the object that keeps them, and its attributes:
KERAS3 = ("keras.src.backend.common.global_state", "GLOBAL_STATE_TRACKER", ("autocast_scope", "stateless_scope"))
KERAS2 = ("tf_keras.src.mixed_precision.autocast_variable", "_autocast_dtype", ("dtype",))


def current_scopes() -> tuple[Any, ...] | None:
    """The scopes of this thread, for `scopes_entered`; None for none. Written for speed: every call asks."""
    keras3, keras2 = sys.modules.get(KERAS3[0]), sys.modules.get(KERAS2[0])
    autocast = stateless = dtype = None
    if keras3 is not None:
        state = vars(keras3.GLOBAL_STATE_TRACKER)
        autocast, stateless = state.get("autocast_scope"), state.get("stateless_scope")
    if keras2 is not None:
        dtype = vars(keras2._autocast_dtype).get("dtype")
    return None if autocast is stateless is dtype is None else (autocast, stateless, dtype)


@contextlib.contextmanager
def scopes_entered(scopes: tuple[Any, ...] | None) -> Iterator[None]:
    """A context in which these scopes, and no others, are entered."""
    before = current_scopes()
    _enter(scopes)
    try:
        yield
    finally:
        _enter(before)


def _enter(scopes: tuple[Any, ...] | None) -> None:
    values = iter(scopes or (None, None, None))
    for module, name, attributes in (KERAS3, KERAS2):
        state = getattr(sys.modules.get(module), name, None)
        for attribute in attributes:
            value = next(values)
            if state is not None:
                setattr(state, attribute, value)


def is_stateless() -> bool:
    """Whether a `keras.StatelessScope` is entered: Keras then reads and writes values instead of variables."""
    return (current_scopes() or (None, None, None))[1] is not None


# Keras forwards arguments such as `training` from the layer that is called to the layers inside of it; no public name
# tells them.
def state_of_call() -> tuple[Any, ...]:
    """Everything of Keras around a call that changes a trace of layers: its scopes and the arguments it forwards."""
    # Keras 3 makes a new scope for each call of a layer.
    autocast, stateless, dtype = current_scopes() or (None, None, None)
    forwarded = {}
    call = _call_of_keras3()
    if call is not None:
        forwarded.update({name: value for name, value in vars(call).items() if name != "entry_layer"})
    keras2 = sys.modules.get("tf_keras.src.engine.base_layer_utils")
    if keras2 is not None:
        context = keras2.call_context()
        # Older versions of tf_keras forward `training` alone.
        of_keras2 = getattr(context, "call_context_args", {"training": context.training})
        forwarded.update({f"{name} of tf_keras": value for name, value in of_keras2.items()})
    return autocast is not None, getattr(autocast, "dtype", None), stateless, dtype, tuple(sorted(forwarded.items()))


def entry_layer() -> Any:
    """The outermost layer of Keras 3 that is called; None outside of calls."""
    call = _call_of_keras3()
    return None if call is None else call.entry_layer


def _call_of_keras3() -> Any:
    keras3 = sys.modules.get(KERAS3[0])
    return None if keras3 is None else vars(keras3.GLOBAL_STATE_TRACKER).get("current_call_ctx")


def forward_arguments(wrapper: Any, layer: Any) -> None:
    """Makes Keras forward through a wrapper the arguments that it forwards through the layer inside."""
    if hasattr(layer, "_call_context_args"):  # Older versions of tf_keras forward `training` by themselves.
        wrapper._register_call_context_args(*layer._call_context_args)


# Masks are attributes of Tensors. Keras sets them itself only in the call of a layer.
def mask_of(tensor: Any) -> Any:
    """The mask that Keras attached to a Tensor; None if there is none."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: Any, mask: Any) -> None:
    """Attaches a mask to a Tensor."""
    tensor._keras_mask = mask


# The public list of layers that a layer holds is that of a model alone.
def is_layer(value: Any) -> bool:
    """Whether `layers_in` takes it."""
    return hasattr(value, "_flatten_layers")


def layers_in(layer: Any) -> list[Any]:
    """The layer and all layers inside of it."""
    return list(layer._flatten_layers())


# The public `losses` also has those of weights, and is a copy.
def losses_in(layer: Any) -> dict[str, list[Any]]:
    """The lists in which the layer, and layers inside of it, keep the losses of their calls; none for None.

    tf_keras has two: for this thread, and for the shapes of a functional model.
    """
    layers = enumerate([] if layer is None else layers_in(layer))
    found = {f"{name}:{i}": getattr(each, name, None) for i, each in layers for name in ("_eager_losses", "_losses")}
    return {key: losses for key, losses in found.items() if losses is not None}


def clear_losses(layer: Any) -> None:
    """Forgets the losses of earlier calls, as Keras does at the beginning of the outermost one."""
    layer._clear_losses()


def has_default_build(layer: Any) -> bool:
    """Whether a layer of Keras 3 does not override `build`; then Keras calls it to build it."""
    return getattr(layer.build, "_is_default", False)


# A KerasTensor has no public link to its layer. It has no history when Keras asks for shapes alone.
def is_input(tensor: Any, input_layer: type) -> bool:
    """Whether a KerasTensor of Keras 3 is an input of a model."""
    history = getattr(tensor, "_keras_history", None)
    return history is not None and isinstance(history.operation, input_layer)


# tf_keras has no public way to say it.
def has_mask_of_call(wrapper: type) -> None:
    """Marks a layer of tf_keras whose masks come out of its call: `compute_mask` of a model would call it once more."""
    wrapper._compute_output_and_mask_jointly = True  # type: ignore[attr-defined]


# Keras has no setting for the function that recomputes in `keras.RematScope`.
def core_of_tensorflow_backend() -> Any:
    """The module in which Keras 3 has the basic functions of TensorFlow's backend."""
    return importlib.import_module("keras.src.backend.tensorflow.core")
