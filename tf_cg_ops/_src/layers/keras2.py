"""The layers for tf_keras, which is Keras 2.

Classes do not inherit `__doc__`, which documentation tools read, so each class sets it to its mixin's.
"""

from typing import Any

import tensorflow as tf

from tf_cg_ops._src.keras import keras_internal
from tf_cg_ops._src.keras.keras2 import keras  # Importing the module registers the functions.
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

    def build(self, input_shape: Any = None) -> None:
        """Builds the layer, except a model in a replica of a strategy, which its first call builds.

        The `build` of a model calls it in another graph, where replicas cannot be merged.
        """
        is_replica = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        if is_replica and isinstance(self.layer, keras.Model):
            keras.layers.Layer.build(self, input_shape)
        else:
            super().build(input_shape)


keras_internal.has_mask_of_call(Recompute)
