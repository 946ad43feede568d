"""A solver whose result has the derivative from the implicit function theorem."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, pytree, text, tf_internal
from tf_cg_ops._src.core.signature import bind, check_takes, traced
from tf_cg_ops._src.core.types import Structure
from tf_cg_ops._src.core.variables import as_variable
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.linear.equations import Equations, Point, with_derivative
from tf_cg_ops._src.linear.packing import ROUNDING, Packing
from tf_cg_ops._src.linear.solution import assertions, called_by

_ADVICE = "Return numbers with the structure, shapes and dtype of y."
# A solution is refused if a step of Newton's method would change it by more than this fraction of its size. Rounding
# changes unknowns whose exact value is zero, so the second number is added to the size.
_TOLERANCE, _ZERO = 0.1, 0.01
_LAWS = {
    "residual": "must be zero at the y that {} returns, got numbers up to",
    "function": "must return the y that {} returns, got numbers that differ from it by up to",
    "objective": "must have a gradient of zero at the y that {} returns, got numbers up to",
}


class Options(TypedDict, total=False):
    """The options of an implicit function."""

    batched: bool
    linear_solve: Callable[..., Structure] | None
    has_aux: bool
    check_solution: bool


@dataclasses.dataclass(frozen=True)
class Problem:
    """The user's arguments to an implicit function, except the solver."""

    api: str
    noun: str  # What messages call the user's function: "residual", "function" or "objective".
    user_function: Callable[..., Any]
    options: Options


@tf_internal.autograph_artifact
def implicit_function(problem: Problem, solve: Callable[..., Any]) -> CustomGradient:
    """The solver, with the derivative of the solution."""

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return _Solve(problem, text.name_of(function)).solve(_translated(function), function, (list(args), kwargs))

    advice = "Pass the solver, then call the result with the solver's arguments."
    misplaced_calls.check_function(problem.api, "the argument", solve, advice)
    return CustomGradient(problem.api, solve, run)


def _translated(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; translated by AutoGraph where AutoGraph translates the code that called the decorated solver."""
    if tf.executing_eagerly():
        return function
    # The last status is the one of the decorated function itself.
    return tf_internal.converted_by_autograph(function, tf_internal.autograph_statuses()[-2])


def _stop(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.stop_gradient(tensor) for tensor in tensors]


class _Solve:
    """One call of a solver: its equations, and the linear systems of their derivatives."""

    def __init__(self, problem: Problem, name: str) -> None:
        self._problem, self._name, self._batched = problem, name, problem.options["batched"]
        self._subject = f"{problem.api}: the {problem.noun} '{text.name_of(problem.user_function)}' of '{name}'"
        self._function = traced(problem.api, _translated(problem.user_function), "to differentiate it")
        linear_solve = problem.options["linear_solve"]
        self._linear_solve = None if linear_solve is None else _translated(linear_solve)

    def solve(self, solver: Callable[..., Any], user_solver: Callable[..., Any], arguments: Any) -> Any:
        """What the solver returns, with the derivative."""
        api, has_aux = self._problem.api, self._problem.options["has_aux"]
        # Stopped, so that tapes do not keep what the solver computes.
        args, kwargs = pytree.map_tensors(arguments, _stop)
        try:
            # Checks the arguments against the signature, unless all are Tensors passed by position.
            pytree.flatten_arguments(api, user_solver, args, kwargs)
            root = solver(*args, **kwargs)
        except TypeError:
            bind(api, user_solver, args, kwargs, f"The {self._problem.noun} comes first, the solver second.")
            raise
        if has_aux:
            advice = "End it with: return y, aux (or leave out has_aux)."
            root, aux = pytree.pair(f"{api}: '{self._name}'", "y, aux", root, advice, types=tuple)
        advice = (
            "Return the solution alone, such as x of SciPy's results. To return other results too, pass has_aux=True."
        )
        self._packing = Packing(f"{api}: '{self._name}' must return y as", "y", root, advice, self._batched)
        y = self._packing.unpack(self._with_derivative(tf.stop_gradient(self._packing.packed), arguments))
        return (y, pytree.map_tensors(aux, _stop)) if has_aux else y

    def _with_derivative(self, y: tf.Tensor, arguments: Any) -> tf.Tensor:
        wording = without_gradient_function(self._problem.api, differentiated=self._problem.noun)
        # For a Variable among the arguments, its value is the input.
        leaves = [
            leaf if as_variable(leaf) is None else tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(arguments)
        ]
        components = [pytree.tensors_for_gradients(leaf) for leaf in leaves]
        # Now, because the user can change a list or a dictionary after the call.
        arguments = tf.nest.pack_sequence_as(arguments, leaves)

        def function(unknowns: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor]) -> tf.Tensor:
            args, kwargs = tf.nest.pack_sequence_as(arguments, pytree.replace_tensors(leaves, components, inputs))
            value = self._value(self._packing.structured(unknowns), args, kwargs)
            return self._packing.pack(f"{self._subject} must return", value, _ADVICE)

        inputs = [tensor for tensors in components for tensor in tensors]
        equations = Equations(function, self._packing.leaves(y), inputs)
        return with_derivative(wording, self._name, equations, y, self._packing.leaves, self._solve_transposed)

    def _value(self, y: Any, args: Any, kwargs: Any) -> Any:
        """The residual, the function of a fixed point, or the gradient of an objective."""
        try:
            if self._problem.noun == "objective":
                return self._gradient_of_objective(y, args, kwargs)
            return self._function(y, *args, **kwargs)
        except TypeError:
            must_take = f"{self._subject} must take y and then the arguments of '{self._name}'"
            advice = "Give it a parameter for each of them, also for one that it does not need, such as a first guess."
            check_takes(self._problem.user_function, [y, *args], kwargs, must_take, advice)
            raise

    def _gradient_of_objective(self, y: Any, args: Any, kwargs: Any) -> Any:
        api, name = self._problem.api, text.name_of(self._problem.user_function)
        leaves = tf.nest.flatten(y)
        if self._packing.dtype.is_complex:
            raise TypeError(
                f"{api}: '{self._name}' must return real numbers, got {self._packing.dtype.name}. Solve for the real "
                "and the imaginary part."
            )
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            value = tf.convert_to_tensor(self._function(y, *args, **kwargs))
            if not value.dtype.is_floating:
                raise TypeError(
                    f"{api}: the objective '{name}' must return floating-point numbers, got {value.dtype.name}. Cast "
                    "it, or take its real part."
                )
            if value.shape.rank not in (1 if self._batched else 0, None):
                expected = "one number for each example" if self._batched else "a scalar"
                raise ValueError(
                    f"{api}: the objective '{name}' must return {expected}, got the shape {value.shape}. Sum it."
                )
            total = tf.reduce_sum(value)
        gradients = tape.gradient(total, leaves, unconnected_gradients="zero")
        return self._packing.structured([tf.convert_to_tensor(gradient) for gradient in gradients])

    def _solve_transposed(self, point: Point, y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        """The solution u of (dr/dy)^H u = dy. For a fixed point, r is f(y) - y."""
        if self._linear_solve is None:
            value, matrix = point.evaluate(("system", self._batched, self._problem.noun), self._system, y)
            u = tf.linalg.solve(matrix, dy[..., None])[..., 0]
        else:
            value, u = point.value(), self._iterative_solution(self._linear_solve, point, dy)
        if self._problem.noun == "function":
            value, u = value - y, -u
        return self._solved(value, y, dy, u, point.values) if self._problem.options["check_solution"] else u

    def _system(self, point: Point, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The value of the user's function and the matrix of `_vjp`: `[n, n]`, or `[B, n, n]` for a batch."""
        value = point.value()  # Now, so that the columns share it, and so that its errors come before theirs.
        with tf.control_dependencies([value]):
            zeros = tf.stop_gradient(tf.zeros_like(y))

        def column(e: tf.Tensor) -> tf.Tensor:
            """The same column for every example."""
            return self._vjp(point, zeros + e)

        size = y.shape[-1]
        unit = tf.eye(tf.shape(y)[-1] if size is None else size, dtype=y.dtype)
        columns = column(unit[0])[None] if size == 1 else tf.vectorized_map(column, unit)
        return value, tf.transpose(columns, [1, 2, 0] if self._batched else [1, 0])

    def _vjp(self, point: Point, u: tf.Tensor) -> tf.Tensor:
        """(dr/dy)^H u, or u - (df/dy)^H u for a fixed point, in a graph; ValueError if it does not exist.

        For a contraction with a symmetric Jacobian, this sign makes the system positive definite.
        """
        is_fixed_point = self._problem.noun == "function"
        parts = point.by_unknowns(u)
        for i, part in enumerate(parts):
            # For example, the first equation of the Gauss-Seidel method does not read the first unknown.
            if part is None and (point.reads(i) or not is_fixed_point):
                name = self._packing.names()[i]
                derivative = "second derivative" if self._problem.noun == "objective" else "derivative"
                raise ValueError(
                    f"{self._subject} must have a {derivative} with respect to {name}, but TensorFlow finds none. Use "
                    f"{name}, and only TensorFlow operations that have a derivative; call NumPy through "
                    "tf_cg_ops.numpy_function."
                )
        pairs = zip(parts, self._packing.leaves(u), strict=True)
        product = self._packing.concatenate([tf.zeros_like(y) if part is None else part for part, y in pairs])
        return u - product if is_fixed_point else product

    def _iterative_solution(self, linear_solve: Callable[..., Any], point: Point, dy: tf.Tensor) -> tf.Tensor:
        """The solution of the user's function, which takes and returns structures."""
        subject = f"{self._problem.api}: the linear_solve for '{self._name}'"

        def vjp_of_structure(u: Any) -> Any:
            advice = "Pass numbers with the structure, shapes and dtype of dy."
            packed = self._packing.pack(f"{subject} must call vjp with", u, advice)
            return self._packing.unpack(point.evaluate(("vjp", self._batched, self._problem.noun), self._vjp, packed))

        with called_by(subject):
            try:
                u = linear_solve(vjp_of_structure, self._packing.unpack(dy))
            except (TypeError, ValueError) as error:
                text.add_note(error, f"{subject} gets a function vjp, and dy. To solve with the matrix, leave it out.")
                raise
        return self._packing.pack(f"{subject} must return", u, "Return u with vjp(u) = dy.")

    def _solved(self, r: tf.Tensor, y: tf.Tensor, dy: tf.Tensor, u: tf.Tensor, inputs: Sequence[tf.Tensor]) -> Any:
        """Returns `u`; InvalidArgumentError, except under XLA, if y does not solve the equations.

        One step of Newton's method would change `sum(conj(dy) * y)` by `sum(conj(u) * r)`.
        """
        noun = self._problem.noun
        r, y, dy, solution, *inputs = map(tf.stop_gradient, (r, y, dy, u, *inputs))
        sizes = [_size(t) for t in (y, *inputs) if t.dtype.is_floating or t.dtype.is_complex]
        real = sizes[0].dtype
        largest = [tf.cast(tf.reduce_max(tf.concat([[0], tf.reshape(size, [-1])], 0)), real) for size in sizes]
        rounding = 4 * ROUNDING[self._packing.dtype.real_dtype] * tf.reduce_max(largest)
        moved = tf.reduce_sum(_size(solution) * tf.nn.relu(_size(r) - rounding))
        # Infinite numbers, as in an upstream gradient that overflows under loss scaling, give nan, which says nothing.
        is_right = (moved <= _TOLERANCE * tf.reduce_sum(_size(dy)) * (largest[0] + _ZERO)) | tf.math.is_nan(moved)
        law = _LAWS[noun].format(f"'{self._name}'")
        advice = f"Check that the {noun} takes y first and that the solver converges, or pass check_solution=False."
        parts = [f"{self._subject} {law} ", tf.reduce_max(_size(r)), f". {advice}"]
        with tf.control_dependencies(assertions((is_right, parts))):
            return tf.identity(u)


def _size(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.abs(tensor), tf.float64 if tensor.dtype.real_dtype == tf.float64 else tf.float32)
