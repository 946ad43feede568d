"""The layers of `tf_cg_ops.layers` for tf_keras, which is Keras 2."""

from typing import TYPE_CHECKING

from tf_cg_ops._src.layers import layers_of

if TYPE_CHECKING:
    from tf_cg_ops.layers import (
        ClipGradient,
        EmbedGradient,
        FakeQuant,
        Recompute,
        ReverseGradient,
        ScaleGradient,
        StraightThrough,
        WatchGradient,
    )
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
    ) = layers_of("tf_keras")

__all__ = [
    "ClipGradient",
    "EmbedGradient",
    "FakeQuant",
    "Recompute",
    "ReverseGradient",
    "ScaleGradient",
    "StraightThrough",
    "WatchGradient",
]
