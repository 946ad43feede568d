"""Treats a Tensor, or a structure of Tensors, as one vector."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, library, pytree, text

# The distance from 1 to the next larger number.
ROUNDING = {tf.float16: 2.0**-10, tf.bfloat16: 2.0**-7, tf.float32: 2.0**-23, tf.float64: 2.0**-52}


class Packing:
    """Numbers of one dtype in a structure, and the same numbers as one vector: `[n]`, or `[B, n]` for a batch.

    Numbers of 16 bits become vectors of float32: TensorFlow cannot solve systems in 16 bits, and sums lose too many
    digits there.

    Attributes:
      packed: The vector.
      dtype: The dtype of the user's numbers.
    """

    def __init__(self, subject: str, name: str, value: Any, advice: str, batched: bool = False) -> None:
        """TypeError or ValueError, which begins with `subject`, unless the value holds numbers of one dtype.

        Messages about other values call it by the name.
        """
        self._name = name
        tensors = [_leaf_to_tensor(leaf) for leaf in tf.nest.flatten(value)]
        for tensor in tensors or [value]:
            if not isinstance(tensor, tf.Tensor) or tensor.dtype not in convert.DTYPES:
                raise TypeError(
                    f"{subject} a Tensor of floating-point or complex numbers, or a structure of such Tensors, got "
                    f"{text.describe(tensor)}. {advice}"
                )
            if batched and tensor.shape.rank == 0:
                raise ValueError(
                    f"{subject} Tensors with a leading batch dimension, got a scalar. For a single system, leave out "
                    "batched=True."
                )
        dtypes = ", ".join(dict.fromkeys(tensor.dtype.name for tensor in tensors))
        if "," in dtypes:
            raise TypeError(f"{subject} Tensors of one dtype, got {dtypes}. Cast them with tf.cast.")
        self._structure = value if tf.nest.is_nested(value) else None
        self.dtype = tensors[0].dtype
        self._static_shapes = [tensor.shape for tensor in tensors]
        # Python numbers where known, because XLA needs constants.
        self._shapes = [t.shape.as_list() if t.shape.is_fully_defined() else tf.shape(t) for t in tensors]
        first = 1 if batched else 0
        counts = [tensor.shape[first:].num_elements() for tensor in tensors]
        pairs = zip(counts, self._shapes, strict=True)
        self._counts = [tf.reduce_prod(shape[first:]) if count is None else count for count, shape in pairs]
        self._batch = [self._shapes[0][0]] if batched else []
        self.packed = self.concatenate(tensors)

    def pack(self, subject: str, value: Any, advice: str) -> tf.Tensor:
        """Another value of the same structure, shapes and dtype as one vector; TypeError or ValueError otherwise.

        Errors begin with `subject`, such as "linear.cg: A must return", and end with `advice`.
        """
        if self._structure is not None:
            try:
                tf.nest.assert_same_structure(self._structure, value, check_types=False)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{subject} the structure of {self._name}, with {text.count(len(self._shapes), 'Tensor')}, got "
                    f"{text.describe_type(value)}. {advice}"
                ) from error
        elif tf.nest.is_nested(value):
            raise ValueError(f"{subject} one Tensor, like {self._name}, got {text.describe_type(value)}. {advice}")
        tensors = [_leaf_to_tensor(leaf, self.dtype) for leaf in tf.nest.flatten(value)]
        for i, (tensor, name, shape) in enumerate(zip(tensors, self.names(), self._static_shapes, strict=True)):
            if not isinstance(tensor, tf.Tensor) or tensor.dtype != self.dtype:
                raise TypeError(
                    f"{subject} Tensors of the dtype of {self._name}, {self.dtype.name}, got {text.describe(tensor)}. "
                    f"{advice}"
                )
            message = f"{subject} the shape of {name}, {{expected}}, got {{got}}. {advice}"
            if not tensor.shape.is_compatible_with(shape):
                raise ValueError(message.format(expected=shape, got=tensor.shape))
            if not (tensor.shape.is_fully_defined() and shape.is_fully_defined()):
                expected = tf.cast(self._shapes[i], tf.int64)
                tensors[i] = library.custom_gradient_check_shape(tensor, expected, message=message)
        return self.concatenate(tensors)

    def unpack(self, packed: tf.Tensor) -> Any:
        """The structure, from one vector."""
        return self.structured(self.leaves(packed))

    def leaves(self, packed: tf.Tensor) -> list[tf.Tensor]:
        """The leaves, from one vector."""
        packed = tf.cast(packed, self.dtype)
        parts = [packed]
        if len(self._shapes) > 1:
            parts = tf.split(packed, self._counts, axis=-1)
        leaves = [tf.reshape(part, shape) for part, shape in zip(parts, self._shapes, strict=True)]
        for leaf, shape in zip(leaves, self._static_shapes, strict=True):
            leaf.set_shape(shape)
        return leaves

    def structured(self, leaves: Sequence[tf.Tensor]) -> Any:
        """The leaves in their structure."""
        return leaves[0] if self._structure is None else tf.nest.pack_sequence_as(self._structure, list(leaves))

    def names(self) -> list[str]:
        """The name of each leaf in messages, such as `y` or `y['a']`."""
        return [self._name] if self._structure is None else pytree.leaf_names(self._name, self._structure)

    def concatenate(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """The numbers of all leaves as one vector."""
        pairs = zip(tensors, self._counts, strict=True)
        vectors = [tf.reshape(tensor, [*self._batch, count]) for tensor, count in pairs]
        vector = vectors[0] if len(vectors) == 1 else tf.concat(vectors, -1)
        return tf.cast(vector, tf.float32) if self.dtype.size == 2 else vector


def _leaf_to_tensor(leaf: Any, dtype: tf.DType | None = None) -> Any:
    """Converts a leaf if TensorFlow can: an array or number to this dtype, a Variable, a weak Tensor."""
    is_number = isinstance(leaf, (np.ndarray, np.generic, int, float, complex))
    try:
        return tf.convert_to_tensor(leaf, dtype if is_number else None)
    except convert.refusals(leaf):
        return leaf
