"""Treats a Tensor, or a structure of Tensors, as one vector."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import pytree, text


def to_tensor(leaf: Any, dtype: tf.DType | None = None) -> Any:
    """Converts a leaf of a result to a Tensor if it is a weak Tensor, a Variable, or an array or number of a dtype."""
    if isinstance(leaf, tf.experimental.ExtensionType):
        with contextlib.suppress(TypeError, ValueError):  # Only a weak Tensor converts.
            return tf.convert_to_tensor(leaf)
    if dtype is not None and isinstance(leaf, (np.ndarray, np.generic, int, float, complex)):
        return tf.convert_to_tensor(leaf, dtype)
    return pytree.to_output(leaf)


class Packing:
    """The structure, shapes and dtype of a value.

    Attributes:
      packed: The value as one Tensor: all elements, `[n]`, or `[B, n]` if it is batched. A value that is one Tensor
        stays as it is, unless it is packed `as_vector`.
    """

    def __init__(
        self, api: str, name: str, value: Any, tensors: list[tf.Tensor], batched: bool = False, as_vector: bool = False
    ) -> None:
        """`tensors` are the leaves of the value, of one dtype. Messages call it by the name."""
        self._api, self._name, self.batched = api, name, batched
        self._structure = value if tf.nest.is_nested(value) else None
        self._is_kept = self._structure is None and not as_vector
        self.dtype = tensors[0].dtype
        self._static_shapes = [tensor.shape for tensor in tensors]
        # Python numbers where known, because XLA needs constants.
        self._shapes = [t.shape.as_list() if t.shape.is_fully_defined() else tf.shape(t) for t in tensors]
        self.packed = self.concatenate(tensors)

    def pack(self, subject: str, value: Any, advice: str) -> tf.Tensor:
        """Another value of the same structure, shapes and dtype as one Tensor; TypeError or ValueError otherwise.

        Errors begin with `subject`, such as "the result of g must have", and end with `advice`.
        """
        if self._structure is not None:
            try:
                tf.nest.assert_same_structure(self._structure, value, check_types=False)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{self._api}: {subject} the structure of {self._name}, with "
                    f"{text.count(len(self._shapes), 'Tensor')}, got {text.describe_type(value)}. {advice}"
                ) from error
        elif tf.nest.is_nested(value):
            raise ValueError(
                f"{self._api}: {subject} one Tensor, like {self._name}, got {text.describe_type(value)}. {advice}"
            )
        tensors = [to_tensor(leaf, self.dtype) for leaf in tf.nest.flatten(value)]
        for i, (tensor, shape) in enumerate(zip(tensors, self._static_shapes, strict=True)):
            if not isinstance(tensor, tf.Tensor) or tensor.dtype != self.dtype:
                raise TypeError(
                    f"{self._api}: {subject} Tensors of the dtype of {self._name}, {self.dtype.name}, got "
                    f"{text.describe(tensor)}. {advice}"
                )
            if not tensor.shape.is_compatible_with(shape):
                raise ValueError(self.wrong_shape(subject, shape, tensor.shape, advice, i))
        return self.concatenate(tensors)

    def unpack(self, packed: tf.Tensor) -> Any:
        """The structure, from one Tensor."""
        return self.structured(self.leaves(packed))

    def leaves(self, packed: tf.Tensor) -> list[tf.Tensor]:
        """The leaves, from one Tensor."""
        if self._is_kept:
            return [packed]
        axis = 1 if self.batched else 0
        parts = tf.split(packed, [_product(shape[axis:]) for shape in self._shapes], axis=axis)
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

    def wrong_shape(self, subject: str, expected: Any, got: Any, advice: str, number: int = 0) -> str:
        """The message for a value of another shape."""
        return f"{self._api}: {subject} the shape of {self.names()[number]}, {expected}, got {got}. {advice}"

    def concatenate(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """The elements of all leaves as one Tensor."""
        if self._is_kept:
            return tensors[0]
        if not self.batched:
            return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
        pairs = zip(tensors, self._shapes, strict=True)
        return tf.concat([tf.reshape(t, tf.stack([shape[0], _product(shape[1:])])) for t, shape in pairs], 1)


def _product(sizes: Any) -> Any:
    return math.prod(sizes) if isinstance(sizes, list) else tf.reduce_prod(sizes)
