"""`linear.gmres`: the generalised minimal residual method, with restarts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.linear.system import VectorSystem, check_limits, norm

_API = "linear.gmres"


@tf_internal.autograph_artifact
def gmres(
    operator: Callable[[Any], Any], right: Any, *, tolerance: float = 1e-6, restart: int = 20, max_restarts: int = 50
) -> Any:
    """Solves `operator(u) = right` by GMRES, for any invertible operator.

    The operator stands for a matrix that is never made. Each cycle applies it `restart + 1` times and keeps as many
    vectors; it finds the `u` with the smallest residual in the space that these span. Cycles end when the residual is
    smaller than `tolerance` times the right-hand side, or after `max_restarts`.

    As `linear_solve` of `tf_cg_ops.implicit_root` it fits every Jacobian. For one that is symmetric and positive
    definite, `tf_cg_ops.linear.cg` needs less memory. Set options by `functools.partial`.

    Compared with `jax.scipy.sparse.linalg.gmres`: the same method, with the tolerance relative to the right-hand side.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> matrix = tf.constant([[0.0, 2.0], [-1.0, 3.0]])
    >>> u = cg.linear.gmres(lambda u: tf.linalg.matvec(matrix, u), tf.constant([2.0, 5.0]))
    >>> [round(float(value), 4) for value in u]
    [-2.0, 1.0]

    Args:
      operator: Applies the matrix to what has the structure and shapes of `right`.
      right: The right-hand side: a Tensor, or a structure of Tensors of one floating-point or complex dtype.
      tolerance: The residual that ends it, relative to the right-hand side. In 16 bits, at least 4 roundings (0.004 in
        float16, 0.03 in bfloat16); the sums are in float32.
      restart: The number of directions in a cycle.
      max_restarts: The largest number of cycles.

    Returns:
      The solution, in the structure of `right`.

    Raises:
      TypeError: `operator` is not callable, or `right` has not one floating-point or complex dtype.
      ValueError: An option is out of range, or the operator returns another structure, dtype or shape.

    Saad and Schultz, "GMRES: A Generalized Minimal Residual Algorithm for Solving Nonsymmetric Linear Systems", 1986.
    """
    check_limits(_API, tolerance, restart=restart, max_restarts=max_restarts)
    system = VectorSystem(_API, operator, right)
    with tf.name_scope("linear_gmres"):
        enough = tf.cast(system.reachable(tolerance), system.right.dtype.real_dtype) * norm(system.right)

        def goes_on(cycle: Any, _: Any, residual: Any) -> Any:
            return (cycle < max_restarts) & (norm(residual) > enough)

        def step(cycle: Any, u: Any, residual: Any) -> Any:
            u += _correction(system, residual, restart)
            return cycle + 1, u, system.right - system.matvec(u)

        start = (tf.constant(0), tf.zeros_like(system.right), system.right)
        _, u, _ = tf.while_loop(goes_on, step, start, maximum_iterations=max_restarts)
        return system.unpack(u)


def _correction(system: VectorSystem, residual: tf.Tensor, restart: int) -> tf.Tensor:
    """The vector in the Krylov space of the residual that makes it smallest, by Arnoldi's iteration."""
    dtype, size = residual.dtype, tf.shape(residual)[0]
    length = norm(residual)
    basis = tf.concat([residual[None] / tf.cast(length, dtype), tf.zeros(tf.stack([restart, size]), dtype)], 0)
    basis = tf.ensure_shape(basis, [restart + 1, residual.shape[0]])

    def extend(k: Any, basis: Any, columns: Any) -> Any:
        vector = system.matvec(basis[k])
        column = tf.zeros([restart + 1], dtype)
        for _ in range(2):  # Once more against rounding: the basis stays orthogonal.
            projections = tf.linalg.matvec(tf.math.conj(basis), vector)
            vector -= tf.linalg.matvec(basis, projections, transpose_a=True)
            column += projections
        rest = norm(vector)
        # The space is complete if nothing is left: further vectors and columns are zero.
        is_new = rest > _epsilon(dtype) * norm(column)
        rest, divisor = (tf.where(is_new, rest, tf.fill([], tf.cast(other, rest.dtype))) for other in (0, 1))
        vector = tf.where(is_new, vector / tf.cast(divisor, dtype), tf.zeros_like(vector))
        column = tf.tensor_scatter_nd_update(column, [[k + 1]], [tf.cast(rest, dtype)])
        basis = tf.tensor_scatter_nd_update(basis, [[k + 1]], vector[None])
        return k + 1, basis, tf.tensor_scatter_nd_update(columns, [[k]], column[None])

    start = (tf.constant(0), basis, tf.zeros([restart, restart + 1], dtype))
    _, basis, columns = tf.while_loop(lambda k, *_: k < restart, extend, start, maximum_iterations=restart)
    weights = _least_squares(tf.transpose(columns), tf.cast(length, dtype))
    return tf.linalg.matvec(basis[:restart], weights, transpose_a=True)


def _least_squares(matrix: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
    """The `y` that makes `length * e1 - matrix y` smallest, with zeros for the columns that are zero."""
    q, r = tf.linalg.qr(matrix)
    right = length * tf.math.conj(q[0])
    diagonal = tf.linalg.diag_part(r)
    size = tf.abs(diagonal)
    is_zero = size <= _epsilon(matrix.dtype) * tf.reduce_max(size)
    r = tf.linalg.set_diag(r, tf.where(is_zero, tf.ones_like(diagonal), diagonal))
    right = tf.where(is_zero, tf.zeros_like(right), right)
    return tf.linalg.triangular_solve(r, right[:, None], lower=False)[:, 0]


def _epsilon(dtype: tf.DType) -> float:
    """Below this fraction a length is rounding."""
    return 10 * float(np.finfo(dtype.real_dtype.as_numpy_dtype).eps)
