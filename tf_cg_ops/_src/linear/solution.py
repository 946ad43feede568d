"""The common part of both solvers: they refine and check the solution, and give it its derivatives."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import tapes, tf_internal
from tf_cg_ops._src.custom_gradient.call import GradFn, call_with_gradient
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.linear.system import VectorSystem, norm

_Apply = Callable[[tf.Tensor], tf.Tensor]
# The tolerance of a gradient, relative to its size, if the user asked for an absolute tolerance of the value.
_TOL_OF_GRADIENT = 1e-5
# The number of derivatives with respect to Tensors that A reads. Each one costs one more application of A.
_ORDERS = 2

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


@dataclasses.dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix and an approximation of its inverse, as functions of vectors, and the adjoint of the matrix.

    `exact` applies the matrix, too. The iterations use `apply`, which is cheaper, but a different matrix if the one of
    `linear.cg` is not Hermitian after all.
    """

    note: str  # For messages.
    dtype: tf.DType  # Of the user's numbers; the vectors can have a wider one.
    apply: _Apply
    precondition: _Apply
    exact: _Apply
    adjoint: Callable[[], "Matrix"]


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of both solvers."""

    tol: Any  # A number; for a gradient also a Tensor.
    atol: float
    maxiter: int | None


def solve(method: Method, system: VectorSystem, options: Options) -> Any:
    """The solution in the structure of `b`, checked, with its derivatives."""
    apply, precondition, note = (
        system.apply,
        system.precondition,
        " of the gradient, whose system has the transpose of A",
    )
    exact = apply
    if method.is_for_hermitian:
        transposed = _adjoint_of(apply, apply)
        if _can_have_derivatives() and _gradient_of(apply, system.b, tf.zeros_like(system.b)) is None:
            exact = transposed = _self_adjoint(method.api, apply)
        adjoint = Matrix(note, system.dtype, apply, precondition, transposed, lambda: matrix)
    else:
        transposed, of_precondition = (
            _adjoint_of(f, _without_derivative(method.api, noun)) for noun, f in (("A", apply), ("M", precondition))
        )
        adjoint = Matrix(note, system.dtype, transposed, of_precondition, transposed, lambda: matrix)
    matrix = Matrix("", system.dtype, apply, precondition, exact, lambda: adjoint)
    options = dataclasses.replace(options, tol=system.reachable(options.tol))
    return system.unpack(_solve(method, matrix, options, system.b, system.x0)[0])


def _can_have_derivatives() -> bool:
    return not tf.executing_eagerly() or tf_internal.could_possibly_record()


def _self_adjoint(api: str, apply: _Apply) -> _Apply:
    """A function without a derivative in TensorFlow, with itself as its adjoint."""

    def without_value(vector: tf.Tensor) -> Any:
        return tf.zeros_like(vector), GradFn(exact, tangents=lambda tangents, *_: [exact(tangents[0])])

    without_value.__qualname__ = api
    wording = without_gradient_function(api, differentiated="function A")

    def exact(vector: tf.Tensor) -> tf.Tensor:
        # A sum, because the Tensors that A reads can still have derivatives.
        return apply(vector) + call_with_gradient(without_value, [vector], {}, wording=wording)

    return exact


def _gradient_of(function: _Apply, x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor | None:
    return tapes.gradient_of(lambda x, dy: (function(x), dy), x, dy)


def _adjoint_of(function: _Apply, without_derivative: _Apply) -> _Apply:
    def adjoint(vector: tf.Tensor) -> tf.Tensor:
        product = _gradient_of(function, tf.zeros_like(vector), vector)
        return without_derivative(vector) if product is None else product

    return adjoint


def _without_derivative(api: str, noun: str) -> _Apply:
    def fail(vector: tf.Tensor) -> tf.Tensor:
        raise ValueError(
            f"{api}: {noun} must have a derivative, since a gradient applies its transpose, but TensorFlow finds none. "
            "Compute with TensorFlow operations, and call NumPy through tf_cg_ops.numpy_function."
        )

    return fail


def _solve(
    method: Method, matrix: Matrix, options: Options, b: tf.Tensor, x0: tf.Tensor | None = None, noise: Any = (0.0, 0.0)
) -> tuple[tf.Tensor, tf.Tensor]:
    """The solution as a vector, and the size of its rounding errors.

    The size is two norms for `b - A(x)`. A residual below the first needs no solution; one above the second is more
    than rounding. `noise` is the sum of these norms for `b` itself.
    """
    real, constant = b.dtype.real_dtype, tf.stop_gradient(b)
    # Scaled, so that squares do not become zero or infinite.
    largest = tf.reduce_max(tf.concat([tf.abs(constant), tf.zeros([1], real)], 0))
    scale = tf.where((largest > 0) & tf.math.is_finite(largest), largest, tf.ones_like(largest))
    factor = tf.cast(scale, b.dtype)
    size = norm(constant / factor)
    epsilon = float(np.finfo(real.as_numpy_dtype).eps)
    limit = tf.maximum(tf.cast(options.tol, real) * size, tf.cast(options.atol, real) / scale)
    loose = 10 * limit + epsilon**0.5 * size
    limit = tf.maximum(limit, tf.cast(noise[0], real) / scale)
    start = None if x0 is None else tf.stop_gradient(x0) / factor
    x, length, before, count, is_suitable = _iterate(method, matrix, constant / factor, start, limit, options.maxiter)
    x, length = tf.stop_gradient(x * factor), tf.stop_gradient(length)
    residual = b - matrix.exact(x)
    difference = norm(tf.stop_gradient(residual) / factor)
    largest = tf.reduce_max(tf.abs(x))
    fits = largest <= tf.constant(matrix.dtype.real_dtype.max, real)
    if matrix.exact is not matrix.apply:
        # Only for a solution that has converged and fits the dtype. If rounding alone is as large as the limit, the two
        # products differ by up to twice that.
        is_suitable &= ~(fits & (length <= limit) & (difference > 3 * limit + 32 * epsilon * size))
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
    if _can_have_derivatives():
        if options.atol > 0:
            relative = tf.where(size > 0, limit / size, tf.fill([], tf.constant(_TOL_OF_GRADIENT, real)))
            options = Options(tf.minimum(relative, max(options.tol, _TOL_OF_GRADIENT)), 0.0, options.maxiter)
        x = _with_derivatives(method, matrix, options, b, x, residual)
    rounding = tf.stack([4 * difference + 64 * epsilon * size, loose])
    # A product, so that without a solution the gradient is nan, too.
    return x * tf.cast(guard, b.dtype), tf.stop_gradient(rounding * scale + noise)


def _with_derivatives(
    method: Method, matrix: Matrix, options: Options, b: tf.Tensor, x: tf.Tensor, residual: tf.Tensor
) -> tf.Tensor:
    """The solution `x`, a constant, with the derivatives of the exact solution.

    Differentiating the iterations would be wrong if they end early, for example if `b` is an eigenvector.

    For every y, A^-1 b = y + A^-1 (b - A y). If A^-1 is treated as a constant, the right side has one more correct
    derivative than y, with respect to everything that b and A are computed from. In a gradient of this sum, the terms
    for y cancel up to rounding. The size of that rounding is passed along, so that no system is solved for it.
    """
    wording = without_gradient_function(method.api, differentiated="function A")
    real = b.dtype.real_dtype
    no_noise = tf.zeros([2], real)

    def last(residual: tf.Tensor) -> Any:
        def grad_fn(dx: tf.Tensor, noise: tf.Tensor) -> list[tf.Tensor]:
            is_rounding = ~(norm(tf.stop_gradient(dx)) > noise[1])
            message = (
                f"{method.api}: derivatives with respect to Tensors that A reads work up to order {_ORDERS}, got order "
                f"{_ORDERS + 1}."
            )
            return [tf.zeros_like(dx) * tf.cast(_guard(real, is_rounding, (is_rounding, [message])), dx.dtype)]

        no_tangents = [tf.zeros_like(x), no_noise]
        return (x, no_noise), GradFn(grad_fn, tangents=lambda *_: no_tangents)

    def next_order(y: tf.Tensor, noise: tf.Tensor, residual: tf.Tensor) -> Any:
        def grad_fn(dx: tf.Tensor, noise: tf.Tensor) -> list[tf.Tensor]:
            solution, rounding = _solve(method, matrix.adjoint(), options, dx, noise=noise)
            return [dx, rounding, solution]

        def tangents(of_inputs: list[Any], *_: Any) -> list[tf.Tensor]:
            dy, noise, residual = of_inputs
            solution, rounding = _solve(method, matrix, options, residual, noise=no_noise if noise is None else noise)
            return [solution if dy is None else dy + solution, rounding]

        return (x, no_noise), GradFn(grad_fn, tangents=tangents)

    for function in (last, next_order):
        function.__qualname__ = method.api
    y, noise = call_with_gradient(last, [residual], {}, wording=wording)
    for _ in range(_ORDERS):
        y, noise = call_with_gradient(next_order, [y, noise, b - matrix.exact(y)], {}, wording=wording)
    return y


def _iterate(
    method: Method, matrix: Matrix, b: tf.Tensor, x0: tf.Tensor | None, limit: tf.Tensor, maxiter: int | None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The solution, the norms of its last two residuals, the number of iterations, whether the matrix suits the method.

    The method keeps its own residual, which drifts away from the true one by rounding. So it is restarted from the true
    residual until that is small enough.
    """
    if tf_internal.could_possibly_record():
        # Otherwise TensorFlow would keep every iteration for higher derivatives, and XLA cannot compile that.
        without = dataclasses.replace(
            matrix, apply=_recorded(matrix.apply), precondition=_recorded(matrix.precondition)
        )
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
