"""Equations that a solution satisfies, and the derivative of the solution: the one of a step of Newton's method."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import slices, tf_internal
from tf_cg_ops._src.custom_gradient.call import GradFn, call_with_gradient
from tf_cg_ops._src.custom_gradient.wording import Wording
from tf_cg_ops._src.graphs import control_flow
from tf_cg_ops._src.memory.loop_step import LoopStep
from tf_cg_ops._src.rewrite.built_functions import find_or_build
from tf_cg_ops._src.rewrite.traced_call import ThreadSafeFunction, trace


class Equations:
    """A function of unknowns, traced once. What it reads is recorded now: its inputs, Tensors that it closes over, and
    the values of variables.

    Attributes:
      values: All that, as Tensors with a gradient.
      handles: Other resources, and variables that it does not only read.
    """

    def __init__(
        self,
        function: Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor]], tf.Tensor],
        unknowns: Sequence[tf.Tensor],
        inputs: Sequence[tf.Tensor],
    ) -> None:
        """`function(unknowns, inputs)` returns one Tensor, which is zero for the solution."""
        number = len(unknowns)
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in (*unknowns, *inputs)]
        self._step = LoopStep(lambda *tensors: [function(tensors[:number], tensors[number:])], specs)
        self._num_inputs = len(inputs)
        outside, self.handles = self._step.take_outside()
        self.values = [*inputs, *outside]

    def __call__(self, unknowns: Sequence[tf.Tensor], values: Sequence[tf.Tensor], handles: Sequence[Any]) -> tf.Tensor:
        """The function in the default graph."""
        inputs, outside = values[: self._num_inputs], values[self._num_inputs :]
        # `tf.gradients` differentiates the result, and the tapes its gradient. To TensorFlow that must look like two
        # tapes: under one, the gradient of a conditional or loop reads values that no tape has recorded.
        with tf.GradientTape() as tape:
            tape.watch([tensor for tensor in (*unknowns, *values) if tf_internal.is_trainable(tensor)])
            (output,), _ = self._step(
                [*unknowns, *inputs],
                self._step.state(outside),
                outside,
                list(handles),
                records=True,
                replaced=_product_for_power,
            )
        return output

    def find_or_build(self, key: Any, build: Callable[[], Any]) -> Any:
        """Returns `build()`, or what an earlier call in eager mode built for an equal function."""
        return find_or_build(("equations", key), self._step.graph, self._step.inputs, build)


def _product_for_power(_: Any, op: Any, inputs: list[tf.Tensor]) -> list[tf.Tensor] | None:
    """The power with a small constant exponent: TensorFlow's third derivative of `x**2` is nan at 0.

    A residual that is the gradient of an objective has lost one order already.
    """
    exponent = _constant(op.inputs[1]) if op.type == "Pow" else None
    return [functools.reduce(tf.multiply, inputs[:1] * int(exponent))] if exponent in (1, 2, 3, 4) else None


def _constant(tensor: tf.Tensor) -> Any:
    """The number in a scalar constant, or in the exponents of TensorFlow's gradients of a power; None for others."""
    if tensor.op.type == "Sub":
        before, one = map(_constant, tensor.op.inputs)
        return None if before is None or one is None else before - one
    return tf.get_static_value(tensor) if tensor.shape.rank == 0 else None


class Point:
    """Equations and their derivatives at one point, in eager mode and in every graph."""

    def __init__(
        self, equations: Equations, unknowns: Sequence[tf.Tensor], values: Sequence[Any], handles: Any = None
    ) -> None:
        self._equations, self._unknowns, self.values = equations, list(unknowns), list(values)
        self._handles = equations.handles if handles is None else handles
        self._by_graph: dict[tf.Graph, tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]] = {}

    def evaluate(self, key: Any, function: Callable[..., Any], *tensors: tf.Tensor) -> Any:
        """`function(point, *tensors)` in a graph. In eager mode a call can reuse what was built for equal equations.

        The key says what the function computes.
        """
        if not tf.executing_eagerly():
            return function(self, *tensors)
        parts = self._unknowns, self.values, self._handles, list(tensors)
        arguments = tf.nest.flatten(parts)

        def call(*arguments: tf.Tensor) -> Any:
            *here, tensors = tf.nest.pack_sequence_as(parts, arguments)
            return function(Point(self._equations, *here), *tensors)

        def build() -> ThreadSafeFunction:
            return ThreadSafeFunction(functools.partial(tf_internal.call_trace, trace(call, arguments)))

        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in arguments)
        return self._equations.find_or_build((key, *map(len, parts), shapes), build)(*arguments)

    def value(self) -> tf.Tensor:
        """The value of the function."""
        return self.evaluate("value", lambda point: tf.identity(point._here()[0]))

    def by_unknowns(self, u: tf.Tensor) -> list[tf.Tensor | None]:
        """The product of `u` with the derivative by each unknown; None if TensorFlow finds no derivative."""
        return self.evaluate("by_unknowns", lambda point, u: list(map(slices.to_dense, point._gradients(1, u))), u)

    def by_values(self, u: tf.Tensor) -> list[Any]:
        """The same for each value."""
        return self.evaluate("by_values", lambda point, u: point._gradients(2, u), u)

    def along_values(self, tangents: Sequence[tf.Tensor | None]) -> tf.Tensor:
        """The tangent of the function for these tangents of the values, which is the transpose of `by_values`."""
        moved = [i for i, tangent in enumerate(tangents) if tangent is not None]

        def along(point: Point, *tangents: tf.Tensor) -> tf.Tensor:
            u = tf.zeros_like(point._here()[0])
            products = point._gradients(2, u)
            pairs = [
                (slices.to_dense(products[i]), t)
                for i, t in zip(moved, tangents, strict=True)
                if products[i] is not None
            ]
            return tf.gradients([product for product, _ in pairs], u, [t for _, t in pairs])[0] if pairs else u

        return self.evaluate(("along_values", *moved), along, *(tangents[i] for i in moved))

    def _gradients(self, position: int, u: tf.Tensor) -> list[Any]:
        here = self._here()
        return tf.gradients(here[0], here[position], u)

    def reads(self, number: int) -> bool:
        """Whether the function reads the number of this unknown, and not just its shape. Only in a graph."""
        uses = control_flow.uses_of(self._here()[1][number])
        return any(op.type not in control_flow.READ_SHAPES for op, _ in uses)

    def _here(self) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        """The value, the unknowns and the values in the current graph, such as the body of a loop.

        They are identities, so that `tf.gradients` does not follow how one depends on another.
        """
        graph = tf.compat.v1.get_default_graph()
        if graph not in self._by_graph:
            unknowns, values = ([tf.identity(t) for t in tensors] for tensors in (self._unknowns, self.values))
            self._by_graph[graph] = self._equations(unknowns, values, self._handles), unknowns, values
        return self._by_graph[graph]


def with_derivative(
    wording: Wording,
    name: str,
    equations: Equations,
    y: tf.Tensor,
    leaves_of: Callable[[tf.Tensor], Sequence[tf.Tensor]],
    solve: Callable[[Point, tf.Tensor, tf.Tensor], tf.Tensor],
    solve_forward: Callable[[Point, tf.Tensor], tf.Tensor] | None = None,
) -> tf.Tensor:
    """The solution `y`, a constant, with the derivative of `y - J^-1 f(y, values)`, where J is the derivative of f.

    `leaves_of` takes `y` apart into the unknowns. `solve(point, y, dy)` returns the `u` with `J^H u = dy`, and
    `solve_forward(point, b)` the `x` with `J x = b`. Without the latter, forward mode transposes the former.
    """

    def attach(values: list[tf.Tensor]) -> tf.Tensor:
        def with_grad_fn(values: list[tf.Tensor]) -> Any:
            def grad_fn(dy: tf.Tensor) -> list[Any]:
                # For the derivative of the next order, the solution is again a function of the values.
                root = attach(values)
                point = Point(equations, leaves_of(root), values)
                return point.by_values(-solve(point, root, dy))

            def tangents(of_values: Sequence[tf.Tensor | None], *_: Any) -> list[tf.Tensor]:
                assert solve_forward is not None
                point = Point(equations, leaves_of(attach(values)), values)
                return [-solve_forward(point, point.along_values(of_values))]

            return y, GradFn(grad_fn, tangents=solve_forward and tangents)

        with_grad_fn.__qualname__ = name
        return call_with_gradient(with_grad_fn, [values], {}, wording=wording, saved_orders=2)

    return attach(equations.values)
