"""tf_keras, which is Keras 2: calls with its KerasTensors are layers, as TensorFlow's ops are there."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras as keras

from tf_cg_ops._src.keras import node, registration


@keras.saving.register_keras_serializable(registration.PACKAGE)
class FunctionCall(node.FunctionCall, keras.layers.Layer):
    """The call of a function with a custom gradient."""

    keras = keras

    def __init__(self, function: Callable[..., Any], given: Any, **kwargs: Any) -> None:
        # It has no dtype of its own: what comes is not to be cast to that of the layer.
        super().__init__(function, given, **{"autocast": False, **kwargs})

    @staticmethod
    def spec_of(tensor: Any) -> tf.TypeSpec:
        """What is known of a KerasTensor."""
        return tensor.type_spec


registration.register(keras)


def call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The call as a part of the functional model."""
    return node.call(FunctionCall, function, args, kwargs)
