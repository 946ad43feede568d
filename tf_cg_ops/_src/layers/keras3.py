"""The layers for Keras 3.

Classes do not inherit `__doc__`, which documentation tools read, so each class sets it to its mixin's.
"""

import inspect
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.keras import keras_internal
from tf_cg_ops._src.keras.keras3 import keras  # Importing the module registers the functions.
from tf_cg_ops._src.keras.registration import PACKAGE
from tf_cg_ops._src.layers import mixins, recompute

_TENSORS = (tf.Tensor, np.ndarray, keras.KerasTensor, keras.Variable, tf.Variable)


@keras.saving.register_keras_serializable(PACKAGE)
class EmbedGradient(mixins.EmbedGradient, keras.layers.Layer):
    __doc__ = mixins.EmbedGradient.__doc__


@keras.saving.register_keras_serializable(PACKAGE)
class GradientReversal(mixins.GradientReversal, keras.layers.Layer):
    __doc__ = mixins.GradientReversal.__doc__


@keras.saving.register_keras_serializable(PACKAGE)
class GradientScale(mixins.GradientScale, keras.layers.Layer):
    __doc__ = mixins.GradientScale.__doc__


@keras.saving.register_keras_serializable(PACKAGE)
class GradientClip(mixins.GradientClip, keras.layers.Layer):
    __doc__ = mixins.GradientClip.__doc__


@keras.saving.register_keras_serializable(PACKAGE)
class StraightThrough(mixins.StraightThrough, keras.layers.Layer):
    __doc__ = mixins.StraightThrough.__doc__


@keras.saving.register_keras_serializable(PACKAGE)
class WatchGradient(mixins.WatchGradient, keras.layers.Layer):
    __doc__ = mixins.WatchGradient.__doc__


@keras.saving.register_keras_serializable(PACKAGE)
class Recompute(recompute.Recompute, keras.layers.Wrapper):
    __doc__ = recompute.Recompute.__doc__

    keras = keras

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Builds the layer first, if that needs more than the shape of the first argument."""
        if not self.layer.built:
            parameters = inspect.signature(self.layer.build).parameters
            if keras_internal.has_default_build(self.layer):  # Then a call builds it.
                keras.Operation.compute_output_spec(self, *args, **kwargs)
            elif len(parameters) > 1:
                shapes = _shapes(self._signature.bind(*args, **kwargs).arguments)
                self.layer.build(**{name: shapes[name] for name in parameters if name in shapes})
        return super().__call__(*args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Returns KerasTensors with the shapes and dtypes of the outputs."""
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


def _shapes(arguments: dict[str, Any]) -> dict[str, Any]:
    """The shapes of the call arguments that are Tensors, by the names that Keras gives them in `build`."""

    def shape_of(leaf: Any) -> Any:
        return tuple(leaf.shape) if isinstance(leaf, _TENSORS) else None

    return {
        f"{name}_shape": keras.tree.map_structure(shape_of, value)
        for name, value in arguments.items()
        if name != "mask" and any(isinstance(leaf, _TENSORS) for leaf in keras.tree.flatten(value))
    }
