"""`linear.cg`: conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, tf_internal
from tf_cg_ops._src.core.types import Structure
from tf_cg_ops._src.linear.solution import NAME_THE_OPTIONS, Matrix, Solver, dot, norm, normalized

_API = "linear.cg"


@tf_internal.autograph_artifact
@misplaced_calls.explains(_API, NAME_THE_OPTIONS)
def cg(
    A: Callable[[Structure], Structure],  # noqa: N803 - the name in SciPy and JAX
    b: Structure,
    x0: Structure | None = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Callable[[Structure], Structure] | None = None,  # noqa: N803
) -> Structure:
    """Solves `A(x) = b` by conjugate gradients, for a symmetric or Hermitian positive definite `A`.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> matrix = tf.constant([[4.0, 1.0], [1.0, 3.0]])
    >>> x = cg.linear.cg(lambda u: tf.linalg.matvec(matrix, u), tf.constant([1.0, 2.0]))
    >>> [round(float(value), 4) for value in x]
    [0.0909, 0.6364]

    For any other `A`, use `tf_cg_ops.linear.gmres`. It stops when `norm(b - A(x)) <= max(tol * norm(b), atol)`. If it
    doesn't get there, you get an error and not a wrong `x`; under XLA, `x` and its gradients are nan. The gradient is

        db = u    where    A^H(u) = dy

    What `A` reads gets gradients, too; `x0` and `M` get none. The guide "Solvers and black boxes" has the derivatives,
    costs and limits, and shows `cg` as `linear_solve` of `tf_cg_ops.implicit_root`.

    Args:
      A: A linear function that takes and returns the structure, shapes and dtype of `b`.
      b: The right-hand side: a Tensor, or a structure of Tensors, of one floating-point or complex dtype.
      x0: Where to start, in the structure of `b`; zeros by default.
      tol: A tolerance relative to the norm of `b`. In 16 bits at least 0.004 (float16) or 0.03 (bfloat16).
      atol: An absolute tolerance, whatever the norm of `b` is.
      maxiter: The largest number of iterations; by default 10 times the number of unknowns.
      M: A preconditioner: a positive definite linear function like `A` that approximates its inverse.

    Returns:
      The solution, in the structure of `b`.

    Raises:
      TypeError: An argument has the wrong type; `b`, `x0` and the results of `A` and `M` do not have one floating-point
        or complex dtype.
      ValueError: An option is out of range; `x0` or a result of `A` or `M` has another structure or shape.
      tf.errors.InvalidArgumentError: The solver does not converge, `x` overflows, or `A` is not symmetric positive
        definite.

    Differs from `tf.linalg.experimental.conjugate_gradient`, `jax.scipy.sparse.linalg.cg` and `scipy.sparse.linalg.cg`:
    they leave it to you to check the result. The arguments are JAX's and SciPy's.

    Source: Hestenes and Stiefel, "Methods of Conjugate Gradients for Solving Linear Systems", 1952.
    """
    solver = Solver(
        _API,
        _correct,
        is_for_hermitian=True,
        unsuitable="A must be symmetric (Hermitian) and positive definite, and so must M, but they are not. Use "
        "linear.gmres.",
        iterations="iterations",
        advice="Raise maxiter or tol, pass a preconditioner M, or compute in float64. Is A symmetric positive "
        "definite? Otherwise use linear.gmres. If the norm is inf or nan, A(x) overflows, or A or b holds inf or nan.",
        tol=tol,
        atol=atol,
        maxiter=maxiter,
    )
    with tf.name_scope("linear_cg"):
        return solver.solve(A, b, x0, M)


def _correct(
    matrix: Matrix, residual: tf.Tensor, limit: tf.Tensor, maxiter: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Conjugate gradients from zero. Returns the solution for this residual."""
    dtype = residual.dtype

    def goes_on(x: Any, residual: Any, direction: Any, gamma: Any, count: Any, is_definite: Any) -> Any:
        return is_definite & (norm(residual) > limit) & (count < maxiter)

    def advance(x: Any, residual: Any, direction: Any, gamma: Any, count: Any, is_definite: Any) -> Any:
        # Normalized, so that the products are the same at every scale of the matrix and of the residual.
        unit, length = normalized(direction)
        product, size = normalized(matrix.apply(unit))
        curvature = dot(unit, product)
        # With nan this stays True, because then the numbers are wrong and not the matrix.
        is_definite = ~((curvature <= 0) | (gamma <= 0))
        step = tf.where(is_definite, gamma / curvature / length, tf.zeros_like(gamma))
        x += tf.cast(step / size, dtype) * unit
        residual -= tf.cast(step, dtype) * product
        preconditioned = matrix.precondition(residual)
        before, gamma = gamma, dot(residual, preconditioned)
        direction = preconditioned + tf.cast(gamma / before, dtype) * direction
        return x, residual, direction, gamma, count + 1, is_definite

    direction = matrix.precondition(residual)
    start = (
        tf.zeros_like(residual),
        residual,
        direction,
        dot(residual, direction),
        tf.zeros_like(maxiter),
        tf.constant(True),
    )
    x, _, _, _, count, is_definite = tf.while_loop(goes_on, advance, start)
    return x, count, is_definite
