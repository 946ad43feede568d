"""Calls with KerasTensors of tf_keras: each becomes a layer, like a call of a TensorFlow op there."""

import operator
from collections.abc import Callable
from typing import Any

import tf_keras as keras

from tf_cg_ops._src.keras import node, registration


@keras.saving.register_keras_serializable(registration.PACKAGE)
class FunctionCall(node.FunctionCall, keras.layers.Layer):
    """A call of a function with a custom gradient."""

    keras = keras
    type_spec_of = operator.attrgetter("type_spec")

    def __init__(self, function: Callable[..., Any], arguments: Any, **kwargs: Any) -> None:
        # A layer would cast its inputs to its own dtype, but a function casts nothing.
        super().__init__(function, arguments, **{"autocast": False, **kwargs})


registration.register(keras)


def loss_scale_of(optimizer: keras.mixed_precision.LossScaleOptimizer) -> tuple[Any, bool]:
    """The loss scale of an optimizer, and whether it can shrink."""
    return optimizer.loss_scale, optimizer.dynamic
