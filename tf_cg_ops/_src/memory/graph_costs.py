"""What the values and ops of a traced graph cost: bytes, and an estimate of the time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import calls, tf_internal
from tf_cg_ops._src.memory.gradient_reads import LOOKUPS, GradientReads, static_value
from tf_cg_ops._src.rewrite import control_flow

# A size that is not known counts the same everywhere.
UNKNOWN_SIZE = 32
# In the time of moving one byte, a processor computes about this many products.
_PRODUCTS_PER_BYTE = 4
# Gradients of convolutions on the CPU unfold as many images at once as fit into the last cache, here of this size.
_CACHE = 32 * 2**20
# Their results share the memory of their inputs.
_ALIASES = frozenset(
    ["Identity", "IdentityN", "CustomGradientRule", "StopGradient", "PreventGradient", "EnsureShape", "CheckNumerics"]
).union(["Reshape", "Squeeze", "ExpandDims"])
_NOT_IN_PIECES = frozenset(["Placeholder", "NoOp"])


@dataclasses.dataclass
class _Value:
    """A buffer: where ops of the graph produce and use it."""

    size: int
    first: int  # The op that produces it; -1 for inputs.
    last: int = -1  # The last op that uses it.
    first_saver: int | None = None  # The first op whose gradient reads it.
    last_source: int | None = None  # The last op that passes it a gradient; the number of all ops if it is a result.
    is_kept: bool = False
    can_cross: bool = True  # Whether a cut can keep it.


class GraphCosts:
    """The ops of a graph in order, with the values between them.

    Attributes:
      operations: The ops.
      cost: An estimate of the time of each.
      values: The buffers that ops produce.
      in_flight: The bytes of gradients, and for work, while the gradient of each op is computed.
      weight_bytes: The bytes of the gradients of variables.
      has_unknown_sizes: Whether some size is only known at run time.
    """

    def __init__(
        self, graph: Any, inputs: Sequence[Any], sources: Sequence[Any], is_kept: Callable[[Any], bool]
    ) -> None:
        """`inputs` are the tensors that come from outside; `sources` those among them that have gradients.

        `is_kept` tells whether the results of an op are kept in any case.
        """
        self.operations = [op for op in graph.get_operations() if op.type not in _NOT_IN_PIECES]
        self.has_unknown_sizes = False
        self._values: dict[int, _Value] = {}
        number_of = {id(op): number for number, op in enumerate(self.operations)}
        with_gradient = {id(tensor) for tensor in sources}
        self.cost = np.array([self._cost_of(op) for op in self.operations])
        for tensor in inputs:
            self._values[id(tensor)] = _Value(0, -1)
        for number, op in enumerate(self.operations):
            for tensor in op.inputs:
                self.value_of(tensor).last = number
            differentiates = any(id(t) in with_gradient for t in op.inputs) and tf_internal.find_gradient_function(op)
            for position, output in enumerate(op.outputs):
                if op.type in _ALIASES:
                    self._values[id(output)] = self.value_of(op.inputs[position])
                elif id(output) not in self._values:  # In eager mode, some constants are inputs.
                    # A read shares the memory of its variable.
                    is_free = op.type in ("ReadVariableOp", "Const") or static_value(output) is not None
                    self._values[id(output)] = _Value(0 if is_free else self._bytes(output), number, number)
                value = self._values[id(output)]
                if differentiates and tf_internal.is_trainable(output):
                    with_gradient.add(id(output))
                value.can_cross = value.can_cross and output.dtype not in (tf.resource, tf.variant)
                value.is_kept = value.is_kept or (output.dtype != tf.variant and is_kept(op))
        for tensor in graph.outputs:
            self.value_of(tensor).last = len(self.operations)
        weights = self._differentiate(graph, with_gradient)
        self.weight_bytes = float(weights.sum())
        self.values = list({id(value): value for value in self._values.values() if value.first >= 0}.values())
        workspace = np.array([self._workspace(op) for op in self.operations])
        self.in_flight = self._gradients_in_flight() + np.cumsum(weights[::-1])[::-1] + workspace
        self._number_of = number_of

    def _differentiate(self, graph: Any, with_gradient: set[int]) -> np.ndarray:
        """Follows the gradient from the results back; returns the bytes of weights' gradients that each op adds."""
        weights = np.zeros(len(self.operations))
        reads, seen = GradientReads(), {id(t) for t in graph.outputs if id(t) in with_gradient}
        for tensor in graph.outputs:
            if id(tensor) in seen:
                self.value_of(tensor).last_source = len(self.operations)
        has_table: set[int] = set()
        for number, op in reversed(list(enumerate(self.operations))):
            if not any(id(output) in seen for output in op.outputs):  # For example, inside of a custom gradient.
                continue
            for tensor, read in reads.of(op, lambda t: id(t) in with_gradient):
                seen.add(id(tensor))
                value = self.value_of(tensor)
                value.last_source = number if value.last_source is None else value.last_source
                for each in map(self.value_of, read):
                    each.first_saver = number
                source = tensor.op
                if _is_lookup(op):  # Its gradient is the upstream gradient, and where its slices belong.
                    weights[number] += self._bytes(op.outputs[0])
                elif source.type == "ReadVariableOp" and id(source.inputs[0]) not in has_table:
                    has_table.add(id(source.inputs[0]))  # Gradients of several uses are added up in place.
                    weights[number] += self._bytes(source.outputs[0])
        return weights

    def value_of(self, tensor: Any) -> _Value:
        """The buffer of a tensor."""
        if id(tensor) not in self._values:  # Of a placeholder that is not an input, or from outside.
            self._values[id(tensor)] = _Value(0, -1)
        return self._values[id(tensor)]

    def number_of(self, op: Any) -> int:
        """The position of an op; -1 if it is not in a piece."""
        return self._number_of.get(id(op), -1)

    def _gradients_in_flight(self) -> np.ndarray:
        """For each op, the bytes of the gradients of values before and after it."""
        change = np.zeros(len(self.operations) + 1)
        for value in self.values:
            if value.last_source is not None:
                change[value.first] += value.size
                change[min(value.last_source, len(self.operations) - 1) + 1] -= value.size
        total = np.cumsum(change[:-1])
        for number, op in enumerate(self.operations):
            # The gradient of an op element by element has the buffer of its upstream gradient.
            if len(op.outputs) == 1 and op.type not in _ALIASES and not _products(op, self._sizes):
                value = self.value_of(op.outputs[0])
                ends = [v for t in op.inputs if (v := self.value_of(t)).last_source == number]
                if value.last_source is not None and any(other.size == value.size for other in ends):
                    total[number] -= value.size
        return total

    def _workspace(self, op: Any) -> float:
        """The bytes that the gradient of an op needs besides its results."""
        if op.type == "Softmax":  # The product of the gradient and the result, of which it takes the sums.
            return self._bytes(op.outputs[0])
        if op.type != "Conv2D":
            return 0
        kernel, result = self._sizes(op.inputs[1].shape), self._sizes(op.outputs[0].shape)
        image = math.prod(result[1:]) // max(kernel[-1], 1)
        unfolded = image * math.prod(kernel[:-1])
        element = op.inputs[0].dtype.size
        images = math.ceil(_CACHE / element / max(image * kernel[-1] + math.prod(kernel) + unfolded, 1))
        return min(images, result[0]) * unfolded * element

    def _sizes(self, shape: tf.TensorShape) -> list[int]:
        if shape.rank is None:
            self.has_unknown_sizes = True
            return [UNKNOWN_SIZE]
        if not shape.is_fully_defined():
            self.has_unknown_sizes = True
        return [UNKNOWN_SIZE if size is None else size for size in shape]

    def _bytes(self, tensor: Any) -> int:
        if tensor.dtype in (tf.resource, tf.variant, tf.string):
            return 0
        if tensor.shape.rank is None and tensor.op.inputs:
            self.has_unknown_sizes = True
            return max(self.value_of(t).size for t in tensor.op.inputs)
        return math.prod(self._sizes(tensor.shape)) * tensor.dtype.size

    def _cost_of(self, op: Any) -> float:
        if op.type in _ALIASES or op.type in ("Const", "ReadVariableOp"):
            return 0.0
        if op.type in calls.TYPES:
            inner = [each for function in control_flow.functions_of(op) for each in function.get_operations()]
            return sum(self._cost_of(each) for each in inner)
        moved = sum(self._bytes(tensor) for tensor in (*op.inputs, *op.outputs))
        return moved + _products(op, self._sizes) / _PRODUCTS_PER_BYTE


def _is_lookup(op: Any) -> bool:
    """Whether an op looks up slices of a variable, so that its gradient has the size of its result."""
    if op.type == "GatherV2" and op.inputs[0].op.type == "ReadVariableOp" and not op.get_attr("batch_dims"):
        axis = static_value(op.inputs[2])
        return axis is not None and axis == 0
    return op.type in LOOKUPS


def _products(op: Any, sizes: Callable[[tf.TensorShape], list[int]]) -> float:
    """The number of products that an op adds up; 0 if it is not a contraction."""
    if op.type == "MatMul":
        a = sizes(op.inputs[0].shape)
        return math.prod(sizes(op.outputs[0].shape)) * (a[0] if op.get_attr("transpose_a") else a[-1])
    if op.type.startswith("BatchMatMul"):
        a = sizes(op.inputs[0].shape)
        return math.prod(sizes(op.outputs[0].shape)) * (
            a[-2:][0] if op.get_attr("adj_x") else a[-1]
        )  # The rank can be unknown.
    if op.type.startswith(("Conv2D", "Conv3D", "DepthwiseConv2dNative")):
        kernel = sizes(op.inputs[1].shape)
        return math.prod(sizes(op.outputs[0].shape)) * math.prod(kernel) / max(kernel[-1], 1)
    if op.type == "Einsum":
        letters = dict(
            pair
            for term, tensor in zip(op.get_attr("equation").decode().split("->")[0].split(","), op.inputs, strict=True)
            if "." not in term
            for pair in zip(term, sizes(tensor.shape), strict=False)
        )
        return math.prod(letters.values())
    return 0.0
