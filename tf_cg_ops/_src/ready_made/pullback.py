"""The partial derivatives of an implicit equation, as vector-Jacobian products."""

from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import slices, tf_internal
from tf_cg_ops._src.ready_made.equations import Equations
from tf_cg_ops._src.rewrite import control_flow


class Pullback:
    """The derivatives at `y` of the residual `r`; for a fixed point, `r` is the function minus `y`."""

    def __init__(self, equations: Equations, y: tf.Tensor, inputs: list[tf.Tensor]) -> None:
        self._equations, self._y, self._inputs = equations, y, inputs
        self._tape = None
        self._by_graph: dict[tf.Graph, tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]] = {}
        if tf.executing_eagerly():
            self._unknowns = equations.unknowns.leaves(y)
            with tf.GradientTape(persistent=True) as self._tape:
                self._tape.watch([*self._unknowns, *(t for t in inputs if tf_internal.is_trainable(t))])
                self._tape.watch(equations.variables)
                self._value = equations.value_at(self._unknowns, inputs)
        else:
            self._in_this_graph()  # Once, not for each column of a Jacobian.

    def value(self) -> tf.Tensor:
        """The value of the user's function at `y`."""
        return self._value if self._tape is not None else self._in_this_graph()[0]

    def by_root(self, u: tf.Tensor) -> tf.Tensor:
        """(dr/dy)^H u; ValueError if it does not exist."""
        if self._tape is not None:
            unknowns = self._unknowns
            parts = self._tape.gradient(self._value, unknowns, u)
        else:
            value, unknowns, _ = self._in_this_graph()
            parts = tf.gradients(value, unknowns, u)
        for i, part in enumerate(parts):
            if part is None and not (self._equations.is_fixed_point and self._is_independent_of(i)):
                self._equations.check_tapes()
                raise ValueError(self._without_derivative(i))
        zeros = (tf.zeros_like(y) if part is None else None for y, part in zip(unknowns, parts, strict=True))
        dense = [slices.to_dense(part) if zero is None else zero for part, zero in zip(parts, zeros, strict=True)]
        product = self._equations.unknowns.concatenate(dense)
        return product - u if self._equations.is_fixed_point else product

    def by_inputs(self, u: tf.Tensor) -> list[Any]:
        """(dr/dx)^H u for each input and each variable."""
        variables = self._equations.variables
        if self._tape is not None:
            return self._tape.gradient(self._value, [*self._inputs, *variables], u)
        value, unknowns, inputs = self._in_this_graph()
        return tf.gradients(value, [*inputs, *variables], u, stop_gradients=[*unknowns, *inputs])

    def _in_this_graph(self) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        """The value, the unknowns and the inputs in the current graph, such as the body of a loop.

        They are identities, so that `tf.gradients` does not follow how the root depends on the inputs, or one input on
        another.
        """
        graph = tf.compat.v1.get_default_graph()
        if graph not in self._by_graph:
            unknowns = self._equations.unknowns.leaves(tf.identity(self._y))
            inputs = [tf.identity(tensor) for tensor in self._inputs]
            self._by_graph[graph] = self._equations.value_at(unknowns, inputs), unknowns, inputs
        return self._by_graph[graph]

    def _is_independent_of(self, i: int) -> bool:
        """Whether the function never reads this unknown, as in the first equation of the Gauss-Seidel method."""
        if self._tape is None:
            uses = control_flow.uses_of(self._in_this_graph()[1][i])
            return all(op.type in control_flow.READ_SHAPES for op, _ in uses)
        moved = list(self._unknowns)
        moved[i] += tf.cast(0.01 * tf.abs(moved[i]) + 0.001, moved[i].dtype)
        return bool(tf.reduce_all(self._equations.value_at(moved, self._inputs) == self._value))

    def _without_derivative(self, i: int) -> str:
        equations, name = self._equations, self._equations.unknowns.names()[i]
        derivative = "second derivative" if equations.noun == "objective" else "derivative"
        return (
            f"{equations.api}: {equations.subject} must have a {derivative} with respect to {name}, but TensorFlow "
            f"finds none. Use {name}, and only TensorFlow operations that have a derivative; call NumPy through "
            "tf_cg_ops.numpy_function."
        )
