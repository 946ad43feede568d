"""Custom gradients as Keras layers, for Keras 3, or for tf_keras if TF_USE_LEGACY_KERAS is set.

`tf_cg_ops.layers.tf_keras` has the same layers for tf_keras.
"""

from typing import TYPE_CHECKING

import tensorflow as tf

from tf_cg_ops._src.layers import layers_of
from tf_cg_ops._src.layers.remat import disable_remat, enable_remat

if TYPE_CHECKING:
    from tf_cg_ops._src.layers.identity import (
        ClipGradient,
        EmbedGradient,
        FakeQuant,
        ReverseGradient,
        ScaleGradient,
        StraightThrough,
        WatchGradient,
    )
    from tf_cg_ops._src.layers.recompute import Recompute
else:
    (
        ClipGradient,
        EmbedGradient,
        FakeQuant,
        Recompute,
        ReverseGradient,
        ScaleGradient,
        StraightThrough,
        WatchGradient,
    ) = layers_of(tf.keras.layers.Layer.__module__.partition(".")[0])

__all__ = [
    "ClipGradient",
    "EmbedGradient",
    "FakeQuant",
    "Recompute",
    "ReverseGradient",
    "ScaleGradient",
    "StraightThrough",
    "WatchGradient",
    "disable_remat",
    "enable_remat",
]
