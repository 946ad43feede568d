"""Turns a linear system for structures of Tensors into a system for vectors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, text
from tf_cg_ops._src.linear.packing import Packing

# The distance from 1 to the next larger number.
_ROUNDING = {tf.float16: 2.0**-10, tf.bfloat16: 2.0**-7}

# For calls that do not fit the signature: SciPy calls the tolerance rtol, and JAX takes it by position.
NAME_THE_OPTIONS = "A, b and x0 come first. The relative tolerance is tol; write each option as in tol=1e-5."


class VectorSystem:
    """The system `A(x) = b` for vectors of all elements of a structure.

    Attributes:
      b: The right-hand side as a vector.
      dtype: The dtype of the user's numbers.
      x0: The start as a vector, or None.
      apply: Applies `A` to a vector.
      precondition: Applies `M` to a vector, or None.
    """

    def __init__(self, api: str, matrix: Any, b: Any, x0: Any, preconditioner: Any) -> None:
        self._api = api
        self.apply = self._of_vectors("A", matrix)
        self.precondition = None if preconditioner is None else self._of_vectors("M", preconditioner)
        leaves = [self._to_tensor(leaf) for leaf in tf.nest.flatten(b)]
        dtypes = sorted({leaf.dtype.name for leaf in leaves})
        if len(dtypes) != 1 or not (leaves[0].dtype.is_floating or leaves[0].dtype.is_complex):
            raise TypeError(
                f"{api}: b must hold Tensors of one floating-point or complex dtype, got "
                f"{', '.join(dtypes) or 'no Tensor'}. Cast them with tf.cast."
            )
        self._packing = Packing(api, "b", b, leaves, as_vector=True)
        self.dtype = self._packing.dtype
        self.b = self._widened(self._packing.packed)
        advice = "It is a first guess of the solution; write the tolerance as tol=1e-5."
        self.x0 = None if x0 is None else self._widened(self._packing.pack("x0 must have", x0, advice))

    def reachable(self, tol: float) -> float:
        """The tolerance; in 16 bits at least what the rounding in `A` allows."""
        return max(float(tol), 4 * _ROUNDING.get(self.dtype, 0.0))

    def unpack(self, vector: tf.Tensor) -> Any:
        """A vector in the structure of `b`."""
        return self._packing.unpack(tf.cast(vector, self.dtype))

    def _of_vectors(self, name: str, function: Any) -> Callable[[tf.Tensor], tf.Tensor]:
        """The user's function, which takes structures, as a function of vectors."""
        if not callable(function):
            remedy = f"lambda u: tf.linalg.matvec({'matrix' if name == 'A' else 'inverse'}, u)"
            if isinstance(function, tf.linalg.LinearOperator):
                remedy = "its method matvec"
            raise TypeError(
                f"{self._api}: {name} must be a function that takes and returns the structure of b, got "
                f"{text.describe_type(function)}. Pass {remedy}."
            )
        subject, advice = f"{name} must return", "Return the structure, shapes and dtype of the argument."
        return lambda vector: self._widened(self._packing.pack(subject, function(self.unpack(vector)), advice))

    def _widened(self, vector: tf.Tensor) -> tf.Tensor:
        # TensorFlow cannot factor matrices in 16 bits, and sums lose too many digits there.
        return tf.cast(vector, tf.float32) if self.dtype.size == 2 else vector

    def _to_tensor(self, leaf: Any) -> tf.Tensor:
        try:
            return tf.convert_to_tensor(leaf)
        except convert.refusals(leaf) as error:
            raise TypeError(
                f"{self._api}: b must be a Tensor, or a structure of Tensors, of floating-point or complex numbers, "
                f"got {text.describe(leaf)}."
            ) from error


def check_options(api: str, tol: Any, atol: Any, maxiter: Any, **counts: Any) -> None:
    """TypeError or ValueError unless the tolerances are at least 0, and the counts are ints of at least 1."""
    for name, value in (("tol", tol), ("atol", atol)):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
            raise TypeError(f"{api}: {name} must be a number such as 1e-5, got {text.describe(value)}.")
        if not 0 <= value < (1 if name == "tol" else np.inf):
            relative = " and less than 1, relative to norm(b)" if name == "tol" else " and finite"
            raise ValueError(f"{api}: {name} must be at least 0{relative}, got {value!r}.")
    if maxiter is not None:
        counts["maxiter"] = maxiter
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)):
            raise TypeError(f"{api}: {name} must be an int, got {text.describe(count)}.")
        if count < 1:
            raise ValueError(f"{api}: {name} must be at least 1, got {count}.")


def norm(vector: tf.Tensor) -> tf.Tensor:
    """The Euclidean norm, a real scalar."""
    return tf.sqrt(dot(vector, vector))


def dot(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """The real part of the inner product, a real scalar."""
    return tf.reduce_sum(tf.math.real(tf.math.conj(a) * b))
