"""The layers of `tf_cg_ops.layers` for tf_keras, which is Keras 2."""

from tf_cg_ops._src.layers.keras2 import (
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
]
