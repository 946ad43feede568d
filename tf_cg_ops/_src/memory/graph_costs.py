"""What the values and ops of a traced graph cost: bytes, and an estimate of the time."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import calls, tf_internal
from tf_cg_ops._src.graphs import control_flow
from tf_cg_ops._src.memory.gradient_reads import GradientReads, static_value

# A size that is not known counts the same everywhere.
UNKNOWN_SIZE = 32
# In the time of moving one byte, a processor computes about this many products.
_PRODUCTS_PER_BYTE = 4
# The last cache of a processor. Conv2DBackpropInput and Conv2DBackpropFilter unfold as many images as fit into it.
_CACHE = 32 * 2**20
# Their results share the memory of their inputs.
_ALIASES = {"Identity", "IdentityN", "StopGradient", "PreventGradient", "EnsureShape", "CheckNumerics", "Reshape"}
_ALIASES |= {"Squeeze", "ExpandDims", "CustomGradientRule", "CustomGradientBarrier"}
_NOT_IN_SEGMENTS = frozenset(["Placeholder", "NoOp"])


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
        self.operations = [op for op in graph.get_operations() if op.type not in _NOT_IN_SEGMENTS]
        self.has_unknown_sizes = False
        # A placeholder that is not an input, or a tensor from outside, takes no memory of its own.
        self._values: dict[int, _Value] = collections.defaultdict(lambda: _Value(0, -1))
        with_gradient = {id(tensor) for tensor in sources}
        for tensor in inputs:
            self.value_of(tensor)
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
        self.cost = np.array([self._cost_of(op) for op in self.operations])
        workspace = np.array([self._workspace(op) for op in self.operations])
        self.in_flight = self._gradients_in_flight() + np.cumsum(weights[::-1])[::-1] + workspace

    def _differentiate(self, graph: Any, with_gradient: set[int]) -> np.ndarray:
        """Follows the gradient back from the results; returns the bytes that each op adds to gradients of weights.

        Much that depends on the sources has no gradient: a custom gradient passes by the ops that compute its value.
        """
        weights = np.zeros(len(self.operations))
        reads, tables = GradientReads(), set[int]()
        arrived = {id(tensor) for tensor in graph.outputs} & with_gradient
        for result in arrived:
            self._values[result].last_source = len(self.operations)
        for number, op in reversed(list(enumerate(self.operations))):
            if not any(id(output) in arrived for output in op.outputs):
                continue
            if op.type in calls.LOOPS:
                self._values[id(op)] = _Value(self._of_all_steps(op), number, number, number)
            for tensor, read in reads.of(op, lambda t: id(t) in with_gradient):
                arrived.add(id(tensor))
                value = self.value_of(tensor)
                value.last_source = number if value.last_source is None else value.last_source
                for each in map(self.value_of, read):
                    each.first_saver = number
                if _is_lookup(op):  # Its gradient is the upstream gradient, with the places of its slices.
                    weights[number] += self._bytes(op.outputs[0])
                elif tensor.op.type == "ReadVariableOp" and id(tensor.op.inputs[0]) not in tables:
                    tables.add(id(tensor.op.inputs[0]))  # Gradients of several uses are added up in place.
                    weights[number] += self._bytes(tensor)
        return weights

    def _of_all_steps(self, op: Any) -> int:
        """The bytes that the gradient of a loop reads: TensorFlow keeps a list of each value, with all steps."""
        _, body = control_flow.functions_of(op)
        fixed = control_flow.loop_invariant_inputs(body)
        own = [tensor for position, tensor in enumerate(body.inputs) if position not in fixed]
        costs = GraphCosts(body, body.inputs, list(filter(tf_internal.is_trainable, body.inputs)), lambda op: False)
        read = sum(value.size for value in costs.values if value.first_saver is not None)
        read += sum(self._bytes(t) for t in own if costs.value_of(t).first_saver is not None)
        # tf.while_loop passes a counter, and the number of steps or -1. Keras takes the maximum of one number.
        steps = [t.op.inputs[0] if t.op.type == "Max" else t for t in op.inputs[1:2] if t.dtype == tf.int32]
        most = static_value(steps[0]) if steps else None
        self.has_unknown_sizes |= costs.has_unknown_sizes
        if most is None or most.ndim > 0 or most < 0:
            self.has_unknown_sizes, most = True, UNKNOWN_SIZE
        return read * int(most)

    def value_of(self, tensor: Any) -> _Value:
        """The buffer of a tensor."""
        return self._values[id(tensor)]

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
        if op.type == "Softmax":  # The product of the gradient and the result, of which it takes sums.
            return self._bytes(op.outputs[0])
        if op.type == "MaxPool":  # The places of the maxima, as int64.
            return self._bytes(op.outputs[0]) / op.outputs[0].dtype.size * 8
        if op.type in calls.TYPES:
            return max(map(self._workspace, _inner(op)), default=0)
        is_convolution = op.type in ("Conv2D", "Conv3D", "Conv2DBackpropInput")
        if not is_convolution or not op.get_attr("data_format").endswith(b"C"):  # On a CPU, channels are last.
            return 0
        small = op.inputs[2] if op.type == "Conv2DBackpropInput" else op.outputs[0]
        kernel, result = self._sizes(op.inputs[1].shape), self._sizes(small.shape)
        channels = self._sizes(op.inputs[0].shape)[-1]
        if op.type == "Conv2D" and kernel[-2:-1] not in ([], [channels]):
            # Only XLA differentiates groups. It computes the gradient for a kernel of all channels, in two buffers.
            return 2 * math.prod(kernel) * channels / max(kernel[-2], 1) * small.dtype.size
        return min(math.prod(result[:-1]) * math.prod(kernel[:-1]) * small.dtype.size, _CACHE)

    def _sizes(self, shape: tf.TensorShape) -> list[int]:
        self.has_unknown_sizes |= not shape.is_fully_defined()
        return [UNKNOWN_SIZE if size is None else size for size in ([None] if shape.rank is None else shape)]

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
            return sum(map(self._cost_of, _inner(op)))
        moved = sum(self._bytes(tensor) for tensor in (*op.inputs, *op.outputs))
        return moved + _products(op, self._sizes) / _PRODUCTS_PER_BYTE


def _inner(op: Any) -> list[Any]:
    """The ops of the functions that an op calls."""
    return [each for function in control_flow.functions_of(op) for each in function.get_operations()]


def _is_lookup(op: Any) -> bool:
    """Whether the gradient of an op with respect to a variable is slices, as large as its result, not a table."""
    is_gather = op.type == "GatherV2" and op.inputs[0].op.type == "ReadVariableOp"
    return op.type == "ResourceGather" or (is_gather and static_value(op.inputs[2]) == 0)


def _products(op: Any, sizes: Callable[[tf.TensorShape], list[int]]) -> float:
    """The number of products that an op adds up; 0 if it is not a contraction."""
    if op.type == "MatMul":
        a = sizes(op.inputs[0].shape)
        return math.prod(sizes(op.outputs[0].shape)) * (a[0] if op.get_attr("transpose_a") else a[-1])
    if op.type.startswith("BatchMatMul"):
        a = sizes(op.inputs[0].shape)[-2:]
        return math.prod(sizes(op.outputs[0].shape)) * (a[0] if op.get_attr("adj_x") else a[-1])
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
