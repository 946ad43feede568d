"""The code of the layer `Recompute`; `keras3.py` and `keras2.py` derive a class of either Keras from it."""

import inspect
from collections.abc import Callable
from typing import Any

from tf_cg_ops._src.core import text, tf_internal
from tf_cg_ops._src.keras import keras_internal
from tf_cg_ops._src.keras.registration import argument_config, argument_from_config
from tf_cg_ops._src.layers import layer_call
from tf_cg_ops._src.memory.checkpoint_name import Keep, check_keep

_API = "layers.Recompute"


class _CallOfTheLayer:
    """`call`, with the signature of the wrapped layer's: Keras looks there for `training`, masks and names."""

    def __get__(self, wrapper: Any, owner: Any = None) -> Any:
        @tf_internal.autograph_artifact
        def call(*args: Any, **kwargs: Any) -> Any:
            return wrapper._call_layer(args, kwargs)

        signature = getattr(wrapper, "_signature", None)
        if signature is not None:
            call.__signature__ = signature  # type: ignore[attr-defined]
        return call


# The layer inside is translated as without recomputation: a layer of tf_keras asks for that itself.
@tf_internal.autograph_artifact
class Recompute:
    """Calls a layer whose gradient computes it again: training keeps its inputs and none of its intermediate values.

    Values, gradients and state are those of the layer, including random numbers, masks and losses. Each gradient takes
    one more forward pass of the layer.

    Compared with `tf_cg_ops.recompute_grad`: the same gradient, for a layer or a model that is saved with what it is
    part of. Compared with `keras.RematScope`: see `tf_cg_ops.layers.enable_remat`.

    >>> import keras
    >>> import tensorflow as tf
    >>> import tf_cg_ops.layers
    >>> block = keras.Sequential([keras.layers.Dense(64, activation="gelu"), keras.layers.Dense(2)])
    >>> layer = tf_cg_ops.layers.Recompute(block)
    >>> x = tf.ones([1, 2])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x)
    >>> dx = tape.gradient(y, x, output_gradients=tf.constant([[1.0, 10.0]]))
    >>> dx.shape, len(layer.weights)
    (TensorShape([1, 2]), 4)

    The layer is traced, in eager mode once for each signature of its inputs: attributes that you change, such as the
    rate of a Dropout, stay those of the first call. `trainable` and dtype policies do take effect.

    Args:
      layer: A layer or model of this Keras.
      keep: The values inside the layer that are kept and not computed again: a list of names given by
        `tf_cg_ops.checkpoint_name`, or a function of a `tf.Operation`. Keras saves a function by its name: register it
        with `@keras.saving.register_keras_serializable()`.
      **kwargs: The arguments of every layer: `name`, `dtype`.

    Call arguments:
      Those of the layer.

    Raises:
      TypeError: `layer` is not a layer of this Keras, or `keep` holds something else than names. At a call: the layer
        needs the numbers in a Tensor, and cannot be traced.
      ValueError: At a call: the layer has no value of a name in `keep`.
      NotImplementedError: At a call: the layer has a stateful op that can neither be kept nor computed again.
    """

    keras: Any  # The package.
    layer: Any
    build: Callable[..., Any]

    call = _CallOfTheLayer()

    def __init__(self, layer: Any, *, keep: Keep = (), **kwargs: Any) -> None:
        if not isinstance(layer, self.keras.layers.Layer):
            package = self.keras.__name__
            raise TypeError(
                f"{_API}: layer must be a {package}.layers.Layer or a model of {package}, got "
                f"{_describe(layer)}. Use tf_cg_ops.recompute_grad for a function, and the Recompute of the same Keras "
                "for a layer."
            )
        self._signature = inspect.signature(layer.call)  # Keras reads the signature of `call` in its own __init__.
        self._keep = check_keep(keep, _API)
        # The layer casts its inputs itself.
        super().__init__(layer, **{"autocast": False, **kwargs})  # type: ignore[call-arg]
        keras_internal.forward_arguments(self, layer)

    def _call_layer(self, args: Any, kwargs: Any) -> Any:
        return layer_call.recompute(_API, self._keep, self.layer, self, args, kwargs)

    def compute_output_shape(self, *args: Any, **kwargs: Any) -> Any:
        """That of the layer."""
        return self.layer.compute_output_shape(*args, **kwargs)

    def compute_mask(self, *args: Any, **kwargs: Any) -> Any:
        """That of the layer, or None if it knows no masks."""
        return self.layer.compute_mask(*args, **kwargs) if self.layer.supports_masking else None

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        keep = self._keep if callable(self._keep) else list(self._keep)
        return super().get_config() | {"keep": argument_config(keep)}  # type: ignore[misc]

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """The layer of a configuration."""
        keep = argument_from_config(config.get("keep", ()))
        return super().from_config({**config, "keep": keep}, custom_objects)  # type: ignore[misc]


def _describe(value: Any) -> str:
    if callable(value) and not hasattr(value, "add_weight"):
        return f"the function '{text.name_of(value)}'"
    return text.describe_type(value) + (f" of {type(value).__module__.partition('.')[0]}" if callable(value) else "")
