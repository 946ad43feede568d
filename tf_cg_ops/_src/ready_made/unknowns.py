"""The unknowns of an implicit function: a Tensor, or a structure of Tensors treated as one vector."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, pytree, text


def to_tensor(leaf: Any) -> Any:
    """Converts a leaf of a result to a Tensor if it is a weak Tensor, a Variable, an array or a number."""
    if isinstance(leaf, tf.experimental.ExtensionType):
        with contextlib.suppress(TypeError, ValueError):  # Only a weak Tensor converts.
            return tf.convert_to_tensor(leaf)
    return pytree.to_output(leaf)


class Unknowns:
    """The structure and shapes of a solver's result.

    Attributes:
      batched: Whether the leading dimension is a batch of independent systems.
      packed: The result as one Tensor: itself, or the elements of all its Tensors, `[n]` or `[B, n]`.
    """

    def __init__(self, api: str, function: str, root: Any, batched: bool) -> None:
        """TypeError or ValueError if the result cannot be a root."""
        self._api, self._function, self.batched = api, function, batched
        self._structure = root if tf.nest.is_nested(root) else None
        tensors = [to_tensor(leaf) for leaf in tf.nest.flatten(root)]
        for tensor in tensors or [root]:
            if not isinstance(tensor, tf.Tensor) or tensor.dtype not in convert.DTYPES:
                raise TypeError(
                    f"{api}: '{function}' must return y as a Tensor of floating-point or complex numbers, or as a "
                    f"structure of such Tensors, got {text.describe(tensor)}. To return other results too, pass "
                    "has_aux=True."
                )
            if batched and tensor.shape.rank == 0:
                raise ValueError(
                    f"{api}: '{function}' must return y with a leading batch dimension, got a scalar. For a single "
                    "system, leave out batched=True."
                )
        self._dtype = tensors[0].dtype
        if any(tensor.dtype != self._dtype for tensor in tensors):
            names = ", ".join(dict.fromkeys(tensor.dtype.name for tensor in tensors))
            raise TypeError(
                f"{api}: '{function}' must return unknowns of one dtype, got {names}. Cast them with tf.cast."
            )
        self._static_shapes = [tensor.shape for tensor in tensors]
        # Python numbers where known, because XLA needs constants.
        self._shapes = [t.shape.as_list() if t.shape.is_fully_defined() else tf.shape(t) for t in tensors]
        self.packed = self.concatenate(tensors)

    def pack(self, subject: str, values: Any, advice: str) -> tf.Tensor:
        """Values in the structure of the unknowns as one Tensor.

        Errors begin with `subject`, such as "the result of g must have", and end with `advice`.
        """
        if self._structure is not None:
            try:
                tf.nest.assert_same_structure(self._structure, values, check_types=False)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{self._api}: {subject} the structure of y, with {text.count(len(self._shapes), 'Tensor')}, got "
                    f"{text.describe_type(values)}. {advice}"
                ) from error
        elif tf.nest.is_nested(values):
            raise ValueError(f"{self._api}: {subject} one Tensor, like y, got {text.describe_type(values)}. {advice}")
        leaves = [values] if self._structure is None else tf.nest.flatten(values)
        tensors = [to_tensor(leaf) for leaf in leaves]
        for i, (tensor, shape) in enumerate(zip(tensors, self._static_shapes, strict=True)):
            if not isinstance(tensor, tf.Tensor) or tensor.dtype != self._dtype:
                raise TypeError(
                    f"{self._api}: {subject} Tensors of the dtype of y, {self._dtype.name}, got "
                    f"{text.describe(tensor)}. {advice}"
                )
            if not tensor.shape.is_compatible_with(shape):
                raise ValueError(self.wrong_shape(subject, shape, tensor.shape, advice, i))
        return self.concatenate(tensors)

    def unpack(self, packed: tf.Tensor) -> Any:
        """The structure of the unknowns, from one Tensor."""
        return self.structured(self.leaves(packed))

    def leaves(self, packed: tf.Tensor) -> list[tf.Tensor]:
        """The unknowns one by one, from one Tensor."""
        if self._structure is None:
            return [packed]
        axis = 1 if self.batched else 0
        sizes = [_product(shape[axis:]) for shape in self._shapes]
        parts = tf.split(packed, sizes, axis=axis)
        return [tf.reshape(part, shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def structured(self, leaves: Sequence[tf.Tensor]) -> Any:
        """The unknowns in their structure."""
        return leaves[0] if self._structure is None else tf.nest.pack_sequence_as(self._structure, list(leaves))

    def names(self) -> list[str]:
        """The name of each unknown in messages, such as `y` or `y['a']`."""
        return ["y"] if self._structure is None else pytree.leaf_names("y", self._structure)

    def wrong_shape(self, subject: str, expected: Any, got: Any, advice: str, number: int = 0) -> str:
        """The message for values of another shape."""
        return f"{self._api}: {subject} the shape of {self.names()[number]}, {expected}, got {got}. {advice}"

    def concatenate(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """The elements of all Tensors, which have the shapes of the unknowns, as one Tensor."""
        if self._structure is None:
            return tensors[0]
        if not self.batched:
            return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
        rows = [
            tf.reshape(tensor, tf.stack([shape[0], _product(shape[1:])]))
            for tensor, shape in zip(tensors, self._shapes, strict=True)
        ]
        return tf.concat(rows, 1)


def _product(sizes: Any) -> Any:
    return math.prod(sizes) if isinstance(sizes, list) else tf.reduce_prod(sizes)
