"""The layers for Keras 3.

Classes do not inherit `__doc__`, which documentation tools read, so each class sets it to its mixin's.
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
        """Builds the layer first, if that needs all the arguments."""
        if not self.layer.built and _needs_a_call(self.layer):
            keras.Operation.compute_output_spec(self, *args, **kwargs)
        return super().__call__(*args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Returns KerasTensors with the shapes and dtypes of the outputs."""
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


def _needs_a_call(layer: Any) -> bool:
    """Whether the layer must be called to build it: its `build` takes several shapes, or is Keras's default."""
    return keras_internal.has_default_build(layer) or len(inspect.signature(layer.build).parameters) != 1
