"""What the gradient of an op reads of the forward pass, so what a plain gradient keeps in memory.

TensorFlow's own gradient functions tell it: each kind of op is differentiated once, in a graph of its own.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import calls, tf_internal
from tf_cg_ops._src.custom_gradient import rule_op
from tf_cg_ops._src.graphs import control_flow

# Constants up to this size are part of what kind of op it is: gradient functions look at axes and shapes.
_MOST_ELEMENTS = 64
_READS = frozenset(["ReadVariableOp", "ResourceGather", "ResourceGatherNd"])


class GradientReads:
    """Tells what the gradients of the ops in a graph read."""

    def __init__(self) -> None:
        self._known: dict[Any, list[frozenset[int] | None]] = {}

    def of(self, op: Any, has_gradient: Callable[[Any], bool]) -> list[tuple[Any, list[Any]]]:
        """The inputs to which an op passes its gradient, each with the inputs and outputs that its gradient reads."""
        tensors: list[Any] = [*op.inputs, *op.outputs]
        read: list[Any]  # For each input; None if it has no gradient.
        if op.type == "CustomGradientRule":  # Its rule reads what it captures, of the arguments, too.
            results, _, captures = rule_op.parts_of_inputs(op)
            read = [None] * len(op.inputs)
            for position in op.get_attr("differentiated_inputs"):
                read[len(results) + position] = _without_handles(captures)
        elif op.type in _READS:  # Their gradients read the places of slices.
            read = [op.inputs[1:]] * len(op.inputs)
        elif op.type in calls.TYPES or len(_without_handles(op.inputs)) < len(op.inputs):
            read = [_without_handles(tensors)] * len(op.inputs)
        else:
            key = _kind(op)
            if key not in self._known:
                self._known[key] = _positions_read(op)
            read = [None if at is None else [tensors[p] for p in sorted(at)] for at in self._known[key]]
        return [(t, list(r)) for t, r in zip(op.inputs, read, strict=True) if r is not None and has_gradient(t)]


def _without_handles(tensors: Sequence[Any]) -> list[Any]:
    return [tensor for tensor in tensors if tensor.dtype not in (tf.resource, tf.variant)]


def static_value(tensor: Any) -> Any:
    """The value of a small tensor that is known while tracing, such as a shape or an axis; else None."""
    if tensor.dtype in (tf.resource, tf.variant, tf.string) or tensor.shape.rank is None:
        return None
    if tensor.op.type != "Const" and not (tensor.dtype.is_integer and tensor.shape.rank <= 1):
        return None
    size = tensor.shape.num_elements()
    return tf.get_static_value(tensor) if size is not None and size <= _MOST_ELEMENTS else None


def _kind(op: Any) -> Any:
    """All ops with the same kind read the same in their gradients.

    Of shapes, gradient functions look at the rank, at what is unknown, and at what is broadcast, so at which sizes are
    1, and which are the same.
    """
    attributes = [(name, value.SerializeToString()) for name, value in op.node_def.attr.items() if name[0] != "_"]
    numbers: dict[int | None, Any] = {None: None, 0: 0, 1: 1}
    inputs = []
    for tensor in op.inputs:
        rank = tensor.shape.rank
        sizes = None if rank is None else tuple(numbers.setdefault(s, len(numbers)) for s in tensor.shape.as_list())
        value = _known_value(tensor)
        inputs.append((tensor.dtype, sizes, None if value is None else (value.shape, value.tobytes())))
    return op.type, tuple(sorted(attributes)), tuple(inputs)


def _known_value(tensor: Any) -> Any:
    """The value of an axis or a shape, at which gradient functions look."""
    return None if tensor.dtype.is_floating or tensor.dtype.is_complex else static_value(tensor)


def _positions_read(op: Any) -> list[frozenset[int] | None]:
    """For each input of an op, the positions among its inputs and outputs that the gradient of the input reads.

    None if it has no gradient.
    """
    graph = tf_internal.FuncGraph("gradient_of_" + op.type)
    with graph.as_default():
        inputs = []
        for tensor in op.inputs:
            value = _known_value(tensor)
            new = None if value is None else tf.constant(value, tensor.dtype)
            inputs.append(tf_internal.graph_placeholder(tensor.dtype, tensor.shape) if new is None else new)
        attributes = {name: value for name, value in op.node_def.attr.items() if not name.startswith("_")}
        copy = tf_internal.create_op(graph, op.type, inputs, attributes)
        outputs = [output for output in copy.outputs if tf_internal.is_trainable(output)]
        dys = [tf_internal.graph_placeholder(output.dtype, output.shape) for output in outputs]
        gradients = tf.gradients(outputs, inputs, grad_ys=dys)
    places = {id(tensor): position for position, tensor in enumerate([*inputs, *copy.outputs])}
    return [None if gradient is None else frozenset(_read_by(gradient, places)) for gradient in gradients]


def _read_by(gradient: Any, places: dict[int, int]) -> set[int]:
    waiting, seen, found = tf.nest.flatten(gradient, expand_composites=True), set(), set()
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in places:
            found.add(places[id(tensor)])
        elif id(tensor.op) not in seen:
            seen.add(id(tensor.op))
            if tensor.op.type not in control_flow.READ_SHAPES:
                waiting.extend(tensor.op.inputs)
    return found
