"""Layers for `tf.keras`: Keras 3, or tf_keras where TF_USE_LEGACY_KERAS is set. Import it to load models with them.

`tf_cg_ops.layers.tf_keras` has the same layers for tf_keras, whatever `tf.keras` is.
"""

import tensorflow as tf

from .._keras import layers as _layers

if tf.keras.__version__.startswith("2."):
    from .._keras.keras2 import keras as _keras
else:
    from .._keras.keras3 import keras as _keras

EmbedGradient = _layers.layer(_layers.EmbedGradient, _keras, __name__)
GradientReversal = _layers.layer(_layers.GradientReversal, _keras, __name__)
GradientScale = _layers.layer(_layers.GradientScale, _keras, __name__)
GradientClip = _layers.layer(_layers.GradientClip, _keras, __name__)
StraightThrough = _layers.layer(_layers.StraightThrough, _keras, __name__)

__all__ = ["EmbedGradient", "GradientClip", "GradientReversal", "GradientScale", "StraightThrough"]
