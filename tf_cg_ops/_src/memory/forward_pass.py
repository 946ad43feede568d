"""The forward pass of a recomputed function, made so that what its stateful ops return can be kept and replayed.

Random ops take a seed; loops and branches get the values of the variables that they only read; calls are inlined.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.custom_gradient.attach import attach
from tf_cg_ops._src.custom_gradient.wording import WordingWithoutGradientFunction
from tf_cg_ops._src.memory.random_numbers import STATELESS, Seeds
from tf_cg_ops._src.rewrite import control_flow
from tf_cg_ops._src.rewrite.graph_copy import GraphCopy

WORDING = WordingWithoutGradientFunction("recompute_grad")

_READS = frozenset(["ReadVariableOp", "ResourceGather"])
# It returns its inputs; the gradient alone reads the variables among them.
_RULE = "CustomGradientRule"


class ForwardPass:
    """Replaces ops while the graph of the function is copied."""

    def __init__(self) -> None:
        self.reads: list[tuple[Any, tf.Tensor]] = []  # The handle and the value of each read of a variable.
        self._seeds = Seeds()
        self._current_values: dict[int, tf.Tensor] = {}  # Of the variables read and not written since, by handle.
        self._depth = 0  # Of loops and branches.

    def __call__(self, copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[tf.Tensor] | None:
        if op.type in control_flow.LOOPS | control_flow.CONDITIONALS:
            return self._copy_control_flow(copy, op, inputs)
        if op.type in _READS and (value := self._read(op, inputs[0])) is not None:
            return [value] if op.type == "ReadVariableOp" else [_gather(op, value, inputs[1])]
        if op.type in STATELESS:
            return [STATELESS[op.type](op, inputs, self._seeds.draw(op))]
        if not self._depth and op.type not in control_flow.CALLS and op.type != _RULE:
            self._forget([tensor for tensor in inputs if tensor.dtype == tf.resource])
        gradient = _python_gradient(op)
        return None if gradient is None else _with_python_gradient(copy, op, inputs, gradient)

    def _read(self, op: Any, handle: tf.Tensor) -> tf.Tensor | None:
        """The value of a variable; None in a loop or branch that may also write it."""
        value = self._current_values.get(id(handle))
        if value is None and not self._depth:
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=op.get_attr("dtype"))
            self._current_values[id(handle)] = value
            self.reads.append((handle, value))
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
                return control_flow.copy(copy, op, inputs)
            if op.type in control_flow.LOOPS:
                return control_flow.copy(copy, op, inputs, lambda iteration: self._seeds.inside(seed, iteration))
            with self._seeds.inside(seed):
                return control_flow.copy(copy, op, inputs)
        finally:
            self._depth -= 1


def _gather(op: Any, value: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    batch_dims = op.get_attr("batch_dims")
    return tf.raw_ops.GatherV2(params=value, indices=indices, axis=batch_dims, batch_dims=batch_dims)


def _read_only_variables(op: Any, inputs: list[tf.Tensor]) -> list[tuple[Any, tf.Tensor]]:
    """For each variable that a loop or conditional only reads: an op that does, and the handle."""
    found = []
    for position, handle in enumerate(inputs):
        if handle.dtype == tf.resource:
            reads = [use for use in _uses(op, position) if use.type != _RULE]
            if reads and all(use.type in _READS for use in reads):
                found.append((reads[0], handle))
    return found


def _is_only_read(op: Any, inputs: list[tf.Tensor], handle: tf.Tensor) -> bool:
    uses = [use for position, tensor in enumerate(inputs) if tensor is handle for use in _uses(op, position)]
    return all(use.type in _READS or use.type == _RULE for use in uses)


def _uses(op: Any, position: int) -> list[Any]:
    """The ops in the functions of a loop, conditional or call that use its input at a position, at any depth."""
    offset = 1 if op.type in control_flow.CONDITIONALS else 0
    found = []
    for function in control_flow.functions_of(op):
        parameter = function.inputs[position - offset]
        for use in parameter.consumers():
            if use.type not in control_flow.TYPES:
                found.append(use)
                continue
            for inner_position, tensor in enumerate(use.inputs):
                if tensor is parameter:
                    found += _uses(use, inner_position)
        # A body that returns another handle than it got changes what is read.
        is_body = op.type in control_flow.LOOPS and len(function.outputs) == len(function.inputs)
        if is_body and position not in control_flow.loop_invariant_inputs(function):
            found.append(op)
    return found


def _first_random_op(op: Any) -> Any:
    """A random op in the functions of a loop or conditional, at any depth; None if there is none."""
    for function in control_flow.functions_of(op):
        for inner in function.get_operations():
            found = _first_random_op(inner) if inner.type in control_flow.TYPES else inner
            if found is not None and found.type in STATELESS:
                return found
    return None


def _python_gradient(op: Any) -> Any:
    """The gradient function of an op of `tf.custom_gradient`, which refers to tensors of its own graph; else None."""
    if "_gradient_op_type" not in op.node_def.attr:
        return None
    return tf_internal.find_gradient_function(op)


def _with_python_gradient(copy: GraphCopy, op: Any, inputs: list[tf.Tensor], gradient: Any) -> list[tf.Tensor]:
    """The inputs of an identity, with its gradient traced beside its graph and copied like that graph."""
    graph = tf_internal.FuncGraph("gradient_of_" + op.type)
    # The graph of the gradient lies inside that of the op, so that it may capture tensors of it.
    with op.graph.as_default(), graph.as_default():
        upstream = [tf_internal.graph_placeholder(t.dtype, t.shape, "upstream") for t in op.outputs]
        gradients = [g if g is None else tf.convert_to_tensor(g) for g in gradient(op, *upstream)]
        gradients = [g if g is None else graph.capture(g) for g in gradients]
    captures = [(inside, outside) for outside, inside in graph.captures if inside.op.type == "Placeholder"]
    in_this_graph = [outside for _, outside in captures if not isinstance(outside, tf_internal.EagerTensor)]
    copied = dict(zip(map(id, in_this_graph), copy.tensors(in_this_graph), strict=True))
    values = [(inside, copied.get(id(outside), outside)) for inside, outside in captures]

    def backward(dys: Sequence[Any]) -> list[Any]:
        again = GraphCopy([*values, *zip(upstream, dys, strict=True)], copy.replace)
        results = iter(again.tensors([g for g in gradients if g is not None]))
        return [None if g is None else next(results) for g in gradients]

    return attach(WORDING, op.name, inputs, inputs, backward)
