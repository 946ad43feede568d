"""A traced graph without calls, which a plan can cut anywhere but in loops and branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import calls
from tf_cg_ops._src.custom_gradient import backward_order
from tf_cg_ops._src.graphs import control_flow
from tf_cg_ops._src.graphs.graph_copy import GraphCopy
from tf_cg_ops._src.rewrite.traced_call import TracedCall, flat_copy

# What counts for sizes that are not known while tracing: of a batch, and of other dimensions. Who asks for memory has
# values that outweigh the weights, so the batch counts as large.
LARGE_BATCH = 2**20
OTHER_SIZE = 512
_NOT_IN_SEGMENTS = frozenset(["Placeholder", "NoOp"])


class FlatTrace:
    """The ops of a graph and of the functions that it calls, except compiled ones and the gates of planned functions.

    The plan gives the backward pass its own order. A cut could separate a gate from the ops that mark its gradients.

    Attributes:
      graph: The graph itself if it has neither calls nor gates, or a copy.
      inside: The tensors that are inputs, in the order of `inside` of the traced graph.
      operations: The ops that a plan divides.
      num_arguments: How many of the inputs, the first ones, are Tensors of the arguments.
    """

    def __init__(self, trace: TracedCall) -> None:
        graph, self.num_arguments = trace.graph, len(trace.inputs)
        self.graph, self.inside = graph, trace.inside
        called = [op for op in graph.get_operations() if op.type in calls.CALLS and not control_flow.is_compiled(op)]
        if called or any(map(backward_order.is_gate, graph.get_operations())):
            self.graph, self.inside, _ = self._copied_graph([tensor.shape for tensor in self.inside])
        self.operations = operations_of(self.graph)

    @property
    def unknown_shapes(self) -> tuple[tf.TensorShape, ...]:
        """The shapes of the inputs whose sizes are not all known."""
        shapes = [tensor.shape for tensor in self.inside if tensor.dtype != tf.resource]
        return tuple(shape for shape in shapes if not shape.is_fully_defined())

    def sized(self, shapes: Sequence[tf.TensorShape]) -> tuple[Any, list[Any], list[int]]:
        """A copy of the graph for inputs of these shapes, its inputs, and for each op the place of its copy there."""
        graph, inside, copy = self._copied_graph(shapes)
        place_of = {id(op): place for place, op in enumerate(operations_of(graph))}
        places, last = [], 0
        for op in self.operations:  # A copied loop can have more ops, and an op without a use has no copy.
            copies = [copy[output] for output in op.outputs if output in copy]
            last = max([last, *(place_of.get(id(tensor.op), 0) for tensor in copies)])
            places.append(last)
        return graph, inside, places

    def shapes_of_large_batch(self) -> list[tf.TensorShape]:
        """The shapes of the inputs, with sizes for the unknown dimensions."""
        return [_filled_in(tensor.shape) for tensor in self.inside]

    def _copied_graph(self, shapes: Sequence[tf.TensorShape]) -> tuple[Any, list[Any], GraphCopy]:
        def without_gates(graph: Any, op: Any, inputs: list[Any]) -> list[Any] | None:
            # Loops and branches are not cut.
            return inputs if graph is tf.compat.v1.get_default_graph() and backward_order.is_gate(op) else None

        return flat_copy(self.graph, self.inside, shapes, without_gates)


def operations_of(graph: Any) -> list[Any]:
    """The ops of a graph that segments can have."""
    return [op for op in graph.get_operations() if op.type not in _NOT_IN_SEGMENTS]


def _filled_in(shape: tf.TensorShape) -> tf.TensorShape:
    if shape.rank is None:
        return shape
    unknown = [LARGE_BATCH if axis == 0 else OTHER_SIZE for axis in range(shape.rank)]
    return tf.TensorShape([size if known is None else known for known, size in zip(shape, unknown, strict=True)])
