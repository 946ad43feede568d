"""The common part of both solvers: they refine and check the solution, and give it its derivatives."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, signature, text, tf_internal
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.linear.equations import Equations, Point, with_derivative
from tf_cg_ops._src.linear.packing import ROUNDING, Packing

_Apply = Callable[[tf.Tensor], tf.Tensor]
# The tolerance of a gradient, relative to its size, if the user asked for an absolute tolerance of the value.
_TOL_OF_GRADIENT = 1e-5

# For calls that do not fit the signature: SciPy calls the tolerance rtol, and JAX takes it by position.
NAME_THE_OPTIONS = "A, b and x0 come first. The relative tolerance is tol; write each option as in tol=1e-5."

_caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="")


@contextlib.contextmanager
def called_by(caller: str) -> Iterator[None]:
    """Puts the caller's name before the errors of systems that are not solved."""
    token = _caller.set(f"{caller}: ")
    try:
        yield
    finally:
        _caller.reset(token)


class Matrix(NamedTuple):
    """A matrix and an approximation of its inverse, as functions of vectors."""

    apply: _Apply
    precondition: _Apply


@dataclasses.dataclass(frozen=True)
class Solver:
    """An iterative method with its options.

    Attributes:
      api: The public name.
      correct: Takes a matrix, a residual, the norm to reach and the number of iterations that are left. Returns an
        approximate solution for the residual, the number of its iterations, and whether the matrix suits the method.
      is_for_hermitian: Whether a matrix that suits the method is its own adjoint.
      unsuitable: The error for a matrix that does not suit the method.
      iterations: What `maxiter` counts.
      advice: What the user can do if it does not converge.
      dtype: The dtype of the user's numbers; vectors can have a wider one.
      note: What is solved, for messages.
      is_linear: Whether the matrix is a derivative, so it is known to be linear.
    """

    api: str
    correct: Callable[[Matrix, tf.Tensor, tf.Tensor, Any], tuple[tf.Tensor, Any, Any]]
    is_for_hermitian: bool
    unsuitable: str
    iterations: str
    advice: str
    tol: Any
    atol: float
    maxiter: int | None
    dtype: tf.DType = tf.float32
    note: str = ""
    is_linear: bool = False

    def solve(self, matrix: Any, b: Any, x0: Any, preconditioner: Any) -> Any:
        """The solution in the structure of `b`, checked, with its derivatives."""
        self._check_options(matrix, preconditioner)
        api = self.api
        packing = Packing(f"{api}: b must be", "b", b, "Convert it with tf.cast.")
        advice = "Return the structure, shapes and dtype of the argument."
        if isinstance(b, (list, tuple)):
            advice += " A list b is a structure of Tensors: for one vector, pass tf.constant(b)."

        def apply(u: tf.Tensor) -> tf.Tensor:
            note = f"{api}: A is called with a value like b. For a matrix, write lambda u: tf.linalg.matvec(A, u)."
            takes = f"{api}: A must take one argument, a value like b"
            product = signature.call(matrix, [packing.unpack(u)], {}, takes, note=note)
            return packing.pack(f"{api}: A must return", product, advice)

        def precondition(u: tf.Tensor) -> tf.Tensor:
            if preconditioner is None:
                return u
            return packing.pack(f"{api}: M must return", preconditioner(packing.unpack(u)), advice)

        advice_for_x0 = "It is a first guess of the solution; write the tolerance as tol=1e-5."
        start = None if x0 is None else packing.pack(f"{api}: x0 must have", x0, advice_for_x0)
        # In 16 bits, the rounding in `A` allows no smaller tolerance.
        tol = max(float(self.tol), 4 * ROUNDING[packing.dtype]) if packing.dtype.size == 2 else float(self.tol)
        solver = dataclasses.replace(self, tol=tol, dtype=packing.dtype)
        return packing.unpack(solver._solve(Matrix(apply, precondition), packing.packed, start))

    def _check_options(self, matrix: Any, preconditioner: Any) -> None:
        """TypeError or ValueError unless the options have the right type and size."""
        api = self.api
        sizes = (("tol", self.tol, 1, "less than 1, relative to norm(b)"), ("atol", self.atol, np.inf, "finite"))
        for name, value, limit, wanted in sizes:
            if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
                raise TypeError(f"{api}: {name} must be a number such as 1e-5, got {text.describe(value)}.")
            if not 0 <= value < limit:
                raise ValueError(f"{api}: {name} must be at least 0 and {wanted}, got {value!r}.")
        if self.maxiter is not None:
            check_count(api, "maxiter", self.maxiter)
        for name, function, example in (("A", matrix, "matrix"), ("M", preconditioner, "inverse")):
            if not callable(function) and not (name == "M" and function is None):
                is_operator = isinstance(function, tf.linalg.LinearOperator)
                remedy = "its method matvec" if is_operator else f"lambda u: tf.linalg.matvec({example}, u)"
                noun = "a function that takes and returns the structure of b"
                misplaced_calls.check_function(api, name, function, f"Pass {remedy}.", noun)

    def _solve(self, matrix: Matrix, b: tf.Tensor, x0: tf.Tensor | None = None) -> tf.Tensor:
        """The solution as a vector, checked, with its derivatives."""
        x, relative, guard = self._solve_constant(matrix, tf.stop_gradient(b), x0)
        if not tf.executing_eagerly() or tf_internal.could_possibly_record():
            x = dataclasses.replace(self, tol=relative, atol=0.0)._with_derivatives(matrix, b, x)
        # A product, so that without a solution the gradient is nan, too.
        return x * tf.cast(guard, b.dtype)

    def _with_derivatives(self, matrix: Matrix, b: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        """The solution `x`, a constant, with the derivatives of the exact solution, whose systems this solver solves.

        Differentiating the iterations would be wrong if they end early, for example if `b` is an eigenvector.
        """
        wording = without_gradient_function(self.api, differentiated="function A")
        traced = signature.traced(self.api, matrix.apply, "so that the gradient can apply its transpose", "A")
        equations = Equations(lambda unknowns, inputs: traced(unknowns[0]) - inputs[0], [x], [b])

        def apply_at(point: Point, u: tf.Tensor) -> tf.Tensor:
            return Point(equations, [u], [tf.zeros_like(b), *point.values[1:]]).value()

        def derivative_at(point: Point, zeros: tf.Tensor) -> _Apply:
            bias = apply_at(point, zeros)  # A system with one can have been solved.
            return lambda u: apply_at(point, u) - bias

        def solve_forward(point: Point, right: tf.Tensor) -> tf.Tensor:
            solver = dataclasses.replace(self, note=" of the tangent", is_linear=True)
            return solver._solve(Matrix(derivative_at(point, tf.zeros_like(right)), matrix.precondition), right)

        def solve_transposed(point: Point, x: tf.Tensor, dx: tf.Tensor) -> tf.Tensor:
            def apply(u: tf.Tensor) -> tf.Tensor:
                (product,) = point.by_unknowns(u)
                if product is None and self.is_for_hermitian:
                    return derivative_at(point, tf.zeros_like(u))(u)
                return self._product("A", product)

            def precondition(u: tf.Tensor) -> tf.Tensor:
                if self.is_for_hermitian:
                    return matrix.precondition(u)
                start = tf.zeros_like(u)
                with tf.GradientTape() as tape:
                    tape.watch(start)
                    value = matrix.precondition(start)
                return self._product("M", tape.gradient(value, start, u))

            solver = dataclasses.replace(
                self, note=" of the gradient, whose system has the transpose of A", is_linear=True
            )
            return solver._solve(Matrix(apply, precondition), dx)

        return with_derivative(wording, self.api, equations, x, lambda x: [x], solve_transposed, solve_forward)

    def _product(self, noun: str, product: tf.Tensor | None) -> tf.Tensor:
        if product is None:
            raise ValueError(
                f"{self.api}: {noun} must have a derivative, since a gradient applies its transpose, but TensorFlow "
                "finds none. Compute with TensorFlow operations, and call NumPy through tf_cg_ops.numpy_function."
            )
        return product

    def _solve_constant(
        self, matrix: Matrix, b: tf.Tensor, x0: tf.Tensor | None
    ) -> tuple[tf.Tensor, float | tf.Tensor, tf.Tensor]:
        """Returns the solution, its relative tolerance, and the number 1, or nan under XLA if there is no solution."""
        real = b.dtype.real_dtype
        b, scale = normalized(b)
        factor = tf.cast(scale, b.dtype)
        size = norm(b)
        epsilon = ROUNDING[real]
        limit = tf.maximum(tf.cast(self.tol, real) * size, tf.cast(self.atol, real) / scale)
        start = None if x0 is None else tf.stop_gradient(x0) / factor
        # Recorded iterations would be kept for higher derivatives, and XLA cannot compile that.
        with tf_internal.stop_recording():
            # Rounding would make products with the largest numbers infinite.
            unit = tf.cast(tf.minimum(scale, self.dtype.real_dtype.max / 4), b.dtype)
            x, length, before, count, is_suitable = self._iterate(
                Matrix(*map(_recorded, matrix)), b, unit, start, limit
            )
        # What is lost of elements below the smallest number changes the residual by as much, times the matrix.
        largest = tf.reduce_max(tf.concat([tf.abs(x), tf.zeros([1], real)], 0))
        gain = tf.where(largest > 0, tf.sqrt(tf.cast(tf.size(x), real)) + size / largest, tf.zeros_like(size))
        lost = 16 * _smallest(self.dtype) / scale * gain
        x = tf.stop_gradient(x * factor)
        largest *= scale
        # A nan does not say that the solution is too large.
        fits = ~(largest > tf.constant(self.dtype.real_dtype.max, real))
        has_converged = is_suitable & tf.math.is_finite(length) & (length <= tf.maximum(limit, lost))
        is_solved = has_converged & fits
        # The residual has stopped shrinking, or the rest of it is rounding.
        is_rounding = (length >= before) & (length <= epsilon**0.5 * size) | (length <= 64 * epsilon * size)
        is_rounding &= is_suitable & ~has_converged
        subject = f"{_caller.get()}{self.api}"

        def not_converged(advice: str) -> list[Any]:
            wanted = f" = max(tol * norm(b), atol){self.note}. {advice} Number of {self.iterations}: "
            start = f"{subject} did not converge: norm(b - A(x)) is "
            return [start, length * scale, " and must be at most ", limit * scale, wanted, count]

        too_small = "Rounding allows no smaller residual: raise tol or atol"
        too_small += "." if self.dtype.real_dtype == tf.float64 else ", or compute in float64."
        unsuitable = [f"{subject}: {self.unsuitable} Number of iterations until this showed: ", count]
        too_large = [
            f"{subject}: the solution{self.note} must fit in {self.dtype.name}. Scale b, or compute in a dtype with a "
            "larger range. The largest element is ",
            largest,
        ]
        guard = tf.where(is_solved, tf.ones([], real), tf.fill([], tf.constant(np.nan, real)))
        checks = [
            (fits | ~is_suitable, too_large),
            (has_converged | ~is_suitable | is_rounding, not_converged(self.advice)),
            (~is_rounding, not_converged(too_small)),
            (is_suitable, unsuitable),
        ]
        with tf.control_dependencies(assertions(*checks)):
            guard = tf.identity(guard)
        relative = self.tol
        if self.atol > 0:
            relative = tf.where(size > 0, limit / size, tf.fill([], tf.constant(_TOL_OF_GRADIENT, real)))
            relative = tf.minimum(relative, max(self.tol, _TOL_OF_GRADIENT))
        return x, relative, guard

    def _iterate(
        self, matrix: Matrix, b: tf.Tensor, unit: tf.Tensor, x0: tf.Tensor | None, limit: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """The solution, the norms of its last two residuals, the number of iterations, whether the matrix is suitable.

        The method keeps its own residual, which drifts away from the true one by rounding. So it is restarted from the
        true residual until that is small enough. `b`, `x0` and the solution are in this unit. In it, a function
        that is not linear is another one, so the true residual is computed without it.
        """

        def residual_of(x: tf.Tensor) -> tf.Tensor:
            return b - (matrix.apply(x) if self.is_linear else matrix.apply(x * unit) / unit)

        most = self.maxiter
        if most is None:
            most = 10 * (tf.size(b, tf.int64) if b.shape[0] is None else b.shape[0])
        most = tf.convert_to_tensor(most, tf.int64)
        if x0 is None:
            x = tf.zeros_like(b)
            # If there is nothing to do, this is the only look at `A`.
            residual = b if self.is_linear else tf.cond(norm(b) > limit, lambda: b, lambda: residual_of(x))
        else:
            x = tf.where(norm(b) > 0, x0, tf.zeros_like(b))
            residual = residual_of(x)

        def goes_on(x: Any, residual: Any, length: Any, before: Any, count: Any, is_suitable: Any) -> Any:
            return is_suitable & (length > limit) & (length < before) & (count < most)

        def step(x: Any, residual: Any, length: Any, before: Any, count: Any, is_suitable: Any) -> Any:
            correction, more, is_suitable = self.correct(matrix, residual, limit, most - count)
            x += correction
            residual = residual_of(x)
            return x, residual, norm(residual), length, count + more, is_suitable

        length = norm(residual)
        before = tf.fill([], tf.constant(np.inf, length.dtype))
        start = (x, residual, length, before, tf.constant(0, tf.int64), tf.constant(True))
        x, _, length, before, count, is_suitable = tf.while_loop(goes_on, step, start)
        return x, length, before, count, is_suitable


def assertions(*checks: tuple[tf.Tensor, list[Any]]) -> list[tf.Operation]:
    """Raises InvalidArgumentError for the first check that fails, in a graph by the ops that it returns."""
    if not tf.executing_eagerly():
        if tf_internal.is_traced_for_xla(tf.compat.v1.get_default_graph()):  # It drops them.
            return []
        # All strings are constants: with others, XLA could not compile a function around this one.
        return [tf.debugging.Assert(holds, parts) for holds, parts in checks]
    for holds, parts in checks:
        if not holds:
            words = (part if isinstance(part, str) else f"{part.numpy():.3g}" for part in parts)
            raise tf.errors.InvalidArgumentError(None, None, "".join(words))
    return []


def check_count(api: str, name: str, count: Any) -> None:
    """TypeError or ValueError unless an option is an int of at least 1."""
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)):
        raise TypeError(f"{api}: {name} must be an int, got {text.describe(count)}.")
    if count < 1:
        raise ValueError(f"{api}: {name} must be at least 1, got {count}.")


def norm(vector: tf.Tensor) -> tf.Tensor:
    """The Euclidean norm, a real scalar."""
    return tf.sqrt(dot(vector, vector))


def normalized(vector: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The vector divided by its largest absolute value, and that; by 1 if it is zero, a denormal or not finite.

    So the squares of huge and tiny numbers do not become infinite or zero.
    """
    size = tf.reduce_max(tf.concat([tf.reshape(tf.abs(vector), [-1]), tf.zeros([1], vector.dtype.real_dtype)], 0))
    size = tf.where((size >= _smallest(size.dtype)) & tf.math.is_finite(size), size, tf.ones_like(size))
    return vector / tf.cast(size, vector.dtype), size


def dot(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """The real part of the inner product, a real scalar."""
    return tf.reduce_sum(tf.math.real(tf.math.conj(a) * b))


def _smallest(dtype: tf.DType) -> float:
    """Numbers below are lost: TensorFlow computes without denormals, except in float16."""
    return {tf.float16: 2.0**-24, tf.float64: 2.0**-1022}.get(dtype.real_dtype, 2.0**-126)


def _recorded(function: _Apply) -> _Apply:
    """The user's function, in which tapes that it opens record."""

    def recorded(vector: tf.Tensor) -> tf.Tensor:
        with tf_internal.resume_recording():
            return function(vector)

    return recorded
