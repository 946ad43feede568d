"""The linear system behind an implicit function: its derivative by the implicit function theorem, for any solver."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import library, pytree, slices, tapes, text, tf_internal
from tf_cg_ops._src.core.variables import as_variable
from tf_cg_ops._src.custom_gradient.attach import call_with_gradient
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient, not_a_function
from tf_cg_ops._src.custom_gradient.wording import WordingWithoutGradientFunction
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
    is_fixed_point: bool = False,
) -> CustomGradient:
    """The solver, with the derivative of a root of the residual, or of a fixed point.

    `noun` is the word of the messages of `api` for `user_function`, of which the residual is made.
    """

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        pytree.flatten_arguments(api, function, args, kwargs)  # Checks that they fit the signature.
        # Stopped: otherwise the tapes would keep everything that the solver computes.
        stopped_args, stopped_kwargs = pytree.map_tensors((list(args), kwargs), _stop)
        subject = f"the {noun} '{text.name_of(user_function)}' of '{text.name_of(function)}'"
        system = _System(api, noun, subject, residual, is_fixed_point, function, args, kwargs, linear_solve)
        answer = function(*stopped_args, **stopped_kwargs)
        root, aux = _without_aux(api, function, answer) if has_aux else (answer, None)
        system.unknowns = Unknowns(api, text.name_of(function), root, batched)
        y = tf.stop_gradient(system.unknowns.packed)
        with tf_internal.VariableWatcher() as watcher:
            system.residual_at(y, _stop(system.inputs))
        system.variables = watcher.watched_variables()
        inputs = [*system.inputs, *(tf.convert_to_tensor(variable) for variable in system.variables)]
        root = system.unknowns.unpack(_attach(system, y, inputs))
        return (root, pytree.map_tensors(aux, _stop)) if has_aux else root

    return CustomGradient(api, solve, run)


def check_options(api: str, function: Any, batched: Any, linear_solve: Any, has_aux: Any) -> None:
    """Raises TypeError if one of them is none that an implicit function takes."""
    for candidate in (function, *([] if linear_solve is None else [linear_solve])):
        if not callable(candidate):
            raise not_a_function(api, candidate)
    for name, value in (("batched", batched), ("has_aux", has_aux)):
        if not isinstance(value, bool):
            raise TypeError(
                f"{api}: {name} is not a bool; expected True or False, got {text.describe(value)}. Pass a Python bool."
            )


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
        self._subject, self._residual, self._linear_solve = subject, residual, linear_solve
        self._is_fixed_point = is_fixed_point
        self._structure = (list(args), kwargs)
        leaves = tf.nest.flatten(self._structure)
        # A Variable among the arguments is an input by its value.
        self._leaves = [leaf if as_variable(leaf) is None else tf.convert_to_tensor(leaf) for leaf in leaves]
        self._components = [pytree.tensors_for_gradients(leaf) for leaf in self._leaves]
        self.inputs = [tensor for tensors in self._components for tensor in tensors]

    def residual_at(self, y: tf.Tensor, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """The residual; TypeError or ValueError if it does not have the structure, dtype and shapes of the unknowns."""
        leaves = pytree.replace_tensors(self._leaves, self._components, inputs)
        args, kwargs = tf.nest.pack_sequence_as(self._structure, leaves)
        r = self.unknowns.pack(self._subject, self._residual(self.unknowns.unpack(y), *args, **kwargs), _ADVICE)
        return r - y if self._is_fixed_point else r

    def gradients(self, y: tf.Tensor, dy: tf.Tensor, inputs: Sequence[tf.Tensor]) -> list[Any]:
        """The gradients of the system's inputs and of its variables; `inputs` may end with values of variables."""
        system_inputs = list(inputs[: len(self.inputs)])
        if not tf.executing_eagerly() or tapes.new_tapes_record():
            return self._gradients(y, dy, system_inputs)
        # Forward mode lets no tape record here. A graph needs none.
        traced = tf.function(lambda *args: [slices.to_dense(g) for g in self._gradients(*args)], autograph=False)
        return traced.get_concrete_function(y, dy, system_inputs)(y, dy, system_inputs)

    def _gradients(self, y: tf.Tensor, dy: tf.Tensor, inputs: list[tf.Tensor]) -> list[Any]:
        pullback = _Pullback(self.residual_at, y, inputs, self.variables)
        if not tf.executing_eagerly() and not y.shape.is_fully_defined():
            # The op checks the upstream gradient against the residual: it has the shape of the root, so its shape is
            # the one that the message calls expected.
            message = self.unknowns.wrong_shape(self._subject, "{got}", "{expected}", _ADVICE)
            expected = tf.shape(pullback.in_this_graph()[0], out_type=tf.int64)
            dy = library.custom_gradient_check_shape(dy, expected, message=message)
        if self._linear_solve is None:
            return pullback.by_inputs(-self._dense_solution(pullback.by_root, y, dy))
        return pullback.by_inputs(-self._iterative_solution(self._linear_solve, pullback.by_root, dy))

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


class _Pullback:
    """The partial derivatives of a residual, as vector-Jacobian products."""

    def __init__(
        self,
        residual: Callable[[tf.Tensor, Sequence[tf.Tensor]], tf.Tensor],
        y: tf.Tensor,
        inputs: list[tf.Tensor],
        variables: list[tf.Variable],
    ) -> None:
        self._residual, self._y, self._inputs, self._variables = residual, y, inputs, variables
        self._tape = None
        self._by_graph: dict[tf.Graph, tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]] = {}
        if tf.executing_eagerly():
            with tf.GradientTape(persistent=True) as self._tape:
                self._tape.watch([y, *(tensor for tensor in inputs if tf_internal.is_trainable(tensor))])
                self._r = residual(y, inputs)
        else:
            self.in_this_graph()  # Now, and not again for each column of a Jacobian.

    def by_root(self, u: tf.Tensor) -> tf.Tensor:
        """(dr/dy)^H u."""
        if self._tape is not None:
            return self._tape.gradient(self._r, self._y, u, unconnected_gradients="zero")
        r, y, _ = self.in_this_graph()
        return tf.gradients(r, y, u, unconnected_gradients="zero")[0]

    def by_inputs(self, u: tf.Tensor) -> list[Any]:
        """(dr/dx)^H u for all inputs, and for the variables."""
        if self._tape is not None:
            return self._tape.gradient(self._r, [*self._inputs, *self._variables], u)
        r, y, inputs = self.in_this_graph()
        return tf.gradients(r, [*inputs, *self._variables], u, stop_gradients=[y, *inputs])

    def in_this_graph(self) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """The residual, the root and the inputs, in the current graph, which may be that of a loop.

        The residual is a function of identities: the root depends on the inputs, and they may depend on each other.
        """
        graph = tf.compat.v1.get_default_graph()
        if graph not in self._by_graph:
            y, inputs = tf.identity(self._y), [tf.identity(tensor) for tensor in self._inputs]
            self._by_graph[graph] = self._residual(y, inputs), y, inputs
        return self._by_graph[graph]
