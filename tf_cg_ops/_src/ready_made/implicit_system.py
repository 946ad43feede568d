"""The linear system behind an implicit function: its derivative by the implicit function theorem, for any solver."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import library, pytree, slices, tapes, text, tf_internal
from tf_cg_ops._src.core.signature import check_arguments, mismatched_signature, signature_of
from tf_cg_ops._src.core.variables import as_variable, variables_behind
from tf_cg_ops._src.custom_gradient.attach import call_with_gradient
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient, not_a_function
from tf_cg_ops._src.custom_gradient.wording import WordingWithoutGradientFunction
from tf_cg_ops._src.ready_made.pullback import Pullback
from tf_cg_ops._src.ready_made.solution_check import checked
from tf_cg_ops._src.ready_made.unknowns import Unknowns

# Takes the unknowns, in the structure of the solver's result, and the arguments; returns one equation for each unknown.
Residual = Callable[..., Any]
_ADVICE = "Return one equation for each unknown, in their structure and dtype."


def implicit_function(
    api: str,
    noun: str,
    user_function: Callable[..., Any],
    residual: Residual,
    solve: Callable[..., Any],
    batched: bool,
    linear_solve: Callable[..., Any] | None,
    has_aux: bool,
    check_solution: bool | None,
    is_fixed_point: bool = False,
) -> CustomGradient:
    """The solver, with the derivative of a root of the residual, or of a fixed point.

    `noun` is the word of the messages of `api` for `user_function`, of which the residual is made.
    """

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        # Stopped: otherwise the tapes would keep everything that the solver computes.
        stopped_args, stopped_kwargs = pytree.map_tensors((list(args), kwargs), _stop)
        subject = f"the {noun} '{text.name_of(user_function)}' of '{text.name_of(function)}'"
        system = _System(api, noun, subject, residual, is_fixed_point, function, args, kwargs, linear_solve)
        system.user_function, system.check_solution = user_function, check_solution
        answer = _solved(api, noun, user_function, function, stopped_args, stopped_kwargs)
        root, aux = _without_aux(api, function, answer) if has_aux else (answer, None)
        system.unknowns = Unknowns(api, text.name_of(function), root, batched)
        y = tf.stop_gradient(system.unknowns.packed)
        read: list[tf.Variable] = []
        with tf_internal.VariableWatcher() as watcher, tf_internal.variable_accesses(read):
            system.value_at(system.unknowns.leaves(y), _stop(system.inputs))
        system.variables = [*watcher.watched_variables(), *_not_trainable(read, user_function)]
        inputs = [*system.inputs, *(tf.convert_to_tensor(variable) for variable in system.variables)]
        root = system.unknowns.unpack(_attach(system, y, inputs))
        return (root, pytree.map_tensors(aux, _stop)) if has_aux else root

    return CustomGradient(api, solve, run)


def _solved(
    api: str,
    noun: str,
    user_function: Callable[..., Any],
    solve: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """The answer of the solver; TypeError if it does not take the arguments."""
    try:
        # Compares them with the signature, unless all are Tensors passed by position.
        pytree.flatten_arguments(api, solve, args, kwargs)
        return solve(*args, **kwargs)
    except TypeError as error:
        wanted = mismatched_signature(solve, args, kwargs)
        fitting = None if mismatched_signature(user_function, args, kwargs) else signature_of(user_function)
        # A residual takes more arguments than its solver.
        if wanted and fitting and len(wanted.parameters) > len(fitting.parameters):
            solver, function = text.name_of(solve), text.name_of(user_function)
            raise TypeError(
                f"{api}: the solver '{solver}' does not take the arguments of the call, but the {noun} '{function}' "
                f"does. Pass the {noun} first: {api}({solver}, {function})."
            ) from error
        check_arguments(api, solve, args, kwargs)
        raise


def _not_trainable(read: Sequence[tf.Variable], user_function: Callable[..., Any]) -> list[tf.Variable]:
    """Those without trainable=True that may have a gradient: in eager mode, those that a tape watches."""
    if tf.executing_eagerly():
        read = variables_behind(user_function) if tf_internal.could_possibly_record() else []
    by_id = {id(v): v for v in read if not v.trainable and tf_internal.is_trainable(v.dtype)}
    found = sorted(by_id.values(), key=lambda variable: variable.name)
    if not tf.executing_eagerly():
        return found
    return [v for v in found if tf_internal.possible_gradient_types([tf.convert_to_tensor(v)])]


def checked_options(
    api: str, function: Any, batched: Any, linear_solve: Any, has_aux: Any, check_solution: Any
) -> dict[str, Any]:
    """The options of an implicit function; TypeError if one of them, or the function, is none that it takes."""
    for candidate in (function, *([] if linear_solve is None else [linear_solve])):
        if not callable(candidate):
            raise not_a_function(api, candidate)
    if check_solution is not None and not isinstance(check_solution, bool):
        raise TypeError(f"{api}: check_solution must be True, False or None, got {text.describe(check_solution)}.")
    for name, value in (("batched", batched), ("has_aux", has_aux)):
        if not isinstance(value, bool):
            raise TypeError(
                f"{api}: {name} is not a bool; expected True or False, got {text.describe(value)}. Pass a Python bool."
            )
    return {
        "batched": batched,
        "linear_solve": linear_solve,
        "has_aux": has_aux,
        "check_solution": check_solution,
    }


def _without_aux(api: str, function: Callable[..., Any], answer: Any) -> tuple[Any, Any]:
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise TypeError(
            f"{api}: '{text.name_of(function)}' did not return a root with other results, as has_aux says; expected a "
            f"pair (y, aux), got {text.describe_type(answer)}. End it with: return y, aux"
        )
    return answer


def _stop(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.stop_gradient(tensor) for tensor in tensors]


def _attach(system: "_System", y: tf.Tensor, inputs: list[tf.Tensor]) -> tf.Tensor:
    """Returns `y` with its derivative with respect to the inputs of the system and the values of its variables."""

    def with_grad_fn(inputs: list[tf.Tensor]) -> Any:
        def grad_fn(dy: tf.Tensor) -> list[Any]:
            rule_inputs = inputs
            if isinstance(tf.compat.v1.get_default_graph(), tf_internal.RuleGraph):
                # Forward mode around a trace would ask for tangents of every order at once.
                with tf_internal.stop_recording():
                    rule_inputs = [tf.identity(tensor) for tensor in inputs]
            # For the derivative of the next order, the root is again a function of the inputs.
            return system.gradients(_attach(system, y, rule_inputs), dy, rule_inputs)

        return y, grad_fn

    with_grad_fn.__qualname__ = system.function_name
    return call_with_gradient(with_grad_fn, [inputs], {}, wording=system.wording)


class _System:
    """The residual of one call, and the linear system for its gradient. The unknowns are one Tensor here."""

    unknowns: Unknowns
    user_function: Callable[..., Any]
    check_solution: bool | None

    def __init__(
        self,
        api: str,
        noun: str,
        subject: str,
        residual: Residual,
        is_fixed_point: bool,
        solve: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        linear_solve: Callable[..., Any] | None,
    ) -> None:
        self.api, self.function_name = api, text.name_of(solve)
        self.wording = WordingWithoutGradientFunction(api, differentiated=noun)
        self.variables: list[tf.Variable] = []
        self.noun, self.subject, self.is_fixed_point = noun, subject, is_fixed_point
        self._residual, self._linear_solve = residual, linear_solve
        self._structure = (list(args), kwargs)
        leaves = tf.nest.flatten(self._structure)
        # A Variable among the arguments is an input by its value.
        self._leaves = [leaf if as_variable(leaf) is None else tf.convert_to_tensor(leaf) for leaf in leaves]
        self._components = [pytree.tensors_for_gradients(leaf) for leaf in self._leaves]
        self.inputs = [tensor for tensors in self._components for tensor in tensors]

    def value_at(self, unknowns: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """The value of the user's function as one Tensor: the residual, or the next iterate of a fixed point.

        TypeError or ValueError if it does not have the structure, dtype and shapes of the unknowns.
        """
        leaves = pytree.replace_tensors(self._leaves, self._components, inputs)
        args, kwargs = tf.nest.pack_sequence_as(self._structure, leaves)
        y = self.unknowns.structured(unknowns)
        try:
            value = self._residual(y, *args, **kwargs)
        except TypeError as error:
            signature = mismatched_signature(self.user_function, [y, *args], kwargs)
            if signature is None:
                raise
            raise TypeError(
                f"{self.api}: {self.subject} must take y and the arguments of '{self.function_name}', got "
                f"{text.name_of(self.user_function)}{signature}."
            ) from error
        return self.unknowns.pack(self.subject, value, _ADVICE)

    def gradients(self, y: tf.Tensor, dy: tf.Tensor, inputs: Sequence[tf.Tensor]) -> list[Any]:
        """The gradients of the system's inputs and of its variables; `inputs` may end with values of variables."""
        system_inputs = list(inputs[: len(self.inputs)])
        if not tf.executing_eagerly() or tapes.new_tapes_record():
            return self._gradients(y, dy, system_inputs)
        # Forward mode lets no tape record here. A graph needs none.
        traced = tf.function(lambda *args: [slices.to_dense(g) for g in self._gradients(*args)], autograph=False)
        return traced.get_concrete_function(y, dy, system_inputs)(y, dy, system_inputs)

    def _gradients(self, y: tf.Tensor, dy: tf.Tensor, inputs: list[tf.Tensor]) -> list[Any]:
        pullback = Pullback(self, y, inputs)
        if not tf.executing_eagerly() and not y.shape.is_fully_defined():
            # The op checks the upstream gradient against the residual: it has the shape of the root, so its shape is
            # the one that the message calls expected.
            message = self.unknowns.wrong_shape(self.subject, "{got}", "{expected}", _ADVICE)
            expected = tf.shape(pullback.value(), out_type=tf.int64)
            dy = library.custom_gradient_check_shape(dy, expected, message=message)
            y = library.custom_gradient_check_shape(y, expected, message=message)  # Its shape is that of each column.
        if self._linear_solve is None:
            u = self._dense_solution(pullback.by_root, y, dy)
        else:
            u = self._iterative_solution(self._linear_solve, pullback.by_root, dy)
        if self.check_solution or (self.check_solution is None and tf.executing_eagerly()):
            u = checked(self, pullback.value(), y, dy, u, inputs)
        return pullback.by_inputs(-u)

    def _iterative_solution(
        self, linear_solve: Callable[..., Any], vjp: Callable[[tf.Tensor], tf.Tensor], dy: tf.Tensor
    ) -> tf.Tensor:
        """The same, by the user's function, which gets and returns the structure of the unknowns."""
        pack, unpack = self.unknowns.pack, self.unknowns.unpack
        name = f"the linear_solve for '{self.function_name}'"

        def vjp_of_structure(u: Any) -> Any:
            return unpack(vjp(pack(f"the argument of vjp in {name}", u, "Pass values in the structure of dy.")))

        return pack(f"the result of {name}", linear_solve(vjp_of_structure, unpack(dy)), "Return u with vjp(u) = dy.")

    def _dense_solution(self, vjp: Callable[[tf.Tensor], tf.Tensor], y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        """The solution u of (dr/dy)^H u = dy."""
        # Python numbers if they are known: XLA needs constants, also in loops.
        shape = y.shape.as_list() if y.shape.is_fully_defined() else tf.shape(y)
        batched = self.unknowns.batched
        batch = shape[0] if batched else 1
        size = (y.shape[1:] if batched else y.shape).num_elements()
        if size is None:
            size = tf.reduce_prod(shape[1:] if batched else shape)

        def column(e: tf.Tensor) -> tf.Tensor:
            """The same column of (dr/dy)^H for every example."""
            u = tf.stop_gradient(tf.reshape(tf.tile(e[None], [batch, 1]), shape))
            return tf.reshape(vjp(u), [batch, size])

        unit = tf.eye(size, dtype=y.dtype)
        if isinstance(size, int) and (size == 1 or (size > 1 and tf.executing_eagerly())):
            # One column needs no vectorized_map, and in eager mode that would trace a function at each call.
            columns = tf.stack([column(e) for e in tf.unstack(unit)])
        else:
            columns = tf.vectorized_map(column, unit)
        matrix = tf.transpose(columns, [1, 2, 0])
        right = tf.reshape(dy, [batch, size, 1])
        if dy.dtype.size == 2:  # TensorFlow solves no systems in 16 bits.
            solution = tf.linalg.solve(tf.cast(matrix, tf.float32), tf.cast(right, tf.float32))
            return tf.reshape(tf.cast(solution, dy.dtype), shape)
        return tf.reshape(tf.linalg.solve(matrix, right), shape)
