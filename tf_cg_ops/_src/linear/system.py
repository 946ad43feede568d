"""A linear system in any structure as one of vectors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import text

# The distance from 1 to the next number.
_ROUNDING = {tf.float16: 2.0**-10, tf.bfloat16: 2.0**-7}


class VectorSystem:
    """The system `operator(u) = right` as `matvec(vector) = vector`, with one vector of all elements."""

    def __init__(self, api: str, operator: Callable[[Any], Any], right: Any) -> None:
        if not callable(operator):
            raise TypeError(
                f"{api}: operator is not a function; expected a function that applies the matrix, got "
                f"{text.describe_type(operator)}. Pass for a matrix: lambda u: tf.linalg.matvec(matrix, u)"
            )
        self._api, self._operator = api, operator
        self._right = tf.nest.map_structure(lambda leaf: _to_tensor(api, leaf), right)
        leaves = tf.nest.flatten(self._right)
        dtypes = sorted({leaf.dtype.name for leaf in leaves})
        if len(dtypes) != 1 or not (leaves[0].dtype.is_floating or leaves[0].dtype.is_complex):
            raise TypeError(
                f"{api}: right is no vector of numbers; expected Tensors of one floating-point or complex dtype, got "
                f"{', '.join(dtypes) or 'no Tensor'}. Cast them with tf.cast."
            )
        self._shapes = [tf.shape(leaf) for leaf in leaves]
        self._static_shapes = [leaf.shape for leaf in leaves]
        self._dtype = leaves[0].dtype
        # TensorFlow factors no matrices of 16 bits, and sums there lose too much.
        self._computed_in = tf.float32 if self._dtype.size == 2 else self._dtype
        self.right = self._pack(leaves)

    def reachable(self, tolerance: float) -> float:
        """The tolerance, or what the operator's own rounding allows in 16 bits."""
        return max(float(tolerance), 4 * _ROUNDING.get(self._dtype, 0.0))

    def matvec(self, vector: tf.Tensor) -> tf.Tensor:
        """The operator on a vector; ValueError or TypeError if its result is not like the right-hand side."""
        result = self._operator(self.unpack(vector))
        try:
            tf.nest.assert_same_structure(self._right, result)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{self._api}: the operator returned another structure than right; expected that of right, got "
                f"{text.describe_type(result)}. Return what has the structure and shapes of its argument."
            ) from error
        leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(result)]
        for leaf, shape in zip(leaves, self._static_shapes, strict=True):
            if leaf.dtype != self._dtype or not leaf.shape.is_compatible_with(shape):
                raise ValueError(
                    f"{self._api}: the operator returned a wrong dtype or shape; expected {self._dtype.name} of "
                    f"shape {shape}, got {leaf.dtype.name} of shape {leaf.shape}. Return what has the structure and "
                    "shapes of its argument."
                )
        return self._pack(leaves)

    def unpack(self, vector: tf.Tensor) -> Any:
        """A vector in the structure of the right-hand side."""
        if len(self._shapes) == 1:
            parts = [vector]
        else:
            parts = tf.split(vector, [tf.reduce_prod(shape) for shape in self._shapes])
        parts = [tf.cast(part, self._dtype) for part in parts]
        leaves = [tf.reshape(part, shape) for part, shape in zip(parts, self._shapes, strict=True)]
        for leaf, shape in zip(leaves, self._static_shapes, strict=True):
            leaf.set_shape(shape)
        return tf.nest.pack_sequence_as(self._right, leaves)

    def _pack(self, leaves: list[tf.Tensor]) -> tf.Tensor:
        return tf.concat([tf.reshape(tf.cast(leaf, self._computed_in), [-1]) for leaf in leaves], 0)


def _to_tensor(api: str, leaf: Any) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(leaf)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{api}: right must be a Tensor, or a structure of Tensors, of floating-point or complex numbers, got "
            f"{text.describe(leaf)}."
        ) from error


def check_limits(api: str, tolerance: float, **counts: int) -> None:
    """Raises ValueError unless the tolerance is a number from 0 to 1, and the counts are at least 1."""
    is_number = isinstance(tolerance, (int, float, np.floating, np.integer)) and not isinstance(tolerance, bool)
    if not is_number or not 0 <= tolerance < 1:
        raise ValueError(
            f"{api}: tolerance is out of range; expected a number from 0 to 1, relative to the right-hand side, got "
            f"{text.describe(tolerance)}. Leave it out for 1e-6."
        )
    for name, count in counts.items():
        if not isinstance(count, (int, np.integer)) or isinstance(count, bool) or count < 1:
            raise ValueError(
                f"{api}: {name} is out of range; expected an int of at least 1, got {text.describe(count)}. Leave it "
                "out for the default."
            )


def norm(vector: tf.Tensor) -> tf.Tensor:
    """The Euclidean norm, a real scalar."""
    return tf.sqrt(tf.reduce_sum(tf.math.real(vector * tf.math.conj(vector))))
