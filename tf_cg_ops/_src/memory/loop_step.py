"""One step of a loop, traced once: what it takes from outside and its state become inputs and outputs.

Loops made of such steps can run again.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.custom_gradient.variables import handles_of
from tf_cg_ops._src.graphs import control_flow
from tf_cg_ops._src.graphs.graph_copy import GraphCopy, Replace
from tf_cg_ops._src.memory.forward_pass import gather, with_derivative_of
from tf_cg_ops._src.rewrite.traced_call import Outside, graph_to_copy

# The new value of a variable, for each op that writes it.
_WRITES: dict[str, Callable[[tf.Tensor, Sequence[tf.Tensor]], tf.Tensor]] = {
    "AssignVariableOp": lambda _, inputs: inputs[1],
    "AssignAddVariableOp": lambda before, inputs: before + inputs[1],
    "AssignSubVariableOp": lambda before, inputs: before - inputs[1],
    "RngReadAndSkip": lambda before, inputs: _skip(before, inputs[2]),
}
_READS = frozenset(["ReadVariableOp", "ResourceGather", "RngReadAndSkip"])


class LoopStep:
    """A function of Tensors that a loop calls. It captures nothing: the caller passes what it takes from outside.

    Variables that it only reads are read before the loop. Variables that it writes are state: the step gets their
    values and returns the new ones.

    Attributes:
      outputs: The specs of what the step returns.
    """

    def __init__(self, function: Callable[..., list[tf.Tensor]], specs: Sequence[tf.TensorSpec]) -> None:
        with tf_internal.VariableWatcher() as watcher:
            self.graph = graph_to_copy(function, specs)
        self.outputs = [tf.TensorSpec(t.shape, t.dtype) for t in self.graph.outputs]
        outside = Outside.of(self.graph)
        self.inputs = [*self.graph.inputs[: len(specs)], *outside.inside]
        self._num_inputs, self._num_handles = len(specs), len(outside.handles)
        self._variables: list[_Variable] = []
        for position, (inside, _) in enumerate(outside.handles):
            uses = list(control_flow.uses_of(inside))
            if uses and all(_is_replaced(use, nested) for use, nested in uses):
                self._variables.append(_Variable(position, [use for use, _ in uses]))
        self._written = [variable for variable in self._variables if variable.is_written]
        variables = {id(handle): v for v in watcher.watched_variables() for handle in handles_of(v)}
        self._outside = outside.values, [variables.get(id(handle)) for _, handle in outside.handles]

    def take_outside(self) -> tuple[list[Any], list[Any]]:
        """The values from outside (captured Tensors, numbers, and variables that are read now) and the handles.

        Afterwards the step no longer refers to them.
        """
        (values, read_as), self._outside = self._outside, ([], [])
        values, handles = values[: len(values) - self._num_handles], values[len(values) - self._num_handles :]
        values += [variable.read(handles, read_as[variable.position]) for variable in self._variables]
        return values, handles

    def forget_outside(self) -> None:
        """In eager mode, releases what the graph captured."""
        if tf.executing_eagerly():
            tf_internal.forget_captures(self.graph)

    def state(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The state for the first step, taken from the values."""
        by_variable = zip(self._variables, values[len(values) - len(self._variables) :], strict=True)
        return [value for variable, value in by_variable if variable.is_written]

    def __call__(
        self,
        inputs: Sequence[tf.Tensor],
        state: Sequence[tf.Tensor],
        values: Sequence[tf.Tensor],
        handles: list[Any],
        records: bool = False,
        replaced: Replace = lambda *_: None,
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The outputs of the step and the new state, in the default graph, and on the tapes if it `records`.

        `replaced` can give the outputs of ops that do not use a variable.
        """
        captured, of_variables = values[: -len(self._variables) or None], values[len(values) - len(self._variables) :]
        read = {id(handles[v.position]): value for v, value in zip(self._variables, of_variables, strict=True)}
        written = {id(handles[v.position]): value for v, value in zip(self._written, state, strict=True)}

        def replace(copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[tf.Tensor] | None:
            handle = id(inputs[0]) if inputs else None
            if handle not in read or op.type not in _READS | _WRITES.keys():
                return replaced(copy, op, inputs)
            value = read[handle]
            if handle in written:
                # As in a plain loop, the derivative goes to the variable and not to what was assigned.
                value = with_derivative_of(written[handle], value)
            if op.type in _WRITES:
                shape = written[handle].shape  # A variable keeps its shape. The shape of a new value can be unknown.
                written[handle] = tf.stop_gradient(_WRITES[op.type](written[handle], inputs))
                written[handle].set_shape(shape)
            if op.type == "ResourceGather":
                return [gather(op, value, inputs[1])]
            return [value] if op.outputs else []

        pairs = zip(self.inputs, [*inputs, *captured, *handles], strict=True)
        copy = GraphCopy(pairs, replace, records=records, names=True)
        outputs = copy.outputs_of(self.graph)
        return outputs, [written[id(handles[variable.position])] for variable in self._written]

    def assign(self, state: Sequence[tf.Tensor], handles: Sequence[Any]) -> list[tf.Operation]:
        """Writes the variables after the loop."""
        return [
            tf.raw_ops.AssignVariableOp(resource=handles[variable.position], value=value)
            for variable, value in zip(self._written, state, strict=True)
        ]


class _Variable:
    """A variable whose reads and writes in the step are replaced by values. Its handle has this position."""

    def __init__(self, position: int, uses: Sequence[Any]) -> None:
        self.position = position
        self.is_written = any(use.type in _WRITES for use in uses)
        dtypes = [use.get_attr("dtype") for use in uses if use.type != "RngReadAndSkip"]
        self._dtype = dtypes[0] if dtypes else tf.int64

    def read(self, handles: Sequence[Any], variable: tf.Variable | None) -> tf.Tensor:
        """The value now, read from the variable if TensorFlow reported it."""
        if variable is not None:
            return tf.convert_to_tensor(variable)  # A tape records this.
        return tf.raw_ops.ReadVariableOp(resource=handles[self.position], dtype=self._dtype)


def _is_replaced(use: Any, nested: bool) -> bool:
    return use.type in _READS | _WRITES.keys() and not (nested and use.type in _WRITES)


def _skip(state: tf.Tensor, num_samples: tf.Tensor) -> tf.Tensor:
    """The state of a `tf.random.Generator` after these samples. Each one advances the counter by 256."""
    low = tf.bitcast(state[0], tf.uint64)
    new_low = low + 256 * tf.cast(num_samples, tf.uint64)
    carry = tf.cast(new_low < low, tf.int64)
    counter = [tf.bitcast(new_low, tf.int64), state[1] + carry]
    return tf.concat([counter[: state.shape[0] - 1], state[-1:]], 0)
