"""What the gradient of an op reads of the forward pass, so what a plain gradient keeps in memory.

TensorFlow's own gradient functions tell it: each kind of op is differentiated once, in a graph of its own.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import calls, tf_internal
from tf_cg_ops._src.rewrite import control_flow
from tf_cg_ops._src.rewrite.python_gradients import trace_gradient

# Constants up to this size are part of what kind of op it is: gradient functions look at axes and shapes.
_MOST_ELEMENTS = 64


class GradientReads:
    """Tells what the gradients of the ops in a graph read."""

    def __init__(self) -> None:
        self._known: dict[Any, list[frozenset[int]]] = {}

    def of(self, op: Any, has_gradient: Callable[[Any], bool]) -> list[Any]:
        """The inputs and outputs of an op that its gradient reads, for the inputs that have a gradient."""
        if not any(map(tf_internal.is_trainable, op.outputs)) or not any(map(has_gradient, op.inputs)):
            return []
        if op.type == "CustomGradientRule":  # Its rule reads its arguments and captures, not its results.
            return [tensor for tensor in op.inputs[len(op.outputs) :] if tensor.dtype != tf.resource]
        if tf_internal.has_python_gradient(op):
            traced = trace_gradient(op)
            return [] if traced is None else [outside for _, outside in traced.captures]
        if op.type in calls.TYPES or any(tensor.dtype in (tf.resource, tf.variant) for tensor in op.inputs):
            return [tensor for tensor in (*op.inputs, *op.outputs) if tensor.dtype not in (tf.resource, tf.variant)]
        if tf_internal.find_gradient_function(op) is None:
            return []
        key = _kind(op)
        if key not in self._known:
            self._known[key] = _positions_read(op)
        tensors = [*op.inputs, *op.outputs]
        positions = {p for t, read in zip(op.inputs, self._known[key], strict=True) if has_gradient(t) for p in read}
        return [tensors[position] for position in sorted(positions)]


def static_value(tensor: Any) -> Any:
    """The value of a small tensor that is known while tracing, such as a shape or an axis; else None."""
    if tensor.dtype in (tf.resource, tf.variant, tf.string) or tensor.shape.rank is None:
        return None
    if tensor.op.type != "Const" and not (tensor.dtype.is_integer and tensor.shape.rank <= 1):
        return None
    size = tensor.shape.num_elements()
    return tf.get_static_value(tensor) if size is not None and size <= _MOST_ELEMENTS else None


def _kind(op: Any) -> Any:
    """All ops with the same kind have the same gradient."""
    attributes = sorted((name, str(value)) for name, value in op.node_def.attr.items() if not name.startswith("_"))
    inputs = [(t.dtype, str(t.shape), str(static_value(t))) for t in op.inputs]
    return op.type, str(attributes), str(inputs)


def _positions_read(op: Any) -> list[frozenset[int]]:
    """For each input of an op, the positions among its inputs and outputs that the gradient of the input reads."""
    graph = tf_internal.FuncGraph("gradient_of_" + op.type)
    with graph.as_default():
        inputs = []
        for tensor in op.inputs:
            value = static_value(tensor)
            is_known = value is not None and not tensor.dtype.is_floating
            new = tf.constant(value, tensor.dtype) if is_known else None
            inputs.append(tf_internal.graph_placeholder(tensor.dtype, tensor.shape) if new is None else new)
        attributes = {name: value for name, value in op.node_def.attr.items() if not name.startswith("_")}
        copy = tf_internal.create_op(graph, op.type, inputs, attributes)
        outputs = [output for output in copy.outputs if tf_internal.is_trainable(output)]
        dys = [tf_internal.graph_placeholder(output.dtype, output.shape) for output in outputs]
        gradients = tf.gradients(outputs, inputs, grad_ys=dys)
    places = {id(tensor): position for position, tensor in enumerate([*inputs, *copy.outputs])}
    return [frozenset(_read_by(tf.nest.flatten(g, expand_composites=True), places)) for g in gradients]


def _read_by(results: Sequence[Any], places: dict[int, int]) -> set[int]:
    waiting, seen, found = [tensor for tensor in results if tensor is not None], set(), set()
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in places:
            found.add(places[id(tensor)])
        elif id(tensor.op) not in seen:
            seen.add(id(tensor.op))
            if tensor.op.type not in control_flow.READ_SHAPES:
                waiting.extend(tensor.op.inputs)
    return found
