"""Layers for `tf.keras`: for Keras 3, or for tf_keras where TF_USE_LEGACY_KERAS is set.

`tf_cg_ops.layers.tf_keras` has the same layers for tf_keras, whatever `tf.keras` is.
"""

import tensorflow as tf

if tf.keras.layers.Layer.__module__.startswith("tf_keras."):
    from tf_cg_ops._src.layers.keras2 import (
        EmbedGradient,
        GradientClip,
        GradientReversal,
        GradientScale,
        StraightThrough,
    )
else:
    from tf_cg_ops._src.layers.keras3 import (
        EmbedGradient,
        GradientClip,
        GradientReversal,
        GradientScale,
        StraightThrough,
    )

__all__ = ["EmbedGradient", "GradientClip", "GradientReversal", "GradientScale", "StraightThrough"]
