"""Keras 3: calls with its KerasTensors are operations of a functional model, as those of `keras.ops` are."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tf_cg_ops._src.keras import node, registration


@keras.saving.register_keras_serializable(registration.PACKAGE)
class FunctionCall(node.FunctionCall, keras.Operation):
    """The call of a function with a custom gradient."""

    keras = keras

    @staticmethod
    def spec_of(tensor: Any) -> tf.TypeSpec:
        """What is known of a KerasTensor."""
        # Only an input tells whether it is sparse: Keras takes products with numbers for sparse, too. And where Keras
        # asks for shapes alone, there is no history.
        history = getattr(tensor, "_keras_history", None)
        is_input = history is not None and isinstance(history.operation, keras.layers.InputLayer)
        if is_input and tensor.sparse:
            return tf.SparseTensorSpec(tensor.shape, tensor.dtype)
        if is_input and tensor.ragged:
            return tf.RaggedTensorSpec(tensor.shape, tensor.dtype, tensor.ragged_rank)
        return tf.TensorSpec(tensor.shape, tensor.dtype)

    def compute_output_spec(self, tensors: Any) -> Any:
        """The shapes and dtypes of the function's values."""
        results = self.trace([self.spec_of(tensor) for tensor in tensors])
        return tf.nest.map_structure(_keras_tensor, results)


def _keras_tensor(tensor: Any) -> keras.KerasTensor:
    if isinstance(tensor, tf.RaggedTensor):
        return keras.KerasTensor(tensor.shape, tensor.dtype.name, ragged=True, ragged_rank=tensor.ragged_rank)
    return keras.KerasTensor(tensor.shape, tensor.dtype.name, sparse=isinstance(tensor, tf.SparseTensor))


registration.register(keras)


def call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The call as a part of the functional model."""
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"{function.__name__}: Keras does not compute with TensorFlow here; expected the backend "
            f"'tensorflow', got {keras.backend.backend()!r}. Set KERAS_BACKEND=tensorflow in the environment, "
            "before Keras is imported."
        )
    return node.call(FunctionCall, function, args, kwargs)
