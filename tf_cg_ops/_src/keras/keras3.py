"""Calls with KerasTensors of Keras 3: each becomes an operation of the functional model, like a call of `keras.ops`."""

from typing import Any

import keras
import tensorflow as tf

from tf_cg_ops._src.keras import keras_internal, node, registration


@keras.saving.register_keras_serializable(registration.PACKAGE)
class FunctionCall(node.FunctionCall, keras.Operation):
    """A call of a function with a custom gradient."""

    keras = keras

    @staticmethod
    def type_spec_of(tensor: Any) -> tf.TypeSpec:
        """The TypeSpec of a KerasTensor."""
        # Trust `sparse` for inputs only: Keras also calls a product of a sparse Tensor and a number sparse.
        is_input = keras_internal.is_input(tensor, keras.layers.InputLayer)
        if is_input and tensor.sparse:
            return tf.SparseTensorSpec(tensor.shape, tensor.dtype)
        if is_input and tensor.ragged:
            return tf.RaggedTensorSpec(tensor.shape, tensor.dtype, tensor.ragged_rank)
        return tf.TensorSpec(tensor.shape, tensor.dtype)

    def compute_output_spec(self, tensors: Any) -> Any:
        """Returns KerasTensors with the shapes and dtypes of the outputs."""
        results = self.trace([self.type_spec_of(tensor) for tensor in tensors])
        return tf.nest.map_structure(_to_keras_tensor, results)


def _to_keras_tensor(tensor: Any) -> keras.KerasTensor:
    if isinstance(tensor, tf.RaggedTensor):
        return keras.KerasTensor(tensor.shape, tensor.dtype.name, ragged=True, ragged_rank=tensor.ragged_rank)
    return keras.KerasTensor(tensor.shape, tensor.dtype.name, sparse=isinstance(tensor, tf.SparseTensor))


registration.register(keras)


def loss_scale_of(optimizer: keras.mixed_precision.LossScaleOptimizer) -> tuple[Any, bool]:
    """The loss scale of an optimizer, and whether it can shrink."""
    return optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale, True
