"""Runs a traced function in pieces, some of which the backward pass computes again."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.custom_gradient.wording import Wording
from tf_cg_ops._src.memory.gradient_reads import static_value
from tf_cg_ops._src.memory.plan import PlannedPiece
from tf_cg_ops._src.memory.replay import Replay
from tf_cg_ops._src.rewrite.graph_copy import GraphCopy
from tf_cg_ops._src.rewrite.python_gradients import copy_with_python_gradient
from tf_cg_ops._src.rewrite.traced_call import ThreadSafeFunction, spec_of


@dataclasses.dataclass(frozen=True)
class Piece:
    """Successive ops of a traced graph. A copy takes it for a graph.

    Attributes:
      inputs: The tensors from outside of it that it reads, handles last.
      outputs: The tensors that are used outside of it.
      constants: Tensors from outside whose values are known, such as shapes.
      is_recomputed: Whether its gradient computes it again.
    """

    operations: Sequence[Any]
    inputs: list[Any]
    outputs: list[Any]
    constants: list[tuple[Any, Any]]
    is_recomputed: bool

    def get_operations(self) -> Sequence[Any]:
        """The ops, as of a graph."""
        return self.operations


def pieces_of(planned: Sequence[PlannedPiece], graph: Any, inside: Sequence[Any]) -> list[Piece]:
    """The pieces with the tensors between them; `inside` are the inputs of the graph."""
    given = {id(tensor) for tensor in inside}
    piece_of = {id(op): number for number, piece in enumerate(planned) for op in piece.operations}
    inputs: list[dict[int, Any]] = [{} for _ in planned]
    constants: list[dict[int, Any]] = [{} for _ in planned]
    outputs: list[dict[int, Any]] = [{} for _ in planned]

    def produced(tensor: Any) -> None:
        number = piece_of.get(id(tensor.op))
        if number is not None and id(tensor) not in given:
            outputs[number][id(tensor)] = tensor

    for number, piece in enumerate(planned):
        for op in piece.operations:
            for tensor in op.inputs:
                if id(tensor) not in given:
                    if piece_of.get(id(tensor.op)) == number:
                        continue
                    value = static_value(tensor)
                    if value is not None:
                        constants[number][id(tensor)] = tensor, value
                        continue
                    produced(tensor)
                inputs[number][id(tensor)] = tensor
    for tensor in graph.outputs:
        produced(tensor)
    return [
        Piece(
            piece.operations,
            sorted(inputs[number].values(), key=lambda tensor: tensor.dtype == tf.resource),
            list(outputs[number].values()),
            list(constants[number].values()),
            piece.is_recomputed,
        )
        for number, piece in enumerate(planned)
    ]


class KeptPiece:
    """Runs a piece with TensorFlow's own gradient."""

    def __init__(self, wording: Wording, piece: Piece) -> None:
        def run(*values: Any) -> list[Any]:
            constants = [(tensor, tf.constant(value, tensor.dtype)) for tensor, value in piece.constants]
            pairs = [*zip(piece.inputs, values, strict=True), *constants]
            copy = GraphCopy(pairs, functools.partial(copy_with_python_gradient, wording), is_ordered=True)
            return copy.outputs_of(piece)

        # Tapes do not see ops that are copied, only the call.
        function = tf.function(run, autograph=False).get_concrete_function(*map(spec_of, piece.inputs))
        self._run = ThreadSafeFunction(functools.partial(tf_internal.call_trace, function))

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """The outputs for the inputs."""
        return self._run(*values)


class PiecesOfFunction:
    """Runs all pieces of a traced function."""

    def __init__(
        self,
        wording: Wording,
        name: str,
        graph: Any,
        inside: Sequence[Any],
        planned: Sequence[PlannedPiece],
        is_kept: Callable[[Any], bool],
    ) -> None:
        self._inside = list(inside)
        self._outputs = list(graph.outputs)
        self._pieces: list[tuple[Piece, Any]] = []
        self._name = name
        for piece in pieces_of(planned, graph, inside):
            run: Any = KeptPiece(wording, piece)
            if piece.is_recomputed:
                run = Replay(wording, name, piece, piece.inputs, is_kept, piece.constants)
            self._pieces.append((piece, run))

    def __call__(self, values: Sequence[Any], run_again: Callable[..., list[Any]]) -> list[Any]:
        """The outputs for values of the inputs. `run_again` runs the Replay of a piece, and attaches its gradient."""
        known = {id(tensor): value for tensor, value in zip(self._inside, values, strict=True)}
        for piece, run in self._pieces:
            inputs = [known[id(tensor)] for tensor in piece.inputs]
            outputs = run_again(self._name, run, inputs) if piece.is_recomputed else run(inputs)
            known.update(zip(map(id, piece.outputs), outputs, strict=True))
        return [known[id(tensor)] for tensor in self._outputs]
