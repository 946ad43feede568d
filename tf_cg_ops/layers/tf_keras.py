"""The layers of `tf_cg_ops.layers` for tf_keras, which is Keras 2."""

from .._keras import layers as _layers
from .._keras.keras2 import keras as _keras

EmbedGradient = _layers.layer(_layers.EmbedGradient, _keras, __name__)
GradientReversal = _layers.layer(_layers.GradientReversal, _keras, __name__)
GradientScale = _layers.layer(_layers.GradientScale, _keras, __name__)
GradientClip = _layers.layer(_layers.GradientClip, _keras, __name__)
StraightThrough = _layers.layer(_layers.StraightThrough, _keras, __name__)

__all__ = ["EmbedGradient", "GradientClip", "GradientReversal", "GradientScale", "StraightThrough"]
