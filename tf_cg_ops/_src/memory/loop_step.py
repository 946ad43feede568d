"""One step of a loop, traced once: outside values are read once, and its state becomes inputs and outputs.

Loops made of such steps can run again.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import calls, tf_internal
from tf_cg_ops._src.core.variables import handles_of
from tf_cg_ops._src.custom_gradient.wording import Wording
from tf_cg_ops._src.memory.forward_pass import gather, with_derivative_of
from tf_cg_ops._src.rewrite import control_flow
from tf_cg_ops._src.rewrite.graph_copy import GraphCopy, captures_of
from tf_cg_ops._src.rewrite.python_gradients import copy_with_python_gradient
from tf_cg_ops._src.rewrite.traced_call import trace

# The new value of a variable, for each op that writes it.
_WRITES: dict[str, Callable[[tf.Tensor, Sequence[tf.Tensor]], tf.Tensor]] = {
    "AssignVariableOp": lambda _, inputs: inputs[1],
    "AssignAddVariableOp": lambda before, inputs: before + inputs[1],
    "AssignSubVariableOp": lambda before, inputs: before - inputs[1],
    "RngReadAndSkip": lambda before, inputs: _skip(before, inputs[2]),
}
_READS = frozenset(["ReadVariableOp", "ResourceGather", "RngReadAndSkip"])


class LoopStep:
    """A function of Tensors that a loop calls. It captures only handles of resources.

    Variables that it only reads are read before the loop. Variables that it writes are state: the step gets their
    values and returns the new ones.

    Attributes:
      outputs: The specs of what the step returns.
    """

    def __init__(
        self, wording: Wording, function: Callable[..., list[tf.Tensor]], specs: Sequence[tf.TensorSpec]
    ) -> None:
        self._wording = wording
        with tf_internal.VariableWatcher() as watcher:
            self._graph = trace(function, specs).graph
        self.outputs = [tf.TensorSpec(t.shape, t.dtype) for t in self._graph.outputs]
        self._inputs = self._graph.inputs[: len(specs)]
        self._captures, self._handles = captures_of(self._graph)
        variables = {id(handle): v for v in watcher.watched_variables() for handle in handles_of(v)}
        self._variables: list[_Variable] = []
        for inside, outside in self._handles:
            uses = list(control_flow.uses_of(inside))
            if uses and all(_is_replaced(use, nested) for use, nested in uses):
                self._variables.append(_Variable(outside, variables.get(id(outside)), [use for use, _ in uses]))
        self._written = [variable for variable in self._variables if variable.is_written]

    def values(self) -> list[tf.Tensor]:
        """The values from outside for one loop: captured Tensors and variables."""
        return [outside for _, outside in self._captures] + [variable.read() for variable in self._variables]

    def state(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The state for the first step, taken from the values."""
        by_variable = zip(self._variables, values[len(self._captures) :], strict=True)
        return [value for variable, value in by_variable if variable.is_written]

    def __call__(
        self, inputs: Sequence[tf.Tensor], state: Sequence[tf.Tensor], values: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The outputs of the step and the new state, in the default graph."""
        num_captures = len(self._captures)
        read = {id(v.handle): value for v, value in zip(self._variables, values[num_captures:], strict=True)}
        written = {id(v.handle): value for v, value in zip(self._written, state, strict=True)}

        def replace(copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[tf.Tensor] | None:
            handle = id(inputs[0]) if inputs else None
            if handle not in read or op.type not in _READS | _WRITES.keys():
                return copy_with_python_gradient(self._wording, copy, op, inputs)
            value = read[handle]
            if handle in written:
                # As in a plain loop, the derivative goes to the variable and not to what was assigned.
                value = with_derivative_of(written[handle], value)
            if op.type in _WRITES:
                written[handle] = tf.stop_gradient(_WRITES[op.type](written[handle], inputs))
            if op.type == "ResourceGather":
                return [gather(op, value, inputs[1])]
            return [value] if op.outputs else []

        captured = [(inside, value) for (inside, _), value in zip(self._captures, values[:num_captures], strict=True)]
        copy = GraphCopy([*zip(self._inputs, inputs, strict=True), *captured, *self._handles], replace)
        return copy.outputs_of(self._graph), [written[id(variable.handle)] for variable in self._written]

    def fingerprint(self) -> Any:
        """Equal for steps that compute the same and write the same variables."""
        replaced = {id(variable.handle) for variable in self._variables if not variable.is_written}
        others = [id(outside) for _, outside in self._handles if id(outside) not in replaced]
        inputs = [*self._inputs, *(inside for inside, _ in (*self._captures, *self._handles))]
        return _fingerprint(self._graph, inputs, self._graph.outputs), tuple(others)

    def assign(self, state: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Writes the variables after the loop."""
        return [
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
            for variable, value in zip(self._written, state, strict=True)
        ]


class _Variable:
    """A variable whose reads and writes in the step are replaced by values."""

    def __init__(self, handle: Any, variable: tf.Variable | None, uses: Sequence[Any]) -> None:
        self.handle = handle
        self.is_written = any(use.type in _WRITES for use in uses)
        self._variable = variable
        dtypes = [use.get_attr("dtype") for use in uses if use.type != "RngReadAndSkip"]
        self._dtype = dtypes[0] if dtypes else tf.int64

    def read(self) -> tf.Tensor:
        """The value now."""
        if self._variable is not None:
            return tf.convert_to_tensor(self._variable)  # A tape records this.
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self._dtype)


def _is_replaced(use: Any, nested: bool) -> bool:
    return use.type in _READS | _WRITES.keys() and not (nested and use.type in _WRITES)


def _skip(state: tf.Tensor, num_samples: tf.Tensor) -> tf.Tensor:
    """The state of a `tf.random.Generator` after these samples. Each one advances the counter by 256."""
    low = tf.bitcast(state[0], tf.uint64)
    new_low = low + 256 * tf.cast(num_samples, tf.uint64)
    carry = tf.cast(new_low < low, tf.int64)
    counter = [tf.bitcast(new_low, tf.int64), state[1] + carry]
    return tf.concat([counter[: state.shape[0] - 1], state[-1:]], 0)


def _fingerprint(graph: Any, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]) -> bytes:
    """A hash of the ops of a graph, their attributes, and the functions they call.

    Two traces that compute the same from their inputs have the same hash: it ignores the names of ops and functions,
    and the values of the inputs. A gradient in Python makes it unique, because its attribute is new in each trace.
    """
    digest = hashlib.sha256()
    given = {id(tensor) for tensor in inputs}
    number_of = {id(op): number for number, op in enumerate(graph.get_operations())}

    def places(tensors: Iterable[tf.Tensor]) -> list[tuple[int, int]]:
        return [(number_of[id(tensor.op)], tensor.value_index) for tensor in tensors]

    for op in graph.get_operations():
        waits = sorted(number_of[id(other)] for other in op.control_inputs)  # TensorFlow orders them by address.
        digest.update(repr((op.type, op.device, places(op.inputs), waits)).encode())
        if any(id(output) in given for output in op.outputs):
            digest.update(repr([(output.dtype, output.shape) for output in op.outputs]).encode())
            continue
        for name, attribute in sorted(op.node_def.attr.items()):
            called = [function.name for function in calls.functions_in([attribute])]
            digest.update(name.encode())
            if not called:
                digest.update(attribute.SerializeToString(deterministic=True))
            for other in called:
                body = tf_internal.graph_of_function(tf_internal.find_function(graph, other))
                digest.update(_fingerprint(body, body.inputs, body.outputs))
    digest.update(repr([places(inputs), places(outputs)]).encode())
    return digest.digest()
