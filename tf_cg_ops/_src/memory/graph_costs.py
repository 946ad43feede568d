"""What the values and ops of a traced graph cost: bytes, and an estimate of the time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import calls, tf_internal
from tf_cg_ops._src.memory.gradient_reads import GradientReads, static_value
from tf_cg_ops._src.rewrite import control_flow

# A size that is not known counts the same everywhere.
UNKNOWN_SIZE = 32
# In the time of moving one byte, a processor computes about this many products.
_PRODUCTS_PER_BYTE = 4
# TensorFlow's convolutions on the CPU unfold about as many bytes as the last cache of a processor has.
_UNFOLDED = 32 * 2**20
# Their results share the memory of their first input.
_ALIASES = frozenset(
    ["Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "EnsureShape", "CheckNumerics"]
)
_NOT_IN_PIECES = frozenset(["Placeholder", "NoOp"])


@dataclasses.dataclass
class _Value:
    """A buffer: where ops of the graph produce and use it."""

    size: int
    first: int  # The op that produces it; -1 for inputs.
    last: int = -1  # The last op that uses it.
    first_saver: int | None = None  # The first op whose gradient reads it.
    has_gradient: bool = False
    is_kept: bool = False
    can_cross: bool = True  # Whether a cut can keep it.


class GraphCosts:
    """The ops of a graph in order, with the values between them.

    Attributes:
      operations: The ops.
      cost: An estimate of the time of each.
      values: The buffers that ops produce.
      in_flight: The bytes of gradients, and for work, while the gradient of each op is computed.
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
        reads = GradientReads()
        has_gradient = lambda tensor: id(tensor) in with_gradient  # noqa: E731
        self.cost = np.zeros(len(self.operations))
        weight_bytes = np.zeros(len(self.operations))
        for tensor in inputs:
            self._values[id(tensor)] = _Value(0, -1)
        saved: list[tuple[int, Any]] = []
        for number, op in enumerate(self.operations):
            for tensor in op.inputs:
                self.value_of(tensor).last = number
            is_read = op.type == "ReadVariableOp"
            differentiates = any(map(has_gradient, op.inputs)) and tf_internal.find_gradient_function(op) is not None
            if is_read and differentiates:
                weight_bytes[number] = self._bytes(op.outputs[0])
            saved += [(number, tensor) for tensor in reads.of(op, has_gradient)]
            for output in op.outputs:
                if op.type in _ALIASES:
                    self._values[id(output)] = self.value_of(op.inputs[0])
                elif id(output) not in self._values:  # In eager mode, some constants are inputs.
                    # A read shares the memory of its variable.
                    is_free = is_read or static_value(output) is not None or op.type == "Const"
                    self._values[id(output)] = _Value(0 if is_free else self._bytes(output), number, number)
                value = self._values[id(output)]
                if differentiates and tf_internal.is_trainable(output):
                    with_gradient.add(id(output))
                    value.has_gradient = True
                value.can_cross = value.can_cross and output.dtype not in (tf.resource, tf.variant)
                value.is_kept = value.is_kept or (output.dtype != tf.variant and is_kept(op))
            self.cost[number] = self._cost_of(op)
        for number, tensor in saved:
            value = self.value_of(tensor)
            value.first_saver = number if value.first_saver is None else min(value.first_saver, number)
        for tensor in graph.outputs:
            self.value_of(tensor).last = len(self.operations)
        self.values = list({id(value): value for value in self._values.values() if value.first >= 0}.values())
        workspace = np.array([self._workspace(op) for op in self.operations])
        self.in_flight = self._gradients_in_flight() + np.cumsum(weight_bytes[::-1])[::-1] + workspace
        self._number_of = number_of

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
            if value.has_gradient:
                change[value.first] += value.size
                change[min(value.last, len(self.operations) - 1) + 1] -= value.size
        total = np.cumsum(change[:-1])
        for number, op in enumerate(self.operations):
            # The gradient of an op element by element has the buffer of its upstream gradient.
            if len(op.outputs) == 1 and op.type not in _ALIASES and not _products(op, self._sizes):
                value = self.value_of(op.outputs[0])
                ends = [v for t in op.inputs if (v := self.value_of(t)).last == number and v.has_gradient]
                if value.has_gradient and any(other.size == value.size for other in ends):
                    total[number] -= value.size
        return total

    def _workspace(self, op: Any) -> float:
        """The bytes that the gradient of a convolution unfolds at once."""
        if not op.type.startswith("Conv2D") or math.prod(self._sizes(op.inputs[1].shape)[:2]) == 1:
            return 0
        kernel, result = self._sizes(op.inputs[1].shape), self._sizes(op.outputs[0].shape)
        return min(math.prod(kernel[:-1]) * math.prod(result) / max(kernel[-1], 1) * op.inputs[0].dtype.size, _UNFOLDED)

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


def _products(op: Any, sizes: Callable[[tf.TensorShape], list[int]]) -> float:
    """The number of products that an op adds up; 0 if it is not a contraction."""
    if op.type == "MatMul":
        a = sizes(op.inputs[0].shape)
        return math.prod(sizes(op.outputs[0].shape)) * (a[0] if op.get_attr("transpose_a") else a[-1])
    if op.type.startswith("BatchMatMul"):
        a = sizes(op.inputs[0].shape)
        return math.prod(sizes(op.outputs[0].shape)) * (a[-2] if op.get_attr("adj_x") else a[-1])
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
