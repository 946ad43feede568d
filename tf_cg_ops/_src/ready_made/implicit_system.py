"""A solver whose result has the derivative from the implicit function theorem."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, library, pytree, text, tf_internal
from tf_cg_ops._src.core.signature import bind, mismatched_signature, signature_of
from tf_cg_ops._src.core.variables import as_variable
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.linear.equations import Equations, Point, with_derivative
from tf_cg_ops._src.linear.packing import Packing, to_tensor
from tf_cg_ops._src.linear.solution import called_by

_ADVICE = "Return numbers with the structure, shapes and dtype of y."
# A solution is refused if a step of Newton's method would change it by more than this fraction of its size. Rounding
# changes unknowns whose exact value is zero, so the second number is added to the size.
_TOLERANCE, _ZERO = 0.1, 0.01
_ROUNDING = {tf.float16: 2.0**-11, tf.bfloat16: 2.0**-8, tf.float32: 2.0**-24, tf.float64: 2.0**-53}
_LAWS = {
    "residual": "must be zero at the y that {} returns, got numbers up to",
    "function": "must return the y that {} returns, got numbers that differ from it by up to",
    "objective": "must have a gradient of zero at the y that {} returns, got numbers up to",
}


@dataclasses.dataclass(frozen=True)
class Problem:
    """The user's arguments to an implicit function, except the solver."""

    api: str
    noun: str  # What messages call the user's function.
    user_function: Callable[..., Any]
    # The residual, from the user's function. It takes the unknowns, in the structure of the solver's result, and the
    # arguments; it returns the same structure.
    residual_of: Callable[[Callable[..., Any]], Callable[..., Any]]
    options: dict[str, Any]
    is_fixed_point: bool = False  # Otherwise a root.


def implicit_function(problem: Problem, solve: Callable[..., Any]) -> CustomGradient:
    """The solver, with the derivative of the solution."""
    api, has_aux = problem.api, problem.options["has_aux"]

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        # Stopped, so that tapes do not keep what the solver computes.
        stopped_args, stopped_kwargs = pytree.map_tensors((list(args), kwargs), _stop)
        leaves = tf.nest.flatten((list(args), kwargs))
        # For a Variable among the arguments, its value is the input.
        leaves = [leaf if as_variable(leaf) is None else tf.convert_to_tensor(leaf) for leaf in leaves]
        structure = tf.nest.pack_sequence_as((list(args), kwargs), leaves)
        answer = _solved(problem, function, stopped_args, stopped_kwargs)
        root, aux = _without_aux(api, function, answer) if has_aux else (answer, None)
        unknowns = _unknowns(api, text.name_of(function), root, problem.options["batched"])
        call = _Call(problem, text.name_of(function), unknowns, structure)
        root = unknowns.unpack(call.differentiated(tf.stop_gradient(unknowns.packed)))
        return (root, pytree.map_tensors(aux, _stop)) if has_aux else root

    return CustomGradient(api, solve, run)


def _solved(problem: Problem, solve: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What the solver returns; TypeError if it does not take the arguments."""
    api, noun, user_function = problem.api, problem.noun, problem.user_function
    try:
        # Checks the arguments against the signature, unless all are Tensors passed by position.
        pytree.flatten_arguments(api, solve, args, kwargs)
        return _translated(solve)(*args, **kwargs)
    except TypeError as error:
        wanted = mismatched_signature(solve, args, kwargs)
        fitting = None if mismatched_signature(user_function, args, kwargs) else signature_of(user_function)
        # A residual takes more arguments than its solver, so these two were exchanged.
        if wanted and fitting and len(wanted.parameters) > len(fitting.parameters):
            solver, function = text.name_of(solve), text.name_of(user_function)
            raise TypeError(
                f"{api}: the {noun} must come first and the solver second, got '{function}' and '{solver}'. Write "
                f"{api}({solver}, {function})."
            ) from error
        bind(api, solve, args, kwargs)
        raise


def _translated(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; translated by AutoGraph where AutoGraph translates the code that called the decorated solver."""
    if tf.executing_eagerly():
        return function
    with _status_of_caller():
        return tf_internal.converted_by_autograph(function)


@contextmanager
def _status_of_caller() -> Iterator[None]:
    statuses = tf_internal.autograph_statuses()
    ours = statuses[-1] is tf_internal.NOT_TRANSLATED and len(statuses) > 1
    statuses.append(statuses[-2] if ours else statuses[-1])
    try:
        yield
    finally:
        statuses.pop()


def _without_aux(api: str, function: Callable[..., Any], answer: Any) -> tuple[Any, Any]:
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise TypeError(
            f"{api}: '{text.name_of(function)}' must return a pair (y, aux), since has_aux is True, got "
            f"{text.describe_type(answer)}. End it with: return y, aux"
        )
    return answer


def _unknowns(api: str, function: str, root: Any, batched: bool) -> Packing:
    """The result of the solver; TypeError or ValueError if it cannot be a root."""
    tensors = [to_tensor(leaf) for leaf in tf.nest.flatten(root)]
    for tensor in tensors or [root]:
        if not isinstance(tensor, tf.Tensor) or tensor.dtype not in convert.DTYPES:
            raise TypeError(
                f"{api}: '{function}' must return y as a Tensor of floating-point or complex numbers, or as a "
                f"structure of such Tensors, got {text.describe(tensor)}. To return other results too, pass "
                "has_aux=True."
            )
        if batched and tensor.shape.rank == 0:
            raise ValueError(
                f"{api}: '{function}' must return y with a leading batch dimension, got a scalar. For a single system, "
                "leave out batched=True."
            )
    names = ", ".join(dict.fromkeys(tensor.dtype.name for tensor in tensors))
    if "," in names:
        raise TypeError(f"{api}: '{function}' must return unknowns of one dtype, got {names}. Cast them with tf.cast.")
    return Packing(api, "y", root, tensors, batched)


def _stop(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.stop_gradient(tensor) for tensor in tensors]


class _Call:
    """One call of a solver: its equations, and the linear systems of their derivatives."""

    def __init__(self, problem: Problem, function_name: str, unknowns: Packing, arguments: Any) -> None:
        self._problem, self._unknowns, self._function_name = problem, unknowns, function_name
        self._subject = f"the {problem.noun} '{text.name_of(problem.user_function)}' of '{function_name}'"
        self._arguments = arguments
        self._residual = problem.residual_of(_translated(problem.user_function))

    def differentiated(self, y: tf.Tensor) -> tf.Tensor:
        """The packed solution with its derivative."""
        wording = without_gradient_function(self._problem.api, differentiated=self._problem.noun)
        leaves = tf.nest.flatten(self._arguments)
        components = [pytree.tensors_for_gradients(leaf) for leaf in leaves]

        def function(unknowns: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor]) -> tf.Tensor:
            return self._value(unknowns, pytree.replace_tensors(leaves, components, inputs))

        inputs = [tensor for tensors in components for tensor in tensors]
        equations = Equations(wording, function, self._unknowns.leaves(y), inputs)
        return with_derivative(wording, self._function_name, equations, y, self._unknowns.leaves, self._solve)

    def _value(self, unknowns: Sequence[tf.Tensor], leaves: Sequence[Any]) -> tf.Tensor:
        """The value of the user's function as one Tensor.

        TypeError or ValueError unless it has the structure, dtype and shapes of the unknowns.
        """
        args, kwargs = tf.nest.pack_sequence_as(self._arguments, list(leaves))
        y = self._unknowns.structured(unknowns)
        try:
            value = self._residual(y, *args, **kwargs)
        except TypeError as error:
            signature = mismatched_signature(self._problem.user_function, [y, *args], kwargs)
            if signature is None:
                raise
            raise TypeError(
                f"{self._problem.api}: {self._subject} must take y and then the arguments of '{self._function_name}', "
                f"got {text.name_of(self._problem.user_function)}{signature}."
            ) from error
        return self._unknowns.pack(f"{self._subject} must return", value, _ADVICE)

    def _solve(self, point: Point, y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        """The solution u of (dr/dy)^H u = dy."""
        if not tf.executing_eagerly() and not y.shape.is_fully_defined():
            # The op compares the upstream gradient, which has the shape of the root, with the residual. Only the
            # residual can be wrong, so the message exchanges the two shapes.
            message = self._unknowns.wrong_shape(f"{self._subject} must return", "{got}", "{expected}", _ADVICE)
            expected = tf.shape(point.value(), out_type=tf.int64)
            dy = library.custom_gradient_check_shape(dy, expected, message=message)
            y = library.custom_gradient_check_shape(y, expected, message=message)  # The columns have its shape.
        if self._problem.options["linear_solve"] is None:
            value, matrix = point.run(("system", self._unknowns.batched, self._problem.is_fixed_point), self._system, y)
            # TensorFlow cannot solve systems in 16 bits.
            computed_in = tf.float32 if dy.dtype.size == 2 else dy.dtype
            right = tf.reshape(dy, tf.shape(matrix)[:2])[..., None]
            solution = tf.linalg.solve(tf.cast(matrix, computed_in), tf.cast(right, computed_in))
            u = tf.reshape(tf.cast(solution, dy.dtype), _shape(y))
        else:
            value, u = point.value(), self._iterative_solution(point, dy)
        if not self._problem.options["check_solution"]:
            return u
        return self._checked(value - y if self._problem.is_fixed_point else value, y, dy, u, point.values)

    def _system(self, point: Point, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The value of the user's function, and (dr/dy)^H, [1, n, n], or [B, n, n] for a batch of systems."""
        batched, shape = self._unknowns.batched, _shape(y)
        batch = shape[0] if batched else 1
        size = (y.shape[1:] if batched else y.shape).num_elements()
        if size is None:
            size = tf.reduce_prod(shape[1:] if batched else shape)

        def column(e: tf.Tensor) -> tf.Tensor:
            """The same column for every example."""
            u = tf.stop_gradient(tf.reshape(tf.tile(e[None], [batch, 1]), shape))
            return tf.reshape(self._vjp(point, u), [batch, size])

        value = point.value()  # Now, so that the columns share it.
        unit = tf.eye(size, dtype=y.dtype)
        columns = column(unit[0])[None] if isinstance(size, int) and size == 1 else tf.vectorized_map(column, unit)
        return value, tf.transpose(columns, [1, 2, 0])

    def _vjp(self, point: Point, u: tf.Tensor) -> tf.Tensor:
        """(dr/dy)^H u in a graph; ValueError if it does not exist."""
        parts = point.by_unknowns(u)
        for i, part in enumerate(parts):
            # For example, the first equation of the Gauss-Seidel method does not read the first unknown.
            if part is None and (point.reads(i) or not self._problem.is_fixed_point):
                name, noun = self._unknowns.names()[i], self._problem.noun
                derivative = "second derivative" if noun == "objective" else "derivative"
                raise ValueError(
                    f"{self._problem.api}: {self._subject} must have a {derivative} with respect to {name}, but "
                    f"TensorFlow finds none. Use {name}, and only TensorFlow operations that have a derivative; call "
                    "NumPy through tf_cg_ops.numpy_function."
                )
        pairs = zip(parts, self._unknowns.leaves(u), strict=True)
        product = self._unknowns.concatenate([tf.zeros_like(y) if part is None else part for part, y in pairs])
        return product - u if self._problem.is_fixed_point else product

    def _iterative_solution(self, point: Point, dy: tf.Tensor) -> tf.Tensor:
        """The solution of the user's function, which takes and returns structures."""
        name = f"the linear_solve for '{self._function_name}'"
        key = "vjp", self._unknowns.batched, self._problem.is_fixed_point

        def vjp_of_structure(u: Any) -> Any:
            advice = "Pass numbers with the structure, shapes and dtype of dy."
            packed = self._unknowns.pack(f"{name} must call vjp with", u, advice)
            return self._unknowns.unpack(point.run(key, self._vjp, packed))

        with called_by(f"{self._problem.api}: {name}"):
            u = _translated(self._problem.options["linear_solve"])(vjp_of_structure, self._unknowns.unpack(dy))
        return self._unknowns.pack(f"{name} must return", u, "Return u with vjp(u) = dy.")

    def _checked(self, r: tf.Tensor, y: tf.Tensor, dy: tf.Tensor, u: tf.Tensor, inputs: Sequence[tf.Tensor]) -> Any:
        """Returns `u`; ValueError or InvalidArgumentError if y does not solve the equations.

        One step of Newton's method would change `sum(conj(dy) * y)` by `sum(conj(u) * r)`.
        """
        r, y, dy, solution, *inputs = map(tf.stop_gradient, (r, y, dy, u, *inputs))
        sizes = [_size(t) for t in (y, *inputs) if t.dtype.is_floating or t.dtype.is_complex]
        real = sizes[0].dtype
        largest = [tf.cast(tf.reduce_max(tf.concat([[0], tf.reshape(size, [-1])], 0)), real) for size in sizes]
        rounding = 8 * _ROUNDING[y.dtype.real_dtype] * tf.reduce_max(largest)
        moved = tf.reduce_sum(_size(solution) * tf.nn.relu(_size(r) - rounding))
        is_wrong = moved > _TOLERANCE * tf.reduce_sum(_size(dy)) * (largest[0] + _ZERO)
        law = _LAWS[self._problem.noun].format(f"'{self._function_name}'")
        parts = [
            f"{self._problem.api}: {self._subject} {law}",
            tf.reduce_max(_size(r)),
            f". Check that the {self._problem.noun} takes y first and that the solver converges, or pass "
            "check_solution=False.",
        ]
        if not tf.executing_eagerly():
            # XLA drops assertions. All strings are constants: with others, it could not compile them.
            with tf.control_dependencies([tf.debugging.Assert(~is_wrong, parts)]):
                return tf.identity(u)
        if is_wrong:
            raise ValueError(f"{parts[0]} {float(parts[1]):.3g}{parts[2]}")
        return u


def _shape(tensor: tf.Tensor) -> Any:
    # Python numbers where known, because XLA needs constants, also in loops.
    return tensor.shape.as_list() if tensor.shape.is_fully_defined() else tf.shape(tensor)


def _size(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.abs(tensor), tf.float64 if tensor.dtype.real_dtype == tf.float64 else tf.float32)
