"""Keras 3: calls with its KerasTensors are operations of a functional model, as those of `keras.ops` are."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from .. import _decorator, _errors
from . import function_call, functions


@keras.saving.register_keras_serializable(package=function_call.PACKAGE)
class FunctionCall(function_call.FunctionCall, keras.Operation):
    """The call of a function with a custom gradient."""

    keras = keras

    @staticmethod
    def spec_of(tensor: Any) -> tf.TypeSpec:
        """What is known of a KerasTensor."""
        kind = tf.SparseTensorSpec if tensor.sparse else tf.TensorSpec
        return kind(tensor.shape, tensor.dtype)


for name, function in functions.items():
    keras.saving.register_keras_serializable(function_call.PACKAGE, name)(function)
keras.saving.register_keras_serializable(function_call.PACKAGE)(_decorator.CustomGradient)


def call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The call as a part of the functional model."""
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(_errors.KERAS_BACKEND.format(function=function.__name__, got=keras.backend.backend()))
    return function_call.call(FunctionCall, function, args, kwargs)
