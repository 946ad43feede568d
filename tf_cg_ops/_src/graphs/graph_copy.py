"""Copies what computes some tensors of a traced graph into the default graph, op by op, or runs it in eager mode."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import calls, tf_internal
from tf_cg_ops._src.graphs import control_flow, inline

# Gets an op and its copied inputs. Returns the new outputs, or None to copy the op as it is.
Replace = Callable[["GraphCopy", Any, list[tf.Tensor]], Sequence[Any] | None]

# What only Python knows about an op goes to its copies. Each gets an op, the copy of the op, and the copy of the graph.
carriers: list[Callable[[Any, Any, "GraphCopy"], None]] = []

_ORIGINAL = "_tf_cg_ops_original"

# What a read of a variable is if its value stands for its handle.
READS: dict[str, Callable[..., Any]] = {
    "ReadVariableOp": lambda op, value: tf.identity(value),
    "ResourceGather": lambda op, value, indices: tf.gather(value, indices, batch_dims=op.get_attr("batch_dims")),
    "VariableShape": lambda op, value: tf.shape(value, op.get_attr("out_type")),
}

# Attributes that depend on the old graph.
_ATTRIBUTES_OF_THE_PLACE = frozenset(["_class", "_output_shapes"])


class GraphCopy:
    """A copy of part of a graph.

    Args:
      values: Pairs of a tensor of the old graph and the tensor that replaces it. Copying stops at these. For the handle
        of a variable it can be a value, which is what the copies of its reads are then.
      replace: Gives the new outputs of an op, or None to copy it.
      pure: Whether to leave out side effects, and the order of ops that have them.
      is_ordered: Whether the default graph orders ops with side effects by itself, so that the order is not copied.
      around: The copy of the graph around this one. The gradient of an op can read its tensors.
      records: Whether tapes and accumulators see the ops, as in plain code. In eager mode they always do.
      names: Whether the ops keep their names, and the lines of the user's code that made them.
    """

    def __init__(
        self,
        values: Iterable[tuple[Any, Any]],
        replace: Replace | None = None,
        pure: bool = False,
        around: "GraphCopy | None" = None,
        is_ordered: bool = False,
        records: bool = False,
        names: bool = False,
    ) -> None:
        # By identity. The entry holds the old tensor, so that its id stays valid.
        self._values = {id(old): (old, new) for old, new in values}
        self._operations: dict[int, tuple[Any, list[Any]]] = {}
        self.replace = replace
        self.pure = pure
        self._is_ordered = pure or is_ordered
        self._around = around
        self.records = records
        self._names = names

    def outputs_of(self, graph: Any) -> list[Any]:
        """Copies a whole graph and returns its outputs. Side effects are copied, too, unless the copy is pure.

        The copies are in the order of the ops, in which eager mode runs them.
        """
        operations = list(graph.get_operations())
        waiting = [tensor.op for tensor in graph.outputs if tensor not in self]
        if not self.pure:
            waiting += [op for op in operations if op.op_def.is_stateful]
        needed: set[int] = set()
        while waiting:
            op = waiting.pop()
            if id(op) not in needed:
                needed.add(id(op))
                waiting += [tensor.op for tensor in op.inputs if tensor not in self]
        self.operations([op for op in operations if id(op) in needed])
        return self.tensors(graph.outputs)

    def call(self, function: Any, inputs: Sequence[Any]) -> list[Any]:
        """Copies a function that an op of this graph calls, and returns its outputs."""
        pairs = zip(function.inputs, inputs, strict=True)
        copy = GraphCopy(pairs, self.replace, self.pure, self, records=self.records, names=self._names)
        return copy.outputs_of(function)

    def graphs_around(self, graph: Any) -> list[Any]:
        """The graphs around this one that are also copied, from the inside to the outside."""
        found, around = [], self._around
        while around is not None:
            graph, around = getattr(graph, "outer_graph", None), around._around
            found.append(graph)
        return found

    def __getitem__(self, tensor: Any) -> Any:
        if id(tensor) not in self._values and self._around is not None:
            return self._around[tensor]
        return self._values[id(tensor)][1]

    def __contains__(self, tensor: Any) -> bool:
        return id(tensor) in self._values or (self._around is not None and tensor in self._around)

    def pairs(self) -> list[tuple[Any, Any]]:
        """Pairs of each tensor that was copied so far, also in the graphs around this one, and its copy."""
        return [*(self._around.pairs() if self._around else ()), *self._values.values()]

    def tensors(self, tensors: Sequence[Any]) -> list[Any]:
        """Copies what computes these tensors."""
        self.operations([tensor.op for tensor in tensors if tensor not in self])
        return [self[tensor] for tensor in tensors]

    def operations(self, operations: Iterable[Any]) -> None:
        """Copies these ops and what they need, in this order."""
        # Not recursive, because Python limits the depth of recursion.
        waiting = list(operations)[::-1]
        begun: set[int] = set()
        while waiting:
            op = waiting[-1]
            if id(op) in self._operations:
                waiting.pop()
                continue
            missing = [needed for needed in self._needed_by(op) if id(needed) not in self._operations]
            if not missing:
                waiting.pop()
                self._copy(op)
            elif id(op) in begun:
                raise _control_flow_of_tensorflow_1(op)
            else:
                begun.add(id(op))
                waiting.extend(reversed(missing))

    def _needed_by(self, op: Any) -> list[Any]:
        if all(output in self for output in op.outputs) and op.outputs:
            return []
        needed = [tensor.op for tensor in op.inputs if tensor not in self]
        return needed if self._is_ordered else needed + list(op.control_inputs)

    def _copy(self, op: Any) -> None:
        if op.outputs and all(output in self for output in op.outputs):
            self._operations[id(op)] = (op, [])
            return
        inputs = [self[tensor] for tensor in op.inputs]
        before = [] if self._is_ordered else op.control_inputs
        waits = [new for old in before for new in self._operations.get(id(old), (None, []))[1]]
        with tf.control_dependencies(waits):
            outputs = self.replace(self, op, inputs) if self.replace else None
            if outputs is None:
                outputs = self.copy_op(op, inputs)
        for old, new in zip(op.outputs, outputs, strict=True):
            if old not in self:
                self._values[id(old)] = (old, new)
        new_operations = {id(new.op): new.op for new in outputs if not isinstance(new, tf_internal.EagerTensor)}
        # copy_op has already noted an op without outputs.
        self._operations.setdefault(id(op), (op, list(new_operations.values())))

    def copy_op(self, op: Any, inputs: list[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Copies one op without asking `replace`; returns its outputs."""
        if op.type in READS and inputs[0].dtype != tf.resource:
            return [READS[op.type](op, *inputs)]
        if op.type in control_flow.TYPES:
            scope = op.name.rpartition("/")[0] if self._names and op.type not in control_flow.CALLS else ""
            with tf.name_scope(f"{scope}/") if scope else contextlib.nullcontext():
                return control_flow.copy(op, inputs, self.call)
        if op.type in control_flow.TYPES_OF_TENSORFLOW_1:
            raise _control_flow_of_tensorflow_1(op)
        place = tf.device(op.device) if op.device else contextlib.nullcontext()
        if tf.executing_eagerly():
            with place:
                return tf_internal.run_like(op, inputs)
        graph = tf.compat.v1.get_default_graph()
        attributes = {k: v for k, v in op.node_def.attr.items() if k not in _ATTRIBUTES_OF_THE_PLACE}
        # TensorFlow 1 made ops whose type is the name of a function, as tf.nn.ctc_loss still does.
        for name in [op.type, *(called.name for called in calls.functions_in(attributes.values()))]:
            function = tf_internal.find_function(op.graph, name)
            # Not if only a graph around it has the function: a function of this graph would lack what it calls.
            if function is not None and not tf_internal.holds_function(graph, name):
                tf_internal.add_function(graph, function)
                # A rule may call functions that only the graph of its op holds.
                inline.add_called_functions(op.graph, graph, tf_internal.function_def_of(function))
        with place:
            new = tf_internal.create_op(graph, op.type, inputs, attributes, name=op.name if self._names else None)
        if self._names:
            note_original(new, op)
        for old_output, new_output in zip(op.outputs, new.outputs, strict=True):
            if not new_output.shape.is_fully_defined():  # The user can have called set_shape.
                new_output.set_shape(old_output.shape)
        if not op.outputs:
            self._operations[id(op)] = (op, [new])
        for carry in carriers:
            carry(op, new, self)
        if self.records:  # Forward mode would hash the attributes, which fails for the name of a function.
            names_function = next(calls.functions_in(attributes.values()), None) is not None
            (inline.record if names_function else tf_internal.record_copy)(new)
        return new.outputs


def note_original(copy: Any, op: Any) -> None:
    """Notes which op a copy is of."""
    setattr(copy, _ORIGINAL, op)


def original_of(op: Any) -> Any:
    """The op that an op is a copy of, or the op itself."""
    while hasattr(op, _ORIGINAL):
        op = getattr(op, _ORIGINAL)
    return op


def traceback_of(op: Any) -> Any:
    """The Python frames of the code that made an op, or the op that it is a copy of."""
    return original_of(op).traceback


def captures_of(graph: Any) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
    """The values and the resource handles that a traced graph captures, as two lists of pairs (inside, outside).

    Integer constants are left out, because they are copied with the graph. Float constants can have gradients.
    """
    captures = [(inside, outside) for outside, inside in graph.captures]
    values = [
        (inside, outside)
        for inside, outside in captures
        if inside.dtype != tf.resource and (inside.op.type != "Const" or tf_internal.is_trainable(inside))
    ]
    return values, [(inside, outside) for inside, outside in captures if inside.dtype == tf.resource]


def _control_flow_of_tensorflow_1(op: Any) -> NotImplementedError:
    return NotImplementedError(
        f"tf_cg_ops: loops and conditionals must be TensorFlow 2's, got '{op.name}' ({op.type}) of TensorFlow 1. Load "
        "and trace the function in TensorFlow 2."
    )
