"""A traced function in segments, some of which the backward pass computes again, in a fixed order.

A segment begins to be computed again when its upstream gradients are there and all gradients of later segments are
computed. In a graph, TensorFlow runs what is ready in any order, so a token makes the order part of the graph: a number
that goes from segment to segment. Its gradient comes back through them and waits for the gradients of each.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import slices, tf_internal
from tf_cg_ops._src.custom_gradient import attaching, backward_order
from tf_cg_ops._src.custom_gradient.call import GradFn, call_with_gradient
from tf_cg_ops._src.custom_gradient.wording import Wording
from tf_cg_ops._src.graphs.graph_copy import GraphCopy
from tf_cg_ops._src.memory.checkpoint_name import Keep
from tf_cg_ops._src.memory.gradient_reads import static_value
from tf_cg_ops._src.memory.plan import SegmentOps
from tf_cg_ops._src.memory.replay import CONTRACTIONS, Replay

# Ops that take a handle and leave the variable as it is.
_READS = frozenset(["ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"])


@dataclasses.dataclass(frozen=True)
class GraphSegment:
    """The ops of a segment. A copy takes it for a graph.

    Attributes:
      inputs: The tensors from outside of it that it reads, handles last.
      outputs: The tensors that are used outside of it.
      constants: Tensors from outside whose values are known, such as shapes.
    """

    operations: Sequence[Any]
    inputs: list[Any]
    outputs: list[Any]
    constants: list[tuple[Any, Any]]

    def get_operations(self) -> Sequence[Any]:
        """The ops, as of a graph."""
        return self.operations


def graph_segments(parts: Sequence[SegmentOps], graph: Any, inside: Sequence[Any]) -> list[GraphSegment]:
    """The segments with the tensors between them; `inside` are the inputs of the graph."""
    given = {id(tensor) for tensor in inside}
    number_of = {id(op): number for number, part in enumerate(parts) for op in part.operations}
    written = {id(t) for part in parts for op in part.operations if op.type not in _READS for t in op.inputs}
    inputs: list[dict[int, Any]] = [{} for _ in parts]
    constants: list[dict[int, Any]] = [{} for _ in parts]
    outputs: list[dict[int, Any]] = [{} for _ in parts]
    operations: list[list[Any]] = [[] for _ in parts]

    def produced(tensor: Any) -> None:
        number = number_of.get(id(tensor.op))
        if number is not None and id(tensor) not in given:
            outputs[number][id(tensor)] = tensor

    def add(number: int, op: Any, own: set[int]) -> None:
        """Adds an op to a segment. Each segment reads variables itself, so the gradient of a gather stays slices."""
        own.add(id(op))
        for tensor in op.inputs:
            if id(tensor) in given:
                inputs[number][id(tensor)] = tensor
            elif id(tensor.op) not in own and number_of.get(id(tensor.op)) != number:
                value = static_value(tensor)
                if value is not None:
                    constants[number][id(tensor)] = tensor, value
                elif (handle := _handle_behind(tensor)) is not None and id(handle) in given - written:
                    add(number, tensor.op, own)
                else:
                    produced(tensor)
                    inputs[number][id(tensor)] = tensor
        operations[number].append(op)

    for number, part in enumerate(parts):
        own: set[int] = set()
        for op in part.operations:
            add(number, op, own)
    for tensor in graph.outputs:
        produced(tensor)
    return [
        GraphSegment(
            operations[number],
            sorted(inputs[number].values(), key=lambda tensor: tensor.dtype == tf.resource),
            list(outputs[number].values()),
            list(constants[number].values()),
        )
        for number in range(len(parts))
    ]


def _handle_behind(tensor: Any) -> Any:
    """The handle of the variable that a tensor was read from; None for other tensors."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor.op.inputs[0] if tensor.op.type == "ReadVariableOp" else None


class SegmentedFunction:
    """Runs a traced function segment by segment."""

    def __init__(
        self, wording: Wording, name: str, graph: Any, inside: Sequence[Any], parts: Sequence[SegmentOps], keep: Keep
    ) -> None:
        self._wording, self._name = wording, name
        self._inside, self._outputs = list(inside), list(graph.outputs)
        self._segments = [
            (s, Replay(wording, name, s, s.inputs, keep, s.constants) if part.is_recomputed else None)
            for part, s in zip(parts, graph_segments(parts, graph, inside), strict=True)
        ]

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """The outputs for values of the inputs."""
        known = {id(tensor): value for tensor, value in zip(self._inside, values, strict=True)}
        token = None
        for segment, replay in self._segments:
            inputs = [known[id(tensor)] for tensor in segment.inputs]
            if replay is None:
                outputs, token = self._run_plain(segment, inputs, token)
            else:
                if token is None and len(self._segments) > 1 and backward_order.is_free():
                    token = tf.ones([])
                outputs, token = self._run_recomputed(replay, inputs, token)
            known.update(zip(map(id, segment.outputs), outputs, strict=True))
        return [known[id(tensor)] for tensor in self._outputs]

    def _run_plain(self, segment: GraphSegment, values: list[Any], token: Any) -> tuple[list[Any], Any]:
        """Runs the ops of a segment as plain code does; in a graph, also their gradients one after the other."""
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

        def replace(copy: GraphCopy, op: Any, inputs: list[Any]) -> Sequence[Any] | None:
            nonlocal token
            if graph is None:
                return attaching.run_eagerly(op, inputs) if op.type == "CustomGradientRule" else None
            # The token stays out of loops and branches.
            if token is None or graph is not tf.compat.v1.get_default_graph() or not _is_joint(op):
                return None
            inputs, token = backward_order.through_gate(inputs, token)
            return copy.copy_op(op, inputs)

        if len(self._segments) > 1 and backward_order.is_free():
            token = tf.ones([]) if token is None else token
            values, token = backward_order.through_gate(values, token)
        constants = [(tensor, tf.constant(value, tensor.dtype)) for tensor, value in segment.constants]
        pairs = [*zip(segment.inputs, values, strict=True), *constants]
        return GraphCopy(pairs, replace, is_ordered=True, records=True, names=True).outputs_of(segment), token

    def _run_recomputed(self, replay: Replay, values: list[Any], token: Any) -> tuple[list[Any], Any]:
        """Runs a segment with a gradient that runs it again."""
        outputs, residuals = replay.forward(values)
        tokens = [] if token is None else [token]

        def segment(*_: Any) -> Any:
            grad_fn, on_tapes = (
                functools.partial(_gradients, replay, values, residuals, len(tokens), is_need_known)
                for is_need_known in (False, True)
            )
            materialize = len(outputs) + len(tokens) == 1
            results = [*outputs, *map(tf.identity, tokens)]
            return results, GradFn(grad_fn, takes_needed=True, on_tapes=on_tapes, materialize=materialize)

        segment.__qualname__ = self._name
        # Residuals that were read from variables have gradients, too.
        read = itertools.compress(residuals, replay.are_read)
        inputs = [*(value for value in values if value.dtype != tf.resource), *read, *tokens]
        outputs = call_with_gradient(segment, inputs, {}, wording=self._wording, compute=segment)
        return outputs[: len(outputs) - len(tokens)], outputs[-1] if tokens else None


def _is_joint(op: Any) -> bool:
    """Whether an op has several gradients, which ops of their own compute from the same upstream gradient.

    Of a weight, such an op can come late, and what it reads stays in memory. And TensorFlow's optimizer would compute a
    part of the gradient of a softmax of scaled scores in the forward pass, and keep it.
    """
    # One op computes all gradients of an op with several results, such as FusedBatchNorm.
    shapes = [str(t.shape) for t in op.inputs if tf_internal.is_trainable(t) and len(op.outputs) == 1]
    return op.type == "Softmax" or (len(shapes) > 1 and (len(set(shapes)) > 1 or op.type.startswith(CONTRACTIONS)))


def _gradients(
    replay: Replay,
    values: Sequence[Any],
    residuals: Sequence[Any],
    num_tokens: int,
    is_need_known: bool,
    *dys: Any,
    needed: Sequence[bool],
) -> list[Any]:
    """The gradients of the Tensors among the values, of what was read, and of the token.

    If it is not known which gradients are needed, `needed` says that all are.
    """
    num_read, in_graph = sum(replay.are_read), not tf.executing_eagerly()
    num_tensors = len(needed) - num_read - num_tokens
    dys, done = dys[: len(dys) - num_tokens], [dy for dy in dys[len(dys) - num_tokens :] if dy is not None]
    pairs = zip(dys, replay.are_differentiable, strict=True)
    upstream = [dy if dy is None else slices.to_dense(dy) for dy, is_differentiable in pairs if is_differentiable]
    if all(dy is None for dy in upstream):
        return [*[None] * (num_tensors + num_read), *done, *[None] * (num_tokens - len(done))]
    if in_graph:
        # The graph neither computes the segment again too early, nor merges it with the forward pass or with other
        # gradients: oneDNN would fuse the gradients of a convolution inside and a bias outside.
        start = [dy for dy in upstream if dy is not None] + done
        if backward_order.is_free():
            start = [backward_order.when_computed(start)]
        values, residuals = ([backward_order.alone(value, start) for value in each] for each in (values, residuals))
        upstream = [dy if dy is None else backward_order.alone(dy, start) for dy in upstream]
    reads_needed = iter(needed[num_tensors:])
    are_needed = [*needed[:num_tensors], *[False] * (len(values) - num_tensors)]
    are_needed += [is_read and next(reads_needed) for is_read in replay.are_read]
    found = replay.gradients(values, residuals, upstream, are_needed)
    by_tensor, by_residual = found[:num_tensors], found[len(values) :]
    by_read = list(itertools.compress(by_residual, replay.are_read))
    if not num_tokens and not (is_need_known and backward_order.is_free()):
        return [*by_tensor, *by_read]
    end = backward_order.when_computed([*(g for g in (*by_tensor, *by_read) if g is not None), *done])
    if num_tokens:
        return [*by_tensor, *by_read, end]
    # Functions one after the other get the same order, unless that would compute gradients that are not needed.
    return [*(g if g is None else backward_order.alone(g, [end]) for g in by_tensor), *by_read]
