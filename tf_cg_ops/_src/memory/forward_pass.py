"""The forward pass of a recomputed function, in a form that can keep and replay the results of its stateful ops.

Random ops take a seed, loops and branches get the values of variables that they only read, and calls are inlined.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.embed_gradient.api import embed_gradient
from tf_cg_ops._src.graphs import control_flow
from tf_cg_ops._src.graphs.graph_copy import GraphCopy
from tf_cg_ops._src.memory.random_numbers import STATELESS, Seeds

_READS = frozenset(["ReadVariableOp", "ResourceGather"])
# It returns its inputs; only its gradient reads the variables among them.
_RULE = "CustomGradientRule"


@dataclasses.dataclass(frozen=True)
class Read:
    """What was read from a variable: its value, or rows of a table.

    Attributes:
      op: The op that read it, in the graph that is copied.
      handle: The handle of the variable.
      value: What was read.
      indices: The rows, or None.
    """

    op: Any
    handle: tf.Tensor
    value: tf.Tensor
    indices: tf.Tensor | None = None

    def again(self, handle: Any, indices: Any) -> tf.Tensor:
        """Reads the same from the variable as it is now, which connects a tape with it."""
        dtype = self.op.get_attr("dtype")
        if indices is None:
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        batch_dims = self.op.get_attr("batch_dims")
        return tf.raw_ops.ResourceGather(resource=handle, indices=indices, dtype=dtype, batch_dims=batch_dims)


class ForwardPass:
    """Replaces ops while the graph of the function is copied."""

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self._seeds = Seeds()
        self._current_values: dict[int, tf.Tensor] = {}  # By handle: the variables read and not written since.
        self._depth = 0  # How many loops and branches the copy is inside.

    def __call__(self, copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[tf.Tensor] | None:
        if op.type in control_flow.LOOPS | control_flow.CONDITIONALS or control_flow.is_compiled(op):
            return self._copy_control_flow(copy, op, inputs)
        if op.type == "ResourceGather" and not self._depth:  # Reading the whole table can copy it.
            (rows,) = copy.copy_op(op, inputs)
            self.reads.append(Read(op, inputs[0], rows, inputs[1]))
            return [rows]
        if op.type in _READS and (value := self._read(op, inputs[0])) is not None:
            return [value] if op.type == "ReadVariableOp" else [gather(op, value, inputs[1])]
        if op.type in STATELESS:
            return [STATELESS[op.type](op, inputs, self._seeds.draw(op))]
        if not self._depth and op.type not in control_flow.CALLS and op.type != _RULE:
            self._forget([tensor for tensor in inputs if tensor.dtype == tf.resource])
        return None

    def _read(self, op: Any, handle: tf.Tensor) -> tf.Tensor | None:
        """The value of a variable; None in a loop or branch that also writes it."""
        value = self._current_values.get(id(handle))
        if value is None and not self._depth:
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=op.get_attr("dtype"))
            self._current_values[id(handle)] = value
            self.reads.append(Read(op, handle, value))
        return value

    def _forget(self, handles: list[tf.Tensor]) -> None:
        for handle in handles:
            self._current_values.pop(id(handle), None)

    def _copy_control_flow(self, copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[tf.Tensor]:
        if not self._depth:
            for read, handle in _read_only_variables(op, inputs):
                self._read(read, handle)
            written = [t for t in inputs if t.dtype == tf.resource and not _is_only_read(op, inputs, t)]
            self._forget(written)
        random_op = _first_random_op(op)
        seed = None if random_op is None else self._seeds.draw(random_op)
        self._depth += 1
        try:
            if seed is None:
                return control_flow.copy(op, inputs, copy.call)
            if op.type in control_flow.LOOPS:
                return control_flow.copy(op, inputs, copy.call, lambda iteration: self._seeds.inside(seed, iteration))
            with self._seeds.inside(seed):
                return control_flow.copy(op, inputs, copy.call)
        finally:
            self._depth -= 1


def gather(op: Any, value: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """The output of a ResourceGather, computed from the value of the variable."""
    batch_dims = op.get_attr("batch_dims")
    return tf.raw_ops.GatherV2(params=value, indices=indices, axis=batch_dims, batch_dims=batch_dims)


def with_derivative_of(value: tf.Tensor, source: tf.Tensor) -> tf.Tensor:
    """A value that was computed or read earlier, with the derivative 1 with respect to its source."""
    return embed_gradient(value, tf.ones([], value.dtype), source) if tf_internal.is_trainable(value) else value


def _read_only_variables(op: Any, inputs: list[tf.Tensor]) -> list[tuple[Any, tf.Tensor]]:
    """The variables that a loop or conditional only reads: for each, one of the reads and the handle."""
    found = []
    for position, handle in enumerate(inputs):
        if handle.dtype == tf.resource:
            reads = [use for use, _ in control_flow.uses_by(op, position) if use.type != _RULE]
            if reads and all(use.type in _READS for use in reads):
                found.append((reads[0], handle))
    return found


def _is_only_read(op: Any, inputs: list[tf.Tensor], handle: tf.Tensor) -> bool:
    positions = [position for position, tensor in enumerate(inputs) if tensor is handle]
    return all(use.type in (*_READS, _RULE) for position in positions for use, _ in control_flow.uses_by(op, position))


def _first_random_op(op: Any) -> Any:
    """The first random op inside a loop or conditional, at any depth; None if it has none."""
    for function in control_flow.functions_of(op):
        for inner in function.get_operations():
            found = _first_random_op(inner) if inner.type in control_flow.TYPES else inner
            if found is not None and found.type in STATELESS:
                return found
    return None
