"""`keras.RematScope` and `keras.remat` of Keras 3, by `recompute_grad`."""

import contextlib
import importlib
import types
from collections.abc import Callable, Sequence
from typing import Any

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.keras import keras_internal
from tf_cg_ops._src.layers import layer_call
from tf_cg_ops._src.memory import recompute_grad

_API = "keras.remat"
_replaced: list[Callable[..., Any]] = []  # The function of Keras, while ours is in its place.


@tf_internal.autograph_artifact
def enable_remat() -> contextlib.AbstractContextManager[None]:
    """Makes `keras.RematScope` and `keras.remat` of Keras 3 recompute through `tf_cg_ops.recompute_grad`.

    Layers that are made in a scope, or functions decorated with `keras.remat`, then have the gradient of the
    computation that ran, in eager mode, in `fit` and under XLA. Another call changes nothing. Import alone enables
    nothing. `disable_remat` restores the recomputation of Keras; used in a `with` statement, it holds for the
    calls of layers inside, and restores at its end what was there before.

    Compared with Keras 3 alone: there TensorFlow's `tf.recompute_grad` recomputes. `fit` raises an error where a layer
    has weights, and dropout has another mask in the gradient than in the value.

    >>> import keras
    >>> import tensorflow as tf
    >>> import tf_cg_ops.layers
    >>> with keras.RematScope(mode="full"):
    ...     layer = keras.layers.Dropout(0.5)
    >>> x = tf.ones([1000])
    >>> with tf_cg_ops.layers.enable_remat(), tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x, training=True)
    >>> bool(tf.reduce_all(y == tape.gradient(y, x)))
    True

    Returns:
      A context manager, which you may ignore.

    Raises:
      RuntimeError: Keras does not compute with TensorFlow, or is of a version without `keras.remat`.
    """
    core = _core_of_keras("enable_remat")
    was_enabled = core.remat is _remat
    if not was_enabled:
        _replaced.append(core.remat)
        core.remat = _remat
    return _Enabled(was_enabled)


class _Enabled(contextlib.AbstractContextManager[None]):
    """Restores at its end what was there before. Enabling does not wait for its beginning, which enables again."""

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
    """Restores the recomputation of Keras that `enable_remat` replaced; without it, changes nothing.

    Functions that `keras.remat` decorated before keep their gradient.

    Compared with Keras 3: the recomputation is its own again, with its errors.

    >>> import tf_cg_ops.layers
    >>> _ = tf_cg_ops.layers.enable_remat()
    >>> tf_cg_ops.layers.disable_remat()

    Raises:
      RuntimeError: Other code replaced the recomputation after `enable_remat`.
    """
    if not _replaced:
        return
    core = _core_of_keras("disable_remat")
    if core.remat is not _remat:
        raise RuntimeError(
            "layers.disable_remat: Keras recomputes by another function than that of enable_remat, which this call "
            f"would drop; got '{getattr(core.remat, '__module__', None)}.{getattr(core.remat, '__qualname__', None)}'. "
            "Restore it first."
        )
    core.remat = _replaced.pop()


def _core_of_keras(name: str) -> Any:
    """The module of Keras 3 that has the function which recomputes."""
    keras3 = importlib.import_module("tf_cg_ops._src.keras.keras3")
    keras3.require_tensorflow(f"layers.{name}")
    core = keras_internal.core_of_tensorflow_backend()
    if not callable(getattr(core, "remat", None)):
        raise RuntimeError(
            f"layers.{name}: this Keras has no recomputation; expected Keras 3.9 or later, got Keras "
            f"{keras3.keras.__version__}. Use layers.Recompute."
        )
    return core


def _remat(f: Callable[..., Any]) -> Callable[..., Any]:
    """Stands in for the function of Keras."""
    return CustomGradient(_API, f, _run)


def _run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if recompute_grad.is_recomputing():  # A layer around this one is recomputed, and this one with it.
        return function(*args, **kwargs)
    layer: Any = function.__self__ if isinstance(function, types.MethodType) else function
    entry_layer = keras_internal.entry_layer()
    if not keras_internal.is_layer(layer):
        layer = entry_layer
    elif entry_layer is None:  # A call of a layer by the user: Keras clears its losses in the trace alone.
        keras_internal.clear_losses(layer)
    return layer_call.recompute(_API, (), function, layer, args, kwargs)
