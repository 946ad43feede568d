"""The common part of both solvers: they refine and check the solution, and give it its derivatives."""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.linear.equations import Equations, Point, with_derivative
from tf_cg_ops._src.linear.system import VectorSystem, norm

_Apply = Callable[[tf.Tensor], tf.Tensor]
# The tolerance of a gradient, relative to its size, if the user asked for an absolute tolerance of the value.
_TOL_OF_GRADIENT = 1e-5

_caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="")


@contextlib.contextmanager
def called_by(caller: str) -> Iterator[None]:
    """Puts the caller's name before the errors of systems that are not solved."""
    token = _caller.set(f"{caller}: ")
    try:
        yield
    finally:
        _caller.reset(token)


@dataclasses.dataclass(frozen=True)
class Method:
    """An iterative method.

    Attributes:
      api: The public name of the solver.
      correct: Takes a matrix, a residual, the norm to reach and the number of iterations that are left. Returns an
        approximate solution for the residual, the number of its iterations, and whether the matrix suits the method.
      is_for_hermitian: Whether a matrix that suits the method is its own adjoint.
      unsuitable: The error for a matrix that does not suit the method.
      iterations: What `maxiter` counts.
      advice: What the user can do if it does not converge.
    """

    api: str
    correct: Callable[["Matrix", tf.Tensor, tf.Tensor, Any], tuple[tf.Tensor, Any, Any]]
    is_for_hermitian: bool
    unsuitable: str
    iterations: str
    advice: str


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A matrix and an approximation of its inverse, as functions of vectors."""

    apply: _Apply
    inverse: _Apply | None
    dtype: tf.DType  # Of the user's numbers; the vectors can have a wider one.
    note: str = ""  # For messages.

    def precondition(self, vector: tf.Tensor) -> tf.Tensor:
        """The product with the approximation of the inverse."""
        return vector if self.inverse is None else self.inverse(vector)


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of both solvers."""

    tol: float | tf.Tensor  # A Tensor for a gradient.
    atol: float
    maxiter: int | None


def solve(method: Method, system: VectorSystem, options: Options) -> Any:
    """The solution in the structure of `b`, checked, with its derivatives."""
    matrix = Matrix(system.apply, system.precondition, system.dtype)
    options = dataclasses.replace(options, tol=system.reachable(options.tol))
    return system.unpack(_solve(method, matrix, options, system.b, system.x0))


def _solve(method: Method, matrix: Matrix, options: Options, b: tf.Tensor, x0: tf.Tensor | None = None) -> tf.Tensor:
    """The solution as a vector, checked, with its derivatives."""
    x, relative, guard = _constant_solution(method, matrix, options, tf.stop_gradient(b), x0)
    if not tf.executing_eagerly() or tf_internal.could_possibly_record():
        x = _with_derivatives(method, matrix, Options(relative, 0.0, options.maxiter), b, x)
    # A product, so that without a solution the gradient is nan, too.
    return x * tf.cast(guard, b.dtype)


def _with_derivatives(method: Method, matrix: Matrix, options: Options, b: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """The solution `x`, a constant, with the derivatives of the exact solution.

    Differentiating the iterations would be wrong if they end early, for example if `b` is an eigenvector.
    """
    wording = without_gradient_function(method.api, differentiated="function A")
    equations = Equations(wording, lambda unknowns, inputs: matrix.apply(unknowns[0]) - inputs[0], [x], [b])
    inverse = None
    if matrix.inverse is not None:
        inverse = Equations(wording, lambda unknowns, _: matrix.precondition(unknowns[0]), [x])

    def value(function: Equations, values: list[tf.Tensor], vector: tf.Tensor) -> tf.Tensor:
        return Point(function, [vector], values).value()

    def transposed(noun: str, point: Point, vector: tf.Tensor, otherwise: _Apply | None) -> tf.Tensor:
        (product,) = point.by_unknowns(vector)
        if product is not None:
            return product
        if otherwise is not None:
            return otherwise(vector)
        raise ValueError(
            f"{method.api}: {noun} must have a derivative, since a gradient applies its transpose, but TensorFlow "
            "finds none. Compute with TensorFlow operations, and call NumPy through tf_cg_ops.numpy_function."
        )

    precondition: _Apply | None = None if inverse is None else functools.partial(value, inverse, inverse.values)

    def apply_at(point: Point) -> _Apply:
        return functools.partial(value, equations, [tf.zeros_like(b), *point.values[1:]])

    def solve_transposed(point: Point, x: tf.Tensor, dx: tf.Tensor) -> tf.Tensor:
        inverse_transposed = precondition
        if inverse is not None and not method.is_for_hermitian:
            at_x = Point(inverse, [x], inverse.values)
            inverse_transposed = functools.partial(transposed, "M", at_x, otherwise=None)
        otherwise = apply_at(point) if method.is_for_hermitian else None
        apply = functools.partial(transposed, "A", point, otherwise=otherwise)
        note = " of the gradient, whose system has the transpose of A"
        return _solve(method, Matrix(apply, inverse_transposed, matrix.dtype, note), options, dx)

    def solve_forward(point: Point, right: tf.Tensor) -> tf.Tensor:
        return _solve(method, Matrix(apply_at(point), precondition, matrix.dtype, " of the tangent"), options, right)

    return with_derivative(wording, method.api, equations, x, lambda x: [x], solve_transposed, solve_forward)


def _constant_solution(
    method: Method, matrix: Matrix, options: Options, b: tf.Tensor, x0: tf.Tensor | None
) -> tuple[tf.Tensor, float | tf.Tensor, tf.Tensor]:
    """Returns the solution, its relative tolerance, and the number 1, or nan under XLA if there is no solution."""
    real = b.dtype.real_dtype
    # Scaled, so that squares do not become zero or infinite.
    largest = tf.reduce_max(tf.concat([tf.abs(b), tf.zeros([1], real)], 0))
    scale = tf.where((largest > 0) & tf.math.is_finite(largest), largest, tf.ones_like(largest))
    factor = tf.cast(scale, b.dtype)
    size = norm(b / factor)
    epsilon = float(np.finfo(real.as_numpy_dtype).eps)
    limit = tf.maximum(tf.cast(options.tol, real) * size, tf.cast(options.atol, real) / scale)
    start = None if x0 is None else tf.stop_gradient(x0) / factor
    x, length, before, count, is_suitable = _iterate(method, matrix, b / factor, start, limit, options.maxiter)
    x, length = tf.stop_gradient(x * factor), tf.stop_gradient(length)
    largest = tf.reduce_max(tf.abs(x))
    fits = largest <= tf.constant(matrix.dtype.real_dtype.max, real)
    has_converged = is_suitable & tf.math.is_finite(length) & (length <= limit)
    is_solved = has_converged & fits
    # The residual has stopped shrinking, or the rest of it is rounding.
    is_rounding = (length >= before) & (length <= epsilon**0.5 * size) | (length <= 64 * epsilon * size)
    is_rounding &= is_suitable & ~has_converged
    subject = f"{_caller.get()}{method.api}"

    def not_converged(advice: str) -> list[Any]:
        wanted = f"= max(tol * norm(b), atol){matrix.note}. {advice} Number of {method.iterations}:"
        start = f"{subject} did not converge: norm(b - A(x)) is"
        return [start, length * scale, "and must be at most", limit * scale, wanted, count]

    too_small = "Rounding allows no smaller residual: raise tol or atol"
    too_small += "." if matrix.dtype.real_dtype == tf.float64 else ", or compute in float64."
    unsuitable = [f"{subject}: {method.unsuitable} Number of iterations until this showed:", count]
    too_large = [
        f"{subject}: the solution{matrix.note} must fit in {matrix.dtype.name}. Scale b, or compute in a dtype with a "
        "larger range. The largest element is",
        largest,
    ]
    guard = _guard(
        real,
        is_solved,
        (has_converged | ~is_suitable | is_rounding, not_converged(method.advice)),
        (~is_rounding, not_converged(too_small)),
        (is_suitable, unsuitable),
        (is_solved | ~has_converged, too_large),
    )
    relative = options.tol
    if options.atol > 0:
        relative = tf.where(size > 0, limit / size, tf.fill([], tf.constant(_TOL_OF_GRADIENT, real)))
        relative = tf.minimum(relative, max(options.tol, _TOL_OF_GRADIENT))
    return x, relative, guard


def _iterate(
    method: Method, matrix: Matrix, b: tf.Tensor, x0: tf.Tensor | None, limit: tf.Tensor, maxiter: int | None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The solution, the norms of its last two residuals, the number of iterations, whether the matrix suits the method.

    The method keeps its own residual, which drifts away from the true one by rounding. So it is restarted from the true
    residual until that is small enough.
    """
    if tf_internal.could_possibly_record():
        # Otherwise TensorFlow would keep every iteration for higher derivatives, and XLA cannot compile that.
        inverse = matrix.inverse and _recorded(matrix.inverse)
        without = dataclasses.replace(matrix, apply=_recorded(matrix.apply), inverse=inverse)
        with tf_internal.stop_recording():
            return _iterate(method, without, b, x0, limit, maxiter)
    if maxiter is None:
        size = b.shape[0]
        limit_of_count = tf.size(b, tf.int64) * 10 if size is None else tf.constant(10 * size, tf.int64)
    else:
        limit_of_count = tf.constant(maxiter, tf.int64)
    if x0 is None:
        x, residual = tf.zeros_like(b), b
    else:
        x = tf.where(norm(b) > 0, x0, tf.zeros_like(b))
        residual = b - matrix.apply(x)

    def goes_on(x: Any, residual: Any, length: Any, before: Any, count: Any, is_suitable: Any) -> Any:
        return is_suitable & (length > limit) & (length < before) & (count < limit_of_count)

    def step(x: Any, residual: Any, length: Any, before: Any, count: Any, is_suitable: Any) -> Any:
        correction, more, is_suitable = method.correct(matrix, residual, limit, limit_of_count - count)
        x += correction
        residual = b - matrix.apply(x)
        return x, residual, norm(residual), length, count + more, is_suitable

    length = norm(residual)
    before = tf.fill([], tf.constant(np.inf, length.dtype))
    start = (x, residual, length, before, tf.constant(0, tf.int64), tf.constant(True))
    x, _, length, before, count, is_suitable = tf.while_loop(goes_on, step, start)
    return x, length, before, count, is_suitable


def _recorded(function: _Apply) -> _Apply:
    """The user's function, in which tapes that it opens record."""

    def recorded(vector: tf.Tensor) -> tf.Tensor:
        with tf_internal.resume_recording():
            return function(vector)

    return recorded


def _guard(dtype: tf.DType, holds: tf.Tensor, *checks: tuple[tf.Tensor, list[Any]]) -> tf.Tensor:
    """One if `holds`; otherwise the error of the check that fails, or nan under XLA, which drops checks."""
    if tf.executing_eagerly():
        for check, parts in checks:
            if not check:
                words = (part if isinstance(part, str) else f"{part.numpy():.3g}" for part in parts)
                raise tf.errors.InvalidArgumentError(None, None, " ".join(words))
        return tf.ones([], dtype)
    guard = tf.where(holds, tf.ones([], dtype), tf.fill([], tf.constant(np.nan, dtype)))
    if tf_internal.is_traced_for_xla(tf.compat.v1.get_default_graph()):
        return guard
    # All strings here are constants: with others, XLA could not compile a function around this one.
    with tf.control_dependencies([tf.debugging.Assert(check, parts) for check, parts in checks]):
        return tf.identity(guard)
