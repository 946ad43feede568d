"""`linear.cg`: conjugate gradients."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.linear.system import VectorSystem, check_limits

_API = "linear.cg"


@tf_internal.autograph_artifact
def cg(operator: Callable[[Any], Any], right: Any, *, tolerance: float = 1e-6, max_iterations: int = 1000) -> Any:
    """Solves `operator(u) = right` by conjugate gradients, for a symmetric positive definite operator.

    The operator stands for a matrix that is never made: each iteration applies it once, and four vectors are kept. It
    ends when the residual is smaller than `tolerance` times the right-hand side, or after `max_iterations`.

    As `linear_solve` of `tf_cg_ops.implicit_root` it fits a symmetric positive definite Jacobian of the residual, such
    as that of a minimum. For any other use `tf_cg_ops.linear.gmres`. Set options by `functools.partial`.

    Compared with `tf.linalg.experimental.conjugate_gradient`, which does the work: this takes a function instead of a
    LinearOperator, and structures. `jax.scipy.sparse.linalg.cg` calls the limits `tol` and `maxiter`, and also takes a
    start, an absolute tolerance and a preconditioner.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> matrix = tf.constant([[4.0, 1.0], [1.0, 3.0]])
    >>> u = cg.linear.cg(lambda u: tf.linalg.matvec(matrix, u), tf.constant([1.0, 2.0]))
    >>> [round(float(value), 4) for value in u]
    [0.0909, 0.6364]

    Args:
      operator: Applies the matrix to what has the structure and shapes of `right`.
      right: The right-hand side: a Tensor, or a structure of Tensors of one floating-point dtype.
      tolerance: The residual that ends it, relative to the right-hand side. In 16 bits, at least 4 roundings (0.004 in
        float16, 0.03 in bfloat16); the sums are in float32.
      max_iterations: The largest number of iterations.

    Returns:
      The solution, in the structure of `right`.

    Raises:
      TypeError: `operator` is not callable, or `right` has not one floating-point dtype.
      ValueError: An option is out of range, or the operator returns another structure, dtype or shape.

    Hestenes and Stiefel, "Methods of Conjugate Gradients for Solving Linear Systems", 1952.
    """
    check_limits(_API, tolerance, max_iterations=max_iterations)
    system = VectorSystem(_API, operator, right)
    if system.right.dtype.is_complex:
        raise TypeError(
            f"{_API}: right is complex; expected a real system, since TensorFlow's function takes no other, got "
            f"{system.right.dtype.name}. Use linear.gmres."
        )
    with tf.name_scope("linear_cg"):
        result = tf.linalg.experimental.conjugate_gradient(
            _Operator(system), system.right, tol=system.reachable(tolerance), max_iter=max_iterations
        )
        return system.unpack(result.x)


class _Operator(tf.linalg.LinearOperator):
    """The system as TensorFlow's function takes it."""

    def __init__(self, system: VectorSystem) -> None:
        super().__init__(system.right.dtype, is_self_adjoint=True, is_positive_definite=True, parameters={})
        self._system = system

    def _shape(self) -> tf.TensorShape:
        size = self._system.right.shape[0]
        return tf.TensorShape([size, size])

    def _shape_tensor(self) -> tf.Tensor:
        size = tf.shape(self._system.right)[0]
        return tf.stack([size, size])

    def _matmul(self, x: tf.Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> tf.Tensor:
        return self._system.matvec(x[:, 0])[:, None]  # TensorFlow's function calls it with one column.
