"""Makes `keras.RematScope` and `keras.remat` of Keras 3 use `recompute_grad`."""

import contextlib
import types
from collections.abc import Callable, Sequence
from typing import Any

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.keras import keras_internal, registration
from tf_cg_ops._src.layers import layer_call
from tf_cg_ops._src.memory import recompute_grad

_API = "keras.remat"
_WORDING = without_gradient_function(_API)
_replaced: list[Callable[..., Any]] = []  # Keras's function, while ours replaces it.


@tf_internal.autograph_artifact
def enable_remat() -> contextlib.AbstractContextManager[None]:
    """Makes `keras.RematScope` and `keras.remat` of Keras 3 recompute through `tf_cg_ops.recompute_grad`.

    >>> import keras
    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> with keras.RematScope(mode="full"):
    ...     layer = keras.layers.Dropout(0.5)
    >>> x = tf.ones([1000])
    >>> with cg.layers.enable_remat(), tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x, training=True)
    >>> bool(tf.reduce_all(y == tape.gradient(y, x)))
    True

    Call it once for the whole process, until `disable_remat`, or in a `with` statement for the layers called inside.
    Importing this library does not do it for you.

    Returns:
      A context manager, which you can ignore.

    Raises:
      RuntimeError: Keras does not use TensorFlow, or its version has no `keras.remat`.

    Differs from Keras 3 alone, which uses `tf.recompute_grad`:

    - `fit` works if a layer has weights. Keras raises an error.
    - Dropout has the same mask in value and gradient.
    - A whole model that was built in `keras.RematScope(mode="full")` is cut into segments, as with
      `recompute_grad(model, memory="auto")`. Keras recomputes it as one unit, which takes as much memory as without.
    """
    core = _core_of_keras("enable_remat")
    was_enabled = core.remat is _remat
    if not was_enabled:
        _replaced.append(core.remat)
        core.remat = _remat
    return _Enabled(was_enabled)


class _Enabled(contextlib.AbstractContextManager[None]):
    """Restores at its end what was there before. `enable_remat` itself has enabled it already."""

    def __init__(self, was_enabled: bool) -> None:
        self._was_enabled = was_enabled

    def __enter__(self) -> None:
        enable_remat()

    def __exit__(self, *_: Any) -> None:
        if self._was_enabled:
            enable_remat()
        else:
            disable_remat()


@tf_internal.autograph_artifact
def disable_remat() -> None:
    """Undoes `enable_remat`: Keras uses its own recomputation again.

    >>> import tf_cg_ops as cg
    >>> _ = cg.layers.enable_remat()
    >>> cg.layers.disable_remat()

    Without `enable_remat` before, it does nothing. Functions that `keras.remat` decorated in between keep their
    gradient.

    Raises:
      RuntimeError: Other code replaced the recomputation after `enable_remat`.
    """
    if not _replaced:
        return
    core = _core_of_keras("disable_remat")
    if core.remat is not _remat:
        raise RuntimeError(
            "layers.disable_remat: the recomputation of Keras must be the one that enable_remat set, got "
            f"'{getattr(core.remat, '__module__', None)}.{getattr(core.remat, '__qualname__', None)}'. Undo that first."
        )
    core.remat = _replaced.pop()


def _core_of_keras(name: str) -> Any:
    """The module of Keras 3 with the function that recomputes."""
    keras = registration.module_of("keras").keras
    registration.require_tensorflow(keras, f"layers.{name}")
    core = keras_internal.core_of_tensorflow_backend()
    if not callable(getattr(core, "remat", None)):
        raise RuntimeError(f"layers.{name}: Keras must be 3.9 or later, got {keras.__version__}. Use layers.Recompute.")
    return core


def _remat(f: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces the function of Keras."""
    return CustomGradient(_API, f, _run_recomputed)


def _run_recomputed(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if recompute_grad.is_recomputing():  # With a layer around this one.
        return function(*args, **kwargs)
    layer: Any = function.__self__ if isinstance(function, types.MethodType) else function
    entry_layer = keras_internal.entry_layer()
    if not keras_internal.is_layer(layer):
        layer = entry_layer
    elif entry_layer is None:  # You called the layer yourself: Keras clears its losses only in the trace.
        keras_internal.clear_losses(layer)
    # Recomputed whole, a model would need as much memory as without, and more time.
    is_whole_model = layer is not None and layer is entry_layer and keras_internal.is_model_in_full_scope(layer)
    recomputation = recompute_grad.Recomputation(_WORDING, memory="auto" if is_whole_model else None)
    return layer_call.recompute(recomputation, function, layer, args, kwargs)
