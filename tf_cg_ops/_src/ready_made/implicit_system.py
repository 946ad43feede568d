"""The derivative of a solver's result, from the implicit function theorem and a linear system."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import library, pytree, slices, tapes, text, tf_internal
from tf_cg_ops._src.core.rule_graph import RuleGraph
from tf_cg_ops._src.core.signature import bind, mismatched_signature, signature_of
from tf_cg_ops._src.core.variables import variables_behind
from tf_cg_ops._src.custom_gradient.call import call_with_gradient
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.linear.solution import called_by
from tf_cg_ops._src.ready_made.equations import ADVICE, Equations, Problem
from tf_cg_ops._src.ready_made.pullback import Pullback
from tf_cg_ops._src.ready_made.solution_check import checked
from tf_cg_ops._src.ready_made.unknowns import Unknowns


def implicit_function(problem: Problem, solve: Callable[..., Any]) -> CustomGradient:
    """The solver, with the derivative of the solution."""
    api, has_aux = problem.api, problem.options["has_aux"]

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        # Stopped, so that tapes do not keep what the solver computes.
        stopped_args, stopped_kwargs = pytree.map_tensors((list(args), kwargs), _stop)
        equations = Equations(problem, function, args, kwargs)
        answer = _solved(problem, function, stopped_args, stopped_kwargs)
        root, aux = _without_aux(api, function, answer) if has_aux else (answer, None)
        equations.unknowns = Unknowns(api, text.name_of(function), root, problem.options["batched"])
        y = tf.stop_gradient(equations.unknowns.packed)
        read: list[tf.Variable] = []
        with tf_internal.VariableWatcher() as watcher, tf_internal.variable_accesses(read):
            equations.value_at(equations.unknowns.leaves(y), _stop(equations.inputs))
        equations.variables = [*watcher.watched_variables(), *_not_trainable(read, problem.user_function)]
        inputs = [*equations.inputs, *(tf.convert_to_tensor(variable) for variable in equations.variables)]
        root = equations.unknowns.unpack(_attach(equations, y, inputs))
        return (root, pytree.map_tensors(aux, _stop)) if has_aux else root

    return CustomGradient(api, solve, run)


def _solved(problem: Problem, solve: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What the solver returns; TypeError if it does not take the arguments."""
    api, noun, user_function = problem.api, problem.noun, problem.user_function
    try:
        # Checks the arguments against the signature, unless all are Tensors passed by position.
        pytree.flatten_arguments(api, solve, args, kwargs)
        return solve(*args, **kwargs)
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


def _not_trainable(read: Sequence[tf.Variable], user_function: Callable[..., Any]) -> list[tf.Variable]:
    """The non-trainable variables that can have a gradient: in eager mode, if a tape watches them."""
    if tf.executing_eagerly():
        read = variables_behind(user_function) if tf_internal.could_possibly_record() else []
    by_id = {id(v): v for v in read if not v.trainable and tf_internal.is_trainable(v.dtype)}
    found = sorted(by_id.values(), key=lambda variable: variable.name)
    if not tf.executing_eagerly():
        return found
    return [v for v in found if tf_internal.possible_gradient_types([tf.convert_to_tensor(v)])]


def checked_options(
    api: str, parameter: str, function: Any, batched: Any, linear_solve: Any, has_aux: Any, check_solution: Any
) -> dict[str, Any]:
    """The options of an implicit function; TypeError if one of them, or the function, has a wrong type."""
    if not callable(function):
        raise TypeError(f"{api}: {parameter} must be a function, got {text.describe_type(function)}.")
    if linear_solve is not None and not callable(linear_solve):
        raise TypeError(
            f"{api}: linear_solve must be a function such as tf_cg_ops.linear.gmres, got {text.describe(linear_solve)}."
        )
    if check_solution is not None and not isinstance(check_solution, bool):
        raise TypeError(f"{api}: check_solution must be True, False or None, got {text.describe(check_solution)}.")
    for name, value in (("batched", batched), ("has_aux", has_aux)):
        if not isinstance(value, bool):
            raise TypeError(f"{api}: {name} must be True or False, got {text.describe(value)}. Pass a Python bool.")
    return {"batched": batched, "linear_solve": linear_solve, "has_aux": has_aux, "check_solution": check_solution}


def _without_aux(api: str, function: Callable[..., Any], answer: Any) -> tuple[Any, Any]:
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise TypeError(
            f"{api}: '{text.name_of(function)}' must return a pair (y, aux), since has_aux is True, got "
            f"{text.describe_type(answer)}. End it with: return y, aux"
        )
    return answer


def _stop(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.stop_gradient(tensor) for tensor in tensors]


def _attach(equations: Equations, y: tf.Tensor, inputs: list[tf.Tensor]) -> tf.Tensor:
    """Returns `y` with its derivative with respect to the inputs of the equations and the values of their variables."""

    def with_grad_fn(inputs: list[tf.Tensor]) -> Any:
        def grad_fn(dy: tf.Tensor) -> list[Any]:
            rule_inputs = inputs
            if isinstance(tf.compat.v1.get_default_graph(), RuleGraph):
                # Forward mode around a trace would ask for tangents of every order at once.
                with tf_internal.stop_recording():
                    rule_inputs = [tf.identity(tensor) for tensor in inputs]
            # For the derivative of the next order, the root is again a function of the inputs.
            root, system_inputs = _attach(equations, y, rule_inputs), rule_inputs[: len(equations.inputs)]
            if not tf.executing_eagerly() or tapes.new_tapes_record():
                return _gradients(equations, root, dy, system_inputs)
            # In forward mode TensorFlow does not let a tape record here. A graph does not need one.
            traced = tf.function(
                lambda *args: [slices.to_dense(g) for g in _gradients(equations, *args)], autograph=False
            )
            return traced.get_concrete_function(root, dy, system_inputs)(root, dy, system_inputs)

        return y, grad_fn

    with_grad_fn.__qualname__ = equations.function_name
    wording = without_gradient_function(equations.api, differentiated=equations.noun)
    return call_with_gradient(with_grad_fn, [inputs], {}, wording=wording)


def _gradients(equations: Equations, y: tf.Tensor, dy: tf.Tensor, inputs: list[tf.Tensor]) -> list[Any]:
    """The gradients of the inputs of the equations and of their variables."""
    unknowns, options = equations.unknowns, equations.problem.options
    pullback = Pullback(equations, y, inputs)
    if not tf.executing_eagerly() and not y.shape.is_fully_defined():
        # The op compares the upstream gradient, which has the shape of the root, with the residual. Only the residual
        # can be wrong, so the message exchanges the two shapes.
        message = unknowns.wrong_shape(f"{equations.subject} must return", "{got}", "{expected}", ADVICE)
        expected = tf.shape(pullback.value(), out_type=tf.int64)
        dy = library.custom_gradient_check_shape(dy, expected, message=message)
        y = library.custom_gradient_check_shape(y, expected, message=message)  # Each column has its shape.
    if options["linear_solve"] is None:
        u = _dense_solution(pullback.by_root, y, dy, options["batched"])
    else:
        u = _iterative_solution(equations, options["linear_solve"], pullback.by_root, dy)
    check = options["check_solution"]
    if check or (check is None and tf.executing_eagerly()):
        u = checked(equations, pullback.value(), y, dy, u, inputs)
    return pullback.by_inputs(-u)


def _iterative_solution(
    equations: Equations, linear_solve: Callable[..., Any], vjp: Callable[[tf.Tensor], tf.Tensor], dy: tf.Tensor
) -> tf.Tensor:
    """Solves (dr/dy)^H u = dy with the user's function, which takes and returns structures."""
    pack, unpack = equations.unknowns.pack, equations.unknowns.unpack
    name = f"the linear_solve for '{equations.function_name}'"

    def vjp_of_structure(u: Any) -> Any:
        return unpack(
            vjp(pack(f"{name} must call vjp with", u, "Pass numbers with the structure, shapes and dtype of dy."))
        )

    with called_by(f"{equations.api}: {name}"):
        u = linear_solve(vjp_of_structure, unpack(dy))
    return pack(f"{name} must return", u, "Return u with vjp(u) = dy.")


def _dense_solution(vjp: Callable[[tf.Tensor], tf.Tensor], y: tf.Tensor, dy: tf.Tensor, batched: bool) -> tf.Tensor:
    """Solves (dr/dy)^H u = dy with the full Jacobian."""
    # Python numbers where known, because XLA needs constants, also in loops.
    shape = y.shape.as_list() if y.shape.is_fully_defined() else tf.shape(y)
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
        # vectorized_map would trace a function at each call in eager mode, and one column does not need it.
        columns = tf.stack([column(e) for e in tf.unstack(unit)])
    else:
        columns = tf.vectorized_map(column, unit)
    # TensorFlow cannot solve systems in 16 bits.
    computed_in = tf.float32 if dy.dtype.size == 2 else dy.dtype
    matrix = tf.cast(tf.transpose(columns, [1, 2, 0]), computed_in)
    solution = tf.linalg.solve(matrix, tf.cast(tf.reshape(dy, [batch, size, 1]), computed_in))
    return tf.reshape(tf.cast(solution, dy.dtype), shape)
