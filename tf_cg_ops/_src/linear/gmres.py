"""`linear.gmres`: the generalised minimal residual method, with restarts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, tf_internal
from tf_cg_ops._src.core.types import Structure
from tf_cg_ops._src.linear.packing import ROUNDING
from tf_cg_ops._src.linear.solution import NAME_THE_OPTIONS, Matrix, Solver, check_count, norm, normalized

_API = "linear.gmres"


@tf_internal.autograph_artifact
@misplaced_calls.explains(_API, NAME_THE_OPTIONS)
def gmres(
    A: Callable[[Structure], Structure],  # noqa: N803 - the name in SciPy and JAX
    b: Structure,
    x0: Structure | None = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    restart: int = 20,
    maxiter: int | None = None,
    M: Callable[[Structure], Structure] | None = None,  # noqa: N803
) -> Structure:
    """Solves `A(x) = b` by GMRES, for any invertible `A`.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> matrix = tf.constant([[0.0, 2.0], [-1.0, 3.0]])
    >>> x = cg.linear.gmres(lambda u: tf.linalg.matvec(matrix, u), tf.constant([2.0, 5.0]))
    >>> [round(float(value), 4) for value in x]
    [-2.0, 1.0]

    It works like `tf_cg_ops.linear.cg`, with the same shapes, dtypes, tolerances, gradients and errors, but for a
    symmetric positive definite `A`, `linear.cg` needs less memory. Only these arguments differ:

    - `restart` is the number of directions in a cycle, at most the number of unknowns. A cycle keeps `restart + 1`
      vectors.
    - `maxiter` is the largest number of cycles, by default 10 times the number of unknowns. The solver also stops after
      a cycle that makes the residual no smaller.
    - `M` is any linear function like `A` that approximates its inverse. The gradient solves `A^H(u) = dy` with the
      transposes of `A` and `M`, so both need a derivative; without one you get a ValueError.

    Differs from `jax.scipy.sparse.linalg.gmres` and `scipy.sparse.linalg.gmres`: it checks the result. `M` is on the
    right, so `tol` is about the residual itself.

    Source: Saad and Schultz, "GMRES: A Generalized Minimal Residual Algorithm for Solving Nonsymmetric Linear Systems",
    1986.
    """
    check_count(_API, "restart", restart)
    solver = Solver(
        _API,
        functools.partial(_correct, restart),
        is_for_hermitian=False,
        unsuitable="",
        iterations="cycles",
        advice="Raise maxiter, restart or tol, pass a preconditioner M, or compute in float64. If that does not help, "
        "A is nearly singular, or it is not linear. If the norm is inf or nan, A(x) overflows, or A or b holds inf or "
        "nan.",
        tol=tol,
        atol=atol,
        maxiter=maxiter,
    )
    with tf.name_scope("linear_gmres"):
        return solver.solve(A, b, x0, M)


def _correct(
    restart: int, matrix: Matrix, residual: tf.Tensor, limit: tf.Tensor, maxiter: tf.Tensor
) -> tuple[tf.Tensor, int, bool]:
    """One cycle of Arnoldi's iteration. Returns the vector in the Krylov space that makes the residual smallest."""
    dtype, number = residual.dtype, tf.shape(residual)[0]
    if residual.shape[0] is not None:
        restart = max(1, min(restart, residual.shape[0]))
    length = norm(residual)
    basis = tf.concat([residual[None] / tf.cast(length, dtype), tf.zeros(tf.stack([restart, number]), dtype)], 0)
    basis = tf.ensure_shape(basis, [restart + 1, residual.shape[0]])

    def extend(k: Any, basis: Any, columns: Any) -> Any:
        vector, size = normalized(matrix.apply(matrix.precondition(basis[k])))
        column = tf.zeros([restart + 1], dtype)
        for _ in range(2):  # Twice, because rounding leaves the basis not quite orthogonal.
            projections = tf.linalg.matvec(tf.math.conj(basis), vector)
            vector -= tf.linalg.matvec(basis, projections, transpose_a=True)
            column += projections
        rest = norm(vector)
        # If nothing is left, the space is complete, and the remaining vectors and columns are zero.
        is_new = rest > _epsilon(dtype) * norm(column)
        rest, divisor = (tf.where(is_new, rest, tf.fill([], tf.cast(other, rest.dtype))) for other in (0, 1))
        vector = tf.where(is_new, vector / tf.cast(divisor, dtype), tf.zeros_like(vector))
        column = tf.tensor_scatter_nd_update(column, [[k + 1]], [tf.cast(rest, dtype)])
        basis = tf.tensor_scatter_nd_update(basis, [[k + 1]], vector[None])
        return k + 1, basis, tf.tensor_scatter_nd_update(columns, [[k]], column[None] * tf.cast(size, dtype))

    start = (tf.constant(0), basis, tf.zeros([restart, restart + 1], dtype))
    _, basis, columns = tf.while_loop(lambda k, *_: k < restart, extend, start, maximum_iterations=restart)
    weights = _least_squares(tf.transpose(columns), tf.cast(length, dtype))
    return matrix.precondition(tf.linalg.matvec(basis[:restart], weights, transpose_a=True)), 1, tf.constant(True)


def _least_squares(matrix: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
    """The `y` that makes `length * e1 - matrix y` smallest; it is zero where a column of the matrix is."""
    matrix, scale = normalized(matrix)
    q, r = tf.linalg.qr(matrix)
    right = length * tf.math.conj(q[0])
    diagonal = tf.linalg.diag_part(r)
    size = tf.abs(diagonal)
    is_zero = size <= _epsilon(matrix.dtype) * tf.reduce_max(size)
    r = tf.linalg.set_diag(r, tf.where(is_zero, tf.ones_like(diagonal), diagonal))
    right = tf.where(is_zero, tf.zeros_like(right), right)
    return tf.linalg.triangular_solve(r, right[:, None], lower=False)[:, 0] / tf.cast(scale, matrix.dtype)


def _epsilon(dtype: tf.DType) -> float:
    """A length below this fraction of another one is rounding error."""
    return 10 * ROUNDING[dtype.real_dtype]
