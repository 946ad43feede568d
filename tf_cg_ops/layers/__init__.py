"""Custom gradients as Keras layers, for Keras 3, or for tf_keras if TF_USE_LEGACY_KERAS is set.

`tf_cg_ops.layers.tf_keras` has the same layers for tf_keras.
"""

import tensorflow as tf

from tf_cg_ops._src.layers.remat import disable_remat, enable_remat

if tf.keras.layers.Layer.__module__.startswith("tf_keras."):
    from tf_cg_ops._src.layers.keras2 import (
        EmbedGradient,
        GradientClip,
        GradientReversal,
        GradientScale,
        Recompute,
        StraightThrough,
        WatchGradient,
    )
else:
    from tf_cg_ops._src.layers.keras3 import (
        EmbedGradient,
        GradientClip,
        GradientReversal,
        GradientScale,
        Recompute,
        StraightThrough,
        WatchGradient,
    )

__all__ = [
    "EmbedGradient",
    "GradientClip",
    "GradientReversal",
    "GradientScale",
    "Recompute",
    "StraightThrough",
    "WatchGradient",
    "disable_remat",
    "enable_remat",
]
