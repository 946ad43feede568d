"""Compares a gradient function of the file with automatic differentiation of the ops inside, for random numbers."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from . import _inputs
from ._foreign_gradients import Captures, SavedGradient, call_saved_gradient, forget, is_foreign
from ._graphs import Body, nodes_of


def to_compare(meta_graph: Any) -> Any:
    """A copy of a meta graph for `compare_gradients`, without foreign gradients and control dependencies.

    With a control dependency on the read of a variable, an op would run the read.
    """
    plain = type(meta_graph).FromString(meta_graph.SerializeToString())
    for node in nodes_of(plain.graph_def):
        node.input[:] = [reference for reference in node.input if not reference.startswith("^")]
        if is_foreign(node):
            forget(node)
    return plain


def compare_gradients(
    body: Body, node: str, gradient: SavedGradient | None, captures: Captures
) -> tuple[float | None, str]:
    """The difference between the two gradients of a node of a body from `to_compare`, or None and the reason."""
    if gradient is None:
        return None, "the file does not contain the gradient function"
    try:
        return _relative_difference(body, body.graph.get_operation_by_name(node), gradient, captures), ""
    except Exception as error:  # Random numbers can fail in any model, in any way. The report shows the error.
        return None, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _relative_difference(body: Body, op: Any, gradient: SavedGradient, captures: Captures) -> float:
    """The largest difference between the two gradients of an op, divided by the largest of their elements.

    The arguments of the op, and everything from outside, such as the values of variables, are random numbers.
    """
    num_results = gradient.num_results
    results, inputs = list(op.inputs)[:num_results], list(op.inputs)[num_results:]
    with body.graph.as_default():
        dys = [_random_like(result, seed) for seed, result in enumerate(results)]
        saved = call_saved_gradient(body, op, gradient, captures, dys)
        automatic = [_automatic_gradient(results, x, dys) for x in inputs]
        pairs = [(_dense(s, x), _dense(a, x)) for s, a, x in zip(saved, automatic, inputs, strict=True) if s is not a]
    pairs = [pair for pair in pairs if pair != (None, None)]
    fed = {id(tensor): tensor for tensor in _from_outside([*results, *(t for pair in pairs for t in pair)])}
    _check_reads([*inputs, *fed.values()])
    values: dict[int, Any] = {}
    for tensor in (*inputs, *fed.values()):
        # All ops that read a variable get the same value.
        key = id(_handle_of(tensor.op)) if tensor.op.type == "ReadVariableOp" else id(tensor)
        if key not in values:
            values[key] = _random_value(body, tensor)
        fed[id(tensor)], values[id(tensor)] = tensor, values[key]
    with tf.compat.v1.Session(graph=body.graph) as session:
        numbers = session.run(pairs, {tensor: values[id(tensor)] for tensor in fed.values()})
    largest = max((np.max(np.abs(array), initial=0.0) for pair in numbers for array in pair), default=0.0)
    difference = max((np.max(np.abs(s - a), initial=0.0) for s, a in numbers), default=0.0)
    return float(difference / largest) if difference else 0.0


def _automatic_gradient(results: Sequence[tf.Tensor], x: tf.Tensor, dys: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """The gradient with respect to x. If x was read from a variable, with respect to all reads of that variable."""
    sources = [x]
    if x.op.type == "ReadVariableOp":
        others = [t for t in _from_outside(results) if t.op.type == "ReadVariableOp" and t is not x]
        sources += [t for t in others if _handle_of(t.op) is _handle_of(x.op)]
    gradients = [g for g in tf.gradients(results, sources, grad_ys=dys) if g is not None]
    return tf.add_n([tf.convert_to_tensor(g) for g in gradients]) if gradients else None


def _random_like(result: tf.Tensor, seed: int) -> tf.Tensor:
    return tf.cast(tf.random.stateless_normal(tf.shape(result), [seed, 0]), result.dtype)


def _dense(gradient: Any, x: tf.Tensor) -> tf.Tensor | None:
    """The gradient with respect to x as a Tensor; None if x has integers."""
    if not x.dtype.is_floating and not x.dtype.is_complex:
        return None
    return tf.zeros_like(x) if gradient is None else tf.convert_to_tensor(gradient)


def _from_outside(tensors: Sequence[tf.Tensor]) -> Iterator[tf.Tensor]:
    """The inputs of the function, and the tensors read from resources, that these tensors depend on."""
    waiting, seen = [tensor.op for tensor in tensors], set()
    while waiting:
        op = waiting.pop()
        if id(op) in seen:
            continue
        seen.add(id(op))
        if op.type == "Placeholder" or any(x.dtype == tf.resource for x in op.inputs):
            yield from (output for output in op.outputs if output.dtype != tf.resource)
        else:
            waiting += [x.op for x in op.inputs]


def _check_reads(tensors: Sequence[tf.Tensor]) -> None:
    """Raises NotImplementedError if two ops read a variable in different ways: their random numbers would not agree."""
    variables = {id(_handle_of(tensor.op)) for tensor in tensors if tensor.op.type == "ReadVariableOp"}
    for op in (tensor.op for tensor in tensors if tensor.op.type not in ("Placeholder", "ReadVariableOp")):
        if any(x.dtype == tf.resource for x in op.inputs) and id(_handle_of(op)) in variables:
            raise NotImplementedError(f"{op.type} reads a part of a variable that ReadVariableOp reads as a whole")


def _handle_of(read: Any) -> Any:
    """The op with the handle of the variable that an op reads."""
    op = next(x for x in read.inputs if x.dtype == tf.resource).op
    while op.type == "Identity":
        op = op.inputs[0].op
    return op


def _random_value(body: Body, tensor: tf.Tensor) -> np.ndarray:
    """Random numbers for a tensor. The file has the shapes of variables, which TensorFlow does not infer."""
    shape = tensor.shape
    if shape.rank is None:
        nodes = {node.name: node for node in body.nodes}
        known = nodes[tensor.op.name].attr["_output_shapes"].list.shape if tensor.op.name in nodes else []
        shape = tf.TensorShape(known[tensor.value_index]) if tensor.value_index < len(known) else shape
    return _inputs.generate(tf.TensorSpec(shape, tensor.dtype.base_dtype), 2).numpy()
