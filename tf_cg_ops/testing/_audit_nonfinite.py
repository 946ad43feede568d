"""Finds the op of a run that first got finite numbers and returned others."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tf_cg_ops import rules
from tf_cg_ops._src.core import calls, python_op, text, tf_internal
from tf_cg_ops._src.custom_gradient import rule_op, traced_rule
from tf_cg_ops._src.graphs import control_flow
from tf_cg_ops._src.graphs.graph_copy import GraphCopy, Replace
from tf_cg_ops._src.rewrite.overridden_op import attach_rule

from ._audit_record import (
    API,
    are_finite,
    copy_place,
    has_numbers,
    is_place,
    line_of,
    name_of,
    passes_gradients,
    with_gradient,
)
from ._flat_function import to_double_precision

Where = Literal["value", "gradient"]
_SUBJECT = f"{API}: the search for numbers that are not finite"
# An order of derivative that no file holds, so that the rule is not traced for one.
_NOT_SAVED = 100


@dataclasses.dataclass(frozen=True)
class FirstNonfinite:
    """The first op of a run that got finite numbers and returned others. It prints as a sentence or two.

    Attributes:
      function: The type of the op, or the name of the function with a custom gradient; "AddN" for the sum of the
        gradients of one tensor. If an argument or a variable is not finite, its name.
      at: The line of code that made it, such as "model.py:12"; in a loaded model the name of the op.
      where: "value" or "gradient": which of them is not finite, while all that it is computed from is.
      dtype: The dtype of these numbers, such as "float16".
      arrived: How many of the numbers that arrived are nan, and how many are infinite.
      left: How many of the numbers that left are nan, and how many are infinite.
      size: How many numbers left.
      index: The index of the first one that is not finite.
      detail: What arrived there.
      masking_helps: Whether the gradient is finite with the rule `rules.masked` for all `rules.elementwise` ops.
    """

    function: str
    at: str
    where: Where
    dtype: str
    arrived: tuple[int, int]
    left: tuple[int, int]
    size: int
    index: tuple[int, ...]
    detail: str
    masking_helps: bool = False

    def __str__(self) -> str:
        kind = "nan" if self.left[0] else "infinity"
        dtype = f" ({self.dtype})" if self.dtype in ("float16", "bfloat16") else ""
        at = f", at {self.at}" if self.at else ""
        line = f"The {self.where} turns into {kind} in {self.function}{dtype}{at}: {self.detail}"
        python = "cg.override_gradients(model, {cg.rules.elementwise: cg.rules.masked})"
        advice = f"Change the code, or: {text.written(python, 'tf-cg-ops override MODEL TARGET elementwise=masked')}"
        return f"{line}\n{advice}" if self.masking_helps else line


@dataclasses.dataclass
class _Event:
    """An op of the forward pass that returned numbers that are not finite."""

    inputs: list[Any]  # The tensors that it may come from.
    outputs: list[Any]  # The tensors that are not finite.
    found: FirstNonfinite


class Search:
    """Notes, in a copy of a graph, which ops make numbers that are not finite: in its values, or in its gradient.

    `replace` is for `trace_gradient`. Tensors are those of the graph that is copied.
    """

    def __init__(self, where: Where) -> None:
        self._where = where
        self._events: list[_Event] = []
        self._noted: set[int] = set()  # The ids of ops.
        # By the id of a tensor: those that have its numbers inside or outside of a function, loop or branch.
        self._same: dict[int, list[Any]] = {}
        self.gradient: FirstNonfinite | None = None
        self.behind_gradient: list[Any] = []  # The inputs that were not finite there.
        self.is_of_zero = False  # Whether an elementwise op has this gradient where the upstream gradient is zero.

    def replace(self, copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[Any] | None:
        """Copies an op with notes."""
        if op.type in control_flow.TYPES:
            return self._copy_control_flow(copy, op, inputs)
        if passes_gradients(op):
            return inputs[: len(op.outputs)]
        positions = [i for i, t in enumerate(op.outputs) if has_numbers(t.dtype)]
        passes = op.type in ("Identity", "ReadVariableOp") and not is_place(op)
        if not positions or not inputs or passes or "seed2" in op.node_def.attr:
            return None
        upstream: list[Any] = []
        if self._where == "gradient":
            inputs = [self._watched(op, tensor, inputs, upstream) for tensor in inputs]
        outputs = copy_place(copy, op, inputs)[0] if is_place(op) else copy.copy_op(op, inputs)
        values = [outputs[i] for i in positions]
        self._noted.add(id(op))

        def gradient(*dys: Any) -> list[Any]:
            upstream[:] = map(_values_of, dys)
            return list(dys)

        if self._where == "gradient":
            values = with_gradient(values, gradient)
        else:
            note = functools.partial(self._note_value, op, positions)
            with tf.control_dependencies(_call(note, [*values, *(t for t in inputs if has_numbers(t.dtype))])):
                values = [tf.identity(value) for value in values]
        by_position = dict(zip(positions, values, strict=True))
        return [by_position.get(i, output) for i, output in enumerate(outputs)]

    def _watched(self, op: Any, tensor: Any, inputs: Sequence[Any], upstream: list[Any]) -> Any:
        """An input with a gradient that is noted. TensorFlow only asks for it if arguments of the run are behind it."""
        here = tf.compat.v1.get_default_graph()
        tensor = tf_internal.capture(here, tensor)  # A function can close over a Tensor of eager mode.
        is_variable = tensor.dtype == tf.resource and is_place(op)
        if not (has_numbers(tensor.dtype) or is_variable) or tensor.op.type == "Const":
            return tensor
        # Captured here, because the gradient of a conditional finds no tensors from around it.
        given = [tf_internal.capture(here, t) for t in inputs if has_numbers(t.dtype)]

        def gradient(g: Any) -> list[Any]:
            note = functools.partial(self._note_gradient, op, len(upstream))
            with tf.control_dependencies(_call(note, [_values_of(g), *upstream, *given])):
                left = tf.identity(_values_of(g))
            return [tf.IndexedSlices(left, g.indices, g.dense_shape) if isinstance(g, tf.IndexedSlices) else left]

        return with_gradient([tensor], gradient)[0]

    def _copy_control_flow(self, copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[Any]:
        """Copies an op that calls functions, and notes which of their tensors are which ones around them."""

        def call(function: Any, arguments: Sequence[Any]) -> list[Any]:
            pairs = [*zip(function.inputs, op.inputs[len(op.inputs) - len(function.inputs) :], strict=True)]
            # TensorFlow adds outputs for gradients, and the condition of a loop has one that is not a number.
            pairs += zip(op.outputs, function.outputs, strict=False)
            if op.type in control_flow.LOOPS:
                pairs += zip(op.outputs, op.inputs, strict=True)
                pairs += zip(function.inputs, function.outputs, strict=False)
            for tensor, same in pairs:
                self._same.setdefault(id(tensor), []).append(same)
            return copy.call(function, arguments)

        tf_internal.cache_control_flow_graphs(op)  # A later search has the same tensors.
        copied = control_flow.copy_body if op.type in calls.CALLS else control_flow.copy
        return copied(op, inputs, call)

    def _note_value(self, op: Any, positions: Sequence[int], *arrays: np.ndarray) -> list[np.ndarray]:
        values, given = arrays[: len(positions)], arrays[len(positions) :]
        wrong = [i for i, value in zip(positions, values, strict=True) if not are_finite([value])]
        if wrong:
            inputs = _sources(op, [values[positions.index(i)] for i in wrong], given)
            # What numbers a list or a variable holds is not known here.
            inputs += [t for t in op.inputs if t.dtype in (tf.resource, tf.variant)]
            found = _found(op, "value", values[positions.index(wrong[0])], [], given)
            self._events.append(_Event(inputs, [op.outputs[i] for i in wrong], found))
        return [np.array(True)]

    def _note_gradient(self, op: Any, num_upstream: int, left: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
        if self.gradient is None and not are_finite([left]):
            upstream, given = arrays[:num_upstream], arrays[num_upstream:]
            self.gradient = _found(op, "gradient", left, upstream, given)
            wrong = [dy for dy in upstream if not are_finite([dy])]
            if wrong:  # Each gradient in the sum was finite.
                self.gradient = dataclasses.replace(_found(op, "gradient", wrong[0], [], []), function="AddN")
            else:
                captures = rule_op.parts_of_inputs(op)[2] if op.type == "CustomGradientRule" else []
                sources = _sources(op, [left], given)
                self.behind_gradient = [t for t in sources if not any(t is capture for capture in captures)]
                at = ~np.isfinite(left) if upstream[0].shape == left.shape else slice(None)
                self.is_of_zero = not is_place(op) and rules.elementwise(op) and not np.all(upstream[0][at])
        return [np.array(True)]

    def first(self, ends: Sequence[Any], given: Sequence[tuple[str, Any, np.ndarray]]) -> FirstNonfinite | None:
        """The first op whose values made those of `ends`, tensors that are not finite; None if there is none.

        `given` has the tensors for arguments and variables that are not finite, each with its name and value.
        """
        wanted: set[int] = set()
        self._want(ends, wanted)
        first = from_infinity = None
        for event in reversed(self._events):
            if any(id(tensor) in wanted for tensor in event.outputs):
                first = first if event.inputs else event.found
                # Such as the softmax of -inf alone, which a mask gave it.
                if event.found.left[0] and not event.found.arrived[0]:
                    from_infinity = event.found
                # An op in a loop has an event for each time, and an earlier one need not have led here.
                wanted -= {id(tensor) for tensor in event.outputs}
                self._want(event.inputs, wanted)
        reached = [_described(name, "", "value", x, [], _detail(x, [], [])) for name, t, x in given if id(t) in wanted]
        return first or next(iter(reached), None) or from_infinity

    def _want(self, tensors: Sequence[Any], wanted: set[int]) -> None:
        """Adds the ids of these tensors, and of those that have their numbers or that ops without notes pass on."""
        waiting, seen = list(tensors), set()
        while waiting:
            tensor = waiting.pop()
            if id(tensor) not in seen:
                seen.add(id(tensor))
                waiting += self._same.get(id(tensor), [])
                if id(tensor.op) not in self._noted and tensor.op.type not in control_flow.TYPES:
                    waiting += tensor.op.inputs
        wanted |= seen


def of_sum(gradient: np.ndarray) -> FirstNonfinite:
    """For a gradient of an argument that is not finite, while all parts of its sum are."""
    return _described("AddN", "", "gradient", gradient, [], _detail(gradient, [], []))


def mask(only: FirstNonfinite | None) -> Replace:
    """Gives elementwise ops the gradient of `rules.masked`, or those only that have this type and line."""

    def replace(copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[Any] | None:
        if is_place(op):
            return inputs[: len(op.outputs)] if passes_gradients(op) else copy_place(copy, op, inputs)[0]
        if only and not (op.type == only.function and only.at in (line_of(op), op.name)):
            return None
        if op.type in control_flow.TYPES or not op.outputs or not rules.elementwise(op):
            return None
        with traced_rule.computing_derivative(_NOT_SAVED):
            return attach_rule(API, rules.masked, op, inputs, copy.copy_op(op, inputs))

    return replace


def _call(note: Callable[..., list[np.ndarray]], tensors: Sequence[Any]) -> list[tf.Tensor]:
    return python_op.call_python(_SUBJECT, "Run it again.", note, tensors, [tf.TensorSpec([], tf.bool)])


def _values_of(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _sources(op: Any, left: Sequence[np.ndarray], given: Sequence[np.ndarray]) -> list[Any]:
    """The inputs of an op that its numbers can have from: a nan from inputs with nan, if there are any."""
    inputs = [*zip([t for t in op.inputs if has_numbers(t.dtype)], given, strict=True)]
    with_nan = [t for t, array in inputs if np.any(np.isnan(array))]
    if with_nan and any(np.any(np.isnan(array)) for array in left):
        return with_nan
    return [t for t, array in inputs if not are_finite([array])]


def _counts(arrays: Sequence[np.ndarray]) -> tuple[int, int]:
    """How many numbers are nan, and how many are infinite."""
    return sum(int(np.sum(np.isnan(a))) for a in arrays), sum(int(np.sum(np.isinf(a))) for a in arrays)


def _found(
    op: Any, where: Where, left: np.ndarray, upstream: Sequence[np.ndarray], given: Sequence[np.ndarray]
) -> FirstNonfinite:
    # The gradient of a function can read more than its inputs.
    detail = _detail(left, upstream, [] if is_place(op) else given)
    return _described(name_of(op), line_of(op) or op.name, where, left, [*upstream, *given], detail)


def _described(
    function: str, at: str, where: Where, left: np.ndarray, arrived: Sequence[np.ndarray], detail: str
) -> FirstNonfinite:
    index = tuple(int(i) for i in np.argwhere(~np.isfinite(left))[0])
    counts = _counts(arrived), _counts([left])
    return FirstNonfinite(function, at, where, left.dtype.name, *counts, left.size, index, detail)


def _detail(left: np.ndarray, upstream: Sequence[np.ndarray], given: Sequence[np.ndarray]) -> str:
    """How many numbers are not finite, and what arrived there."""
    wrong = ~np.isfinite(left)
    first = tuple(np.argwhere(wrong)[0])
    number = "number" if left.size == 1 else "numbers"
    counts, verbs = f"{np.sum(wrong):,} of {left.size:,}", ("is", "was") if np.sum(wrong) == 1 else ("are", "were")
    finite = f"{counts} {number} {verbs[0]} not finite"
    place = f", the first at {[int(i) for i in first]}" if left.ndim else ""
    if not given or any(a.shape not in ((), left.shape) for a in (*upstream, *given)):
        return f"{finite}{place}."
    inputs = [to_double_precision(np.broadcast_to(a, left.shape)) for a in given]
    values = " and ".join(f"{x[first]:.6g}" for x in inputs)
    where = f"where the {'input was' if len(inputs) == 1 else 'inputs were'} {values}"
    if any(np.any((x != x[first])[wrong]) for x in inputs):
        return f"{finite}{place}, {where}."
    if upstream and not any(np.any(np.broadcast_to(dy, left.shape)[wrong]) for dy in upstream):
        return f"{counts} upstream {number} {verbs[1]} 0 {where}."
    return f"{finite}, {where}."
