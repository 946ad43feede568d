"""`implicit_root`: the derivative of a root by the implicit function theorem, for any solver."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, library, pytree, slices, tapes, text, tf_internal
from tf_cg_ops._src.core.variables import as_variable
from tf_cg_ops._src.custom_gradient.attach import call_with_gradient
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient, not_a_function
from tf_cg_ops._src.custom_gradient.wording import WordingWithoutGradientFunction

_API = "implicit_root"
_WORDING = WordingWithoutGradientFunction(_API, differentiated="residual")


@tf_internal.autograph_artifact
def implicit_root(
    residual: Callable[..., Any],
    solve: Callable[..., Any] | None = None,
    *,
    batched: bool = False,
    linear_solve: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Gives the result of a solver the derivative of a root of `residual(y, *args) = 0`.

    `solve(*args)` returns such a `y`, by any method. With the Jacobians `dr/dy` and `dr/dx` of the residual at `y`, and
    the upstream gradient `dy`, the gradient with respect to each Tensor among the arguments is

        dx = -(dr/dx)^H u    where    (dr/dy)^H u = dy

    and likewise for each trainable variable that the residual reads. Arguments may be nested structures. The solver is
    not differentiated and not run again, so it may be of any kind: a `tf.while_loop`, Newton's method, SciPy within
    `tf.numpy_function`. A fixed point `y = g(y, x)` is a root of `g(y, x) - y`.

    `y` is one Tensor of any shape. With `batched` its leading dimension is a batch of independent systems: the residual
    of one example depends on the `y` of that example alone, and the Jacobians `dr/dy` are `[B, n, n]`.

    Derivatives of every order work; in a loaded model, those up to the third. The residual is computed once together
    with the value, to check it and to find the variables that it reads.

    Limitations. Tensors that the residual closes over get no gradient: pass them as arguments. Nothing checks that `y`
    is a root, and the derivative is only as accurate as `y`. If `dr/dy` is singular, `tf.linalg.solve` fails or returns
    numbers that are not finite. A complex residual must be holomorphic, and needs a `linear_solve` under XLA, where
    TensorFlow solves no complex systems. A residual with a `tf.GradientTape` inside has no tangents by a
    ForwardAccumulator in eager mode.

    Compared with others: `jax.lax.custom_root` also takes a function and a solver for its tangent; TensorFlow has no
    such function.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> def kepler(anomaly, mean, eccentricity):
    ...     return anomaly - eccentricity * tf.sin(anomaly) - mean
    >>> @cg.implicit_root(kepler)
    ... def solve_kepler(mean, eccentricity):
    ...     anomaly = mean
    ...     for _ in range(100):
    ...         anomaly = mean + eccentricity * tf.sin(anomaly)
    ...     return anomaly
    >>> mean = tf.constant([0.5, 1.0, 2.0], tf.float64)
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(mean)
    ...     y = solve_kepler(mean, tf.constant(0.3, tf.float64))
    >>> dx = tape.gradient(y, mean, output_gradients=tf.constant([1.0, 10.0, 100.0], tf.float64))
    >>> expected = [1.0, 10.0, 100.0] / (1 - 0.3 * tf.cos(y))
    >>> bool(tf.reduce_all(tf.abs(dx - expected) < 1e-12))
    True

    Args:
      residual: `residual(y, *args)` is zero at the root: a Tensor of the shape and dtype of `y`, made of TensorFlow
        operations. It gets the value of an argument that is a Variable.
      solve: The solver; it may read variables, and keep its state in some. Without it, a decorator for a solver is
        returned.
      batched: Whether the leading dimension of `y` is a batch of independent systems.
      linear_solve: `linear_solve(vjp, dy)` returns the `u` with `vjp(u) = dy`, of the shape of `dy`, where `vjp(u)` is
        `(dr/dy)^H u`: an iterative solver for systems that are too big for their Jacobian. Without it the Jacobian is
        computed and `tf.linalg.solve` called.

    Returns:
      A function with the signature of `solve` that returns its `y`.

    Raises:
      TypeError: `residual`, `solve` or `linear_solve` is not callable, `batched` is not a bool. At the call: `solve`
        does not return one Tensor, or the residual is not one of its dtype.
      ValueError: At the call: the residual does not have the shape of `y`, or `y` is a scalar and `batched` is set.
        When a gradient is asked for: `linear_solve` returned another shape or dtype.
      RuntimeError: A derivative of an order above the third is asked for in a loaded model.
      tf.errors.InvalidArgumentError: The residual has another shape than `y`, and the shapes are known at run time
        only; or the Jacobian is singular.
    """
    for function in (residual, *([] if linear_solve is None else [linear_solve])):
        if not callable(function):
            raise not_a_function(_API, function)
    if not isinstance(batched, bool):
        raise TypeError(
            f"{_API}: batched is not a bool; expected True or False, got {text.describe(batched)}. Pass a Python bool."
        )
    if solve is None:
        return functools.partial(implicit_root, residual, batched=batched, linear_solve=linear_solve)

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> tf.Tensor:
        pytree.flatten_arguments(_API, function, args, kwargs)  # Checks that they fit the signature.
        # Stopped: otherwise the tapes would keep everything that the solver computes.
        stopped_args, stopped_kwargs = pytree.map_tensors((list(args), kwargs), _stop)
        system = _System(residual, function, args, kwargs, batched, linear_solve)
        y = tf.stop_gradient(system.check_root(function(*stopped_args, **stopped_kwargs)))
        with tf_internal.VariableWatcher() as watcher:
            system.residual_at(y, _stop(system.inputs))
        system.variables = watcher.watched_variables()
        inputs = [*system.inputs, *(tf.convert_to_tensor(variable) for variable in system.variables)]
        return _attach(system, y, inputs)

    return CustomGradient(_API, solve, run)


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
    return call_with_gradient(with_grad_fn, [inputs], {}, wording=_WORDING)


class _System:
    """The residual of one call, and the linear system for its gradient."""

    def __init__(
        self,
        residual: Callable[..., Any],
        solve: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        batched: bool,
        linear_solve: Callable[..., Any] | None,
    ) -> None:
        self.function_name, self._residual_name = text.name_of(solve), text.name_of(residual)
        self.variables: list[tf.Variable] = []
        self._residual, self._batched, self._linear_solve = residual, batched, linear_solve
        self._structure = (list(args), kwargs)
        leaves = tf.nest.flatten(self._structure)
        # A Variable among the arguments is an input by its value.
        self._leaves = [leaf if as_variable(leaf) is None else tf.convert_to_tensor(leaf) for leaf in leaves]
        self._components = [pytree.tensors_for_gradients(leaf) for leaf in self._leaves]
        self.inputs = [tensor for tensors in self._components for tensor in tensors]

    def check_root(self, y: Any) -> tf.Tensor:
        """The result of the solver as a Tensor; TypeError or ValueError if it cannot be a root."""
        y = pytree.to_output(y)
        if not isinstance(y, tf.Tensor) or y.dtype not in convert.DTYPES:
            raise TypeError(
                f"{_API}: '{self.function_name}' did not return a root; expected one Tensor of floating-point or "
                f"complex numbers, got {text.describe(y)}. Concatenate several unknowns into one Tensor."
            )
        if self._batched and y.shape.rank == 0:
            raise ValueError(
                f"{_API}: '{self.function_name}' did not return a batch; expected a leading dimension for the batch, "
                "got a scalar. Leave out batched=True for a single system."
            )
        return y

    def residual_at(self, y: tf.Tensor, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """The residual; TypeError or ValueError if it does not have the dtype and shape of `y`."""
        leaves = pytree.replace_tensors(self._leaves, self._components, inputs)
        args, kwargs = tf.nest.pack_sequence_as(self._structure, leaves)
        r = pytree.to_output(self._residual(y, *args, **kwargs))
        if not isinstance(r, tf.Tensor) or r.dtype != y.dtype:
            raise TypeError(
                f"{_API}: the residual '{self._residual_name}' of '{self.function_name}' is not like the root; "
                f"expected a Tensor of dtype {y.dtype.name}, got {text.describe(r)}. Return one equation for each "
                "unknown, in their dtype."
            )
        if not r.shape.is_compatible_with(y.shape):
            raise ValueError(self._wrong_residual_shape(expected=y.shape, got=r.shape))
        return r

    def _wrong_residual_shape(self, expected: Any, got: Any) -> str:
        return (
            f"{_API}: the residual '{self._residual_name}' of '{self.function_name}' has the wrong shape; expected "
            f"{expected} (the shape of the root), got {got}. Return one equation for each unknown."
        )

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
            message = self._wrong_residual_shape(expected="{got}", got="{expected}")
            expected = tf.shape(pullback.in_this_graph()[0], out_type=tf.int64)
            dy = library.custom_gradient_check_shape(dy, expected, message=message)
        if self._linear_solve is None:
            return pullback.by_inputs(-self._dense_solution(pullback.by_root, y, dy))
        u = pytree.to_output(self._linear_solve(pullback.by_root, dy))
        if not isinstance(u, tf.Tensor) or u.dtype != dy.dtype or not u.shape.is_compatible_with(dy.shape):
            got = f"{u.dtype.name} of shape {u.shape}" if isinstance(u, tf.Tensor) else text.describe(u)
            raise ValueError(
                f"{_API}: the linear_solve for '{self.function_name}' returned no solution; expected {dy.dtype.name} "
                f"of shape {dy.shape}, got {got}. Return the u with vjp(u) = dy."
            )
        return pullback.by_inputs(-u)

    def _dense_solution(self, vjp: Callable[[tf.Tensor], tf.Tensor], y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        """The solution u of (dr/dy)^H u = dy."""
        # Python numbers if they are known: XLA needs constants, also in loops.
        shape = y.shape.as_list() if y.shape.is_fully_defined() else tf.shape(y)
        batch = shape[0] if self._batched else 1
        size = (y.shape[1:] if self._batched else y.shape).num_elements()
        if size is None:
            size = tf.reduce_prod(shape[1:] if self._batched else shape)

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
