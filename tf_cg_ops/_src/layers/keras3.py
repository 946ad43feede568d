"""The layers for Keras 3.

A class inherits no `__doc__`, which documentation tools read: each takes that of its mixin.
"""

import inspect
from typing import Any

from tf_cg_ops._src.keras import keras_internal
from tf_cg_ops._src.keras.keras3 import keras  # Importing the module registers the functions.
from tf_cg_ops._src.keras.registration import PACKAGE
from tf_cg_ops._src.layers import mixins, recompute


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
        """Builds the layer first, if it needs all arguments for that."""
        if not self.layer.built and _needs_a_call(self.layer):
            keras.Operation.compute_output_spec(self, *args, **kwargs)
        return super().__call__(*args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """KerasTensors with the shapes and dtypes that the layer returns."""
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


def _needs_a_call(layer: Any) -> bool:
    """Whether `build` of the layer alone does not build it: it takes several shapes, or is not overridden."""
    return keras_internal.has_default_build(layer) or len(inspect.signature(layer.build).parameters) != 1
