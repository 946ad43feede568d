"""The layers of `tf_cg_ops.layers` for tf_keras, which is Keras 2."""

from typing import TYPE_CHECKING

from tf_cg_ops._src.layers import layers_of

if TYPE_CHECKING:
    from tf_cg_ops.layers import (
        EmbedGradient,
        GradientClip,
        GradientReversal,
        GradientScale,
        Recompute,
        StraightThrough,
        WatchGradient,
    )
else:
    EmbedGradient, GradientClip, GradientReversal, GradientScale, Recompute, StraightThrough, WatchGradient = layers_of(
        "tf_keras"
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
