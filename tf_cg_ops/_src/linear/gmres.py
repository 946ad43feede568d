"""`linear.gmres`: the generalised minimal residual method, with restarts."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, tf_internal
from tf_cg_ops._src.linear.solution import Matrix, Method, Options, solve
from tf_cg_ops._src.linear.system import NAME_THE_OPTIONS, VectorSystem, check_options, norm

_API = "linear.gmres"


@tf_internal.autograph_artifact
@misplaced_calls.explains(_API, NAME_THE_OPTIONS)
def gmres(
    A: Callable[[Any], Any],  # noqa: N803 - the name in SciPy and JAX
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    restart: int = 20,
    maxiter: int | None = None,
    M: Callable[[Any], Any] | None = None,  # noqa: N803
) -> Any:
    """Solves `A(x) = b` by GMRES, for any invertible `A`.

    `A` is a function, so no matrix is made. Each cycle applies it `restart + 1` times, keeps as many vectors, and finds
    the `x` with the smallest residual in the space that these span. The solver stops when
    `norm(b - A(x)) <= max(tol * norm(b), atol)`. If it doesn't get there, you get an error and not a wrong `x`; under
    XLA, which drops checks, all numbers of `x` and of its gradients are nan.

    As `linear_solve` of `tf_cg_ops.implicit_root` it fits every Jacobian. For one that is symmetric and positive
    definite, `tf_cg_ops.linear.cg` needs less memory. Set options by `functools.partial`.

    The gradient is that of the exact solution: it solves one more system, with the transposes of `A` and `M`, by the
    same method and options. TensorFlow finds the transposes, so both must have a derivative. `b` and what `A` reads
    have gradients, `x0` and `M` have none. Second derivatives work, but not after a SavedModel is loaded; a third one
    with respect to what `A` reads is an error.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> matrix = tf.constant([[0.0, 2.0], [-1.0, 3.0]])
    >>> x = cg.linear.gmres(lambda u: tf.linalg.matvec(matrix, u), tf.constant([2.0, 5.0]))
    >>> [round(float(value), 4) for value in x]
    [-2.0, 1.0]

    Args:
      A: A linear function that takes and returns what has the structure, shapes and dtype of `b`.
      b: The right-hand side: a Tensor, or a structure of Tensors of one floating-point or complex dtype.
      x0: Where to start, like `b`; zeros by default.
      tol: The norm of the residual that is small enough, relative to the norm of `b`. Because of rounding,
        it gets no smaller than about 1e-7 (in float64 1e-16) times the condition number of `A`. In 16 bits, at least 4
        roundings (0.004 in float16, 0.03 in bfloat16); the sums are in float32.
      atol: The norm of the residual that is small enough for any `b`.
      restart: The number of directions in a cycle; the number of unknowns if that is smaller.
      maxiter: The largest number of cycles; 10 times the number of unknowns by default. A cycle that makes the residual
        no smaller is the last one.
      M: A preconditioner: a linear function like `A` that approximates its inverse.

    Returns:
      The solution, in the structure of `b`.

    Raises:
      TypeError: `A` or `M` is not callable, an option is not a number, `b` holds no floating-point or complex numbers
        of one dtype, or `x0` or the result of `A` or `M` has another dtype.
      ValueError: An option is out of range, or `x0` or the result of `A` or `M` has another structure or shape. When
        you compute a gradient: `A` or `M` has no derivative.
      tf.errors.InvalidArgumentError: At run time: the solver does not converge, or the solution is too large for
        the dtype.

    Compared with others: the arguments are those of `jax.scipy.sparse.linalg.gmres` and `scipy.sparse.linalg.gmres`,
    which leave it to you to check the result. The preconditioner is on the right, so `tol` is about the residual
    itself. TensorFlow has no such function.

    Saad and Schultz, "GMRES: A Generalized Minimal Residual Algorithm for Solving Nonsymmetric Linear Systems", 1986.
    """
    check_options(_API, tol, atol, maxiter, restart=restart)
    with tf.name_scope("linear_gmres"):
        system = VectorSystem(_API, A, b, x0, M)
        size = system.b.shape[0]
        directions = restart if size is None else max(1, min(restart, size))
        method = Method(
            _API,
            functools.partial(_correct, directions),
            is_for_hermitian=False,
            unsuitable="",
            iterations=f"cycles of {directions} iterations",
            advice="Raise maxiter, restart or tol, pass a preconditioner M, or compute in float64. If that does not "
            "help, A is nearly singular. If the norm is nan, A or b holds nan or inf.",
        )
        return solve(method, system, Options(tol, atol, maxiter))


def _correct(
    restart: int, matrix: Matrix, residual: tf.Tensor, limit: tf.Tensor, maxiter: tf.Tensor
) -> tuple[tf.Tensor, int, bool]:
    """One cycle: the vector in the Krylov space of the residual that makes it smallest, by Arnoldi's iteration."""
    dtype, size = residual.dtype, tf.shape(residual)[0]
    length = norm(residual)
    basis = tf.concat([residual[None] / tf.cast(length, dtype), tf.zeros(tf.stack([restart, size]), dtype)], 0)
    basis = tf.ensure_shape(basis, [restart + 1, residual.shape[0]])

    def extend(k: Any, basis: Any, columns: Any) -> Any:
        vector = matrix.apply(matrix.precondition(basis[k]))
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
    return matrix.precondition(tf.linalg.matvec(basis[:restart], weights, transpose_a=True)), 1, True


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
