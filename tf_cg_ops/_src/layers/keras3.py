"""The layers for Keras 3.

A class inherits no `__doc__`, which documentation tools read: each takes that of its mixin.
"""

from tf_cg_ops._src.keras.keras3 import keras  # Importing the module registers the functions.
from tf_cg_ops._src.keras.registration import PACKAGE
from tf_cg_ops._src.layers import mixins


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
