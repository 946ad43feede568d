"""`linear.cg`: conjugate gradients."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, tf_internal
from tf_cg_ops._src.linear.solution import Matrix, Method, Options, solve
from tf_cg_ops._src.linear.system import NAME_THE_OPTIONS, VectorSystem, check_options, dot, norm

_API = "linear.cg"


@tf_internal.autograph_artifact
@misplaced_calls.explains(_API, NAME_THE_OPTIONS)
def cg(
    A: Callable[[Any], Any],  # noqa: N803 - the name in SciPy and JAX
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Callable[[Any], Any] | None = None,  # noqa: N803
) -> Any:
    """Solves `A(x) = b` by conjugate gradients, for a symmetric or Hermitian positive definite `A`.

    `A` is a function, so no matrix is made: each iteration applies it once, and four vectors are kept. The solver stops
    when `norm(b - A(x)) <= max(tol * norm(b), atol)`. If it doesn't get there, you get an error and not a wrong `x`;
    under XLA, which drops checks, all numbers of `x` and of its gradients are nan.

    As `linear_solve` of `tf_cg_ops.implicit_root` it fits a symmetric positive definite Jacobian, such as the Hessian
    at a minimum. For any other `A` use `tf_cg_ops.linear.gmres`. Set options by `functools.partial`.

    The gradient is that of the exact solution: it solves one more system, with the transpose of `A`, by the same method
    and options. It applies `A` itself, then checks with the transpose: you get an error if the residual is larger than
    3 times the norm above plus 32 roundings of the norm of the right side, so an `A` that is less asymmetric than that
    goes unnoticed. `b` and what `A` reads have gradients, `x0` and `M` have none. Second derivatives work, but
    not after a SavedModel is loaded; a third one with respect to what `A` reads is an error.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> matrix = tf.constant([[4.0, 1.0], [1.0, 3.0]])
    >>> x = cg.linear.cg(lambda u: tf.linalg.matvec(matrix, u), tf.constant([1.0, 2.0]))
    >>> [round(float(value), 4) for value in x]
    [0.0909, 0.6364]

    Args:
      A: A linear function that takes and returns what has the structure, shapes and dtype of `b`.
      b: The right-hand side: a Tensor, or a structure of Tensors of one floating-point or complex dtype.
      x0: Where to start, like `b`; zeros by default.
      tol: The norm of the residual that is small enough, relative to the norm of `b`. Because of rounding,
        it gets no smaller than about 1e-7 (in float64 1e-16) times the condition number of `A`. In 16 bits, at least 4
        roundings (0.004 in float16, 0.03 in bfloat16); the sums are in float32.
      atol: The norm of the residual that is small enough for any `b`.
      maxiter: The largest number of iterations; 10 times the number of unknowns by default.
      M: A preconditioner: a positive definite linear function like `A` that approximates its inverse.

    Returns:
      The solution, in the structure of `b`.

    Raises:
      TypeError: `A` or `M` is not callable, an option is not a number, `b` holds no floating-point or complex numbers
        of one dtype, or `x0` or the result of `A` or `M` has another dtype.
      ValueError: An option is out of range, or `x0` or the result of `A` or `M` has another structure or shape.
      tf.errors.InvalidArgumentError: At run time: the solver does not converge, the solution is too large for
        the dtype, or `A` is not symmetric positive definite as far as the iterations or a gradient show.

    Compared with TensorFlow: `tf.linalg.experimental.conjugate_gradient` takes a LinearOperator, has no absolute
    tolerance, and does not tell whether it converged. The arguments are those of `jax.scipy.sparse.linalg.cg` and
    `scipy.sparse.linalg.cg`, which also leave it to you to check the result.

    Hestenes and Stiefel, "Methods of Conjugate Gradients for Solving Linear Systems", 1952.
    """
    check_options(_API, tol, atol, maxiter)
    with tf.name_scope("linear_cg"):
        return solve(_METHOD, VectorSystem(_API, A, b, x0, M), Options(tol, atol, maxiter))


def _correct(
    matrix: Matrix, residual: tf.Tensor, limit: tf.Tensor, maxiter: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Conjugate gradients from zero: the solution for this residual."""
    dtype = residual.dtype

    def goes_on(x: Any, residual: Any, direction: Any, gamma: Any, count: Any, is_definite: Any) -> Any:
        return is_definite & (norm(residual) > limit) & (count < maxiter)

    def step(x: Any, residual: Any, direction: Any, gamma: Any, count: Any, is_definite: Any) -> Any:
        product = matrix.apply(direction)
        curvature = dot(direction, product)
        # Not so if they are nan: then the numbers are at fault, not the matrix.
        is_definite = ~((curvature <= 0) | (gamma <= 0))
        length = tf.cast(tf.where(is_definite, gamma / curvature, tf.zeros_like(gamma)), dtype)
        x += length * direction
        residual -= length * product
        preconditioned = matrix.precondition(residual)
        before, gamma = gamma, dot(residual, preconditioned)
        direction = preconditioned + tf.cast(gamma / before, dtype) * direction
        return x, residual, direction, gamma, count + 1, is_definite

    direction = matrix.precondition(residual)
    start = (tf.zeros_like(residual), residual, direction, dot(residual, direction), tf.zeros_like(maxiter), True)
    x, _, _, _, count, is_definite = tf.while_loop(goes_on, step, start)
    return x, count, is_definite


_METHOD = Method(
    _API,
    _correct,
    is_for_hermitian=True,
    unsuitable="A must be symmetric (Hermitian) and positive definite, and so must M, but they are not. Use "
    "linear.gmres.",
    iterations="iterations",
    advice="Raise maxiter or tol, pass a preconditioner M, or compute in float64. Is A symmetric positive definite? "
    "Otherwise use linear.gmres. If the norm is nan, A or b holds nan or inf.",
)
