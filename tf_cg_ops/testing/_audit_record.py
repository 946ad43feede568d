"""Runs a function and its gradient once, and records what arrives at each place with a gradient of its own."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import python_op, slices, tf_internal
from tf_cg_ops._src.custom_gradient import rule_op
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.rewrite import control_flow
from tf_cg_ops._src.rewrite.graph_copy import GraphCopy, captures_of
from tf_cg_ops._src.rewrite.python_gradients import copy_with_python_gradient
from tf_cg_ops._src.rewrite.traced_call import trace

API = "audit"
_WORDING = without_gradient_function(API)
# Their gradients only recompute the function. Without them, what is inside gets an upstream gradient of its own.
_RECOMPUTING = frozenset(["recompute_grad", "scan", "while_loop", "layers.Recompute"])


_PROBE = "TfCgOpsAudit"


@tf.RegisterGradient(_PROBE)
def _probe_gradient(op: Any, *dys: Any) -> list[Any]:
    return getattr(op, _PROBE)(*dys)


@dataclasses.dataclass
class Run:
    """The arrays of one run of a place: an upstream gradient for each output, and the payload."""

    upstream: list[np.ndarray]
    payload: list[np.ndarray]


@dataclasses.dataclass
class Place:
    """An op with a gradient of its own.

    Attributes:
      op: The op in the traced graph.
      new_op: Its copy in the graph that ran, an op of this library.
      results, inputs: The tensors of `op`, between which its function computes.
      kind: "embed_gradient", "custom_gradient", "tf.custom_gradient".
      inside: The ops that compute the results from the inputs, in order.
      boundary: What else these ops read.
      payload: What is recorded, tensors of the new graph: the inputs of `new_op`, then the boundary.
      handles: The handle of a variable for each position of the payload that has one.
      reason: Why the place cannot be checked; empty if it can.
      runs: The first run, and the last one whose upstream gradients so far were finite.
      count: How often a gradient arrived.
      order: Its place in the backward pass; -1 if no gradient arrived.
    """

    op: Any
    new_op: Any
    kind: str
    results: list[Any]
    inputs: list[Any]
    inside: list[Any] = dataclasses.field(default_factory=list)
    boundary: list[Any] = dataclasses.field(default_factory=list)
    payload: list[Any] = dataclasses.field(default_factory=list)
    handles: dict[int, Any] = dataclasses.field(default_factory=dict)
    reason: str = ""
    runs: list[Run] = dataclasses.field(default_factory=list)
    count: int = 0
    order: int = -1
    has_finite_upstream: bool = True

    @property
    def api(self) -> str:
        """The function of this library that made the op."""
        return rule_op.api(self.op) if self.kind == "custom_gradient" else self.kind


def custom_places(graph: Any) -> Iterator[Any]:
    """The ops with a gradient of their own in a graph and in the functions, loops and conditionals that it calls."""
    for op in graph.get_operations():
        if is_place(op):
            yield op
        if op.type in control_flow.TYPES:
            for function in control_flow.functions_of(op):
                yield from custom_places(function)


def _holds_places(op: Any) -> bool:
    if op.type in control_flow.TYPES:
        return any(next(custom_places(function), None) is not None for function in control_flow.functions_of(op))
    return is_place(op)


def is_place(op: Any) -> bool:
    """Whether the op has a gradient of its own."""
    if op.type in ("CustomGradientEmbed", "CustomGradientRule"):
        return True
    return op.type in ("Identity", "IdentityN") and "_gradient_op_type" in op.node_def.attr


class Recording:
    """A copy of a traced graph that records its places while it computes a gradient."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self.places: list[Place] = []
        self._num_arrived = 0

    def run(self, tensors: Sequence[tf.Tensor], upstream: Callable[[Sequence[Any]], list[Any]]) -> list[np.ndarray]:
        """Computes the outputs, and the gradient for what `upstream` returns for them."""
        graph = self._graph
        values, handles = captures_of(graph)
        others = [(inside, outside) for outside, inside in graph.captures]

        def flat_function(*inputs: tf.Tensor) -> list[Any]:
            copy = GraphCopy([*zip(graph.inputs, inputs, strict=False), *others], self._replace)
            outputs = [tf.identity(output) for output in copy.outputs_of(graph)]
            ys = [y for y in outputs if tf_internal.is_trainable(y)]
            here = tf.compat.v1.get_default_graph()
            xs = [x for x in inputs if tf_internal.is_trainable(x)]
            xs += [tf_internal.capture(here, outside) for _, outside in [*values, *handles]]
            gradients = tf.gradients(ys, xs, grad_ys=upstream(ys))
            effects = [g.op for g in gradients if isinstance(g, tf.Tensor)]
            effects += [g.values.op for g in gradients if isinstance(g, tf.IndexedSlices)]
            with tf.control_dependencies(effects):
                return [tf.identity(output) for output in outputs]

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
        outputs = tf_internal.call_trace(trace(flat_function, specs), *tensors)
        self.places.sort(key=lambda place: place.order if place.order >= 0 else self._num_arrived)
        return [output.numpy() for output in outputs]

    def _replace(self, copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[Any] | None:
        if not is_place(op):
            return None
        outputs: Sequence[Any] | None = copy_with_python_gradient(_WORDING, copy, op, inputs)
        kind = "tf.custom_gradient"
        if outputs is None:
            outputs = copy.copy_op(op, inputs)
            kind = "embed_gradient" if op.type == "CustomGradientEmbed" else "custom_gradient"
        place = _place(op, outputs[0].op, kind)
        _find_inside(place)
        self.places.append(place)
        _find_payload(place, copy)
        if place.api in _RECOMPUTING:
            outputs = inputs[: len(outputs)]
        return self._watched(place, outputs)

    def _watched(self, place: Place, outputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The outputs, whose upstream gradients are recorded."""
        recorded = [t for i, t in enumerate(place.payload) if i not in place.handles]
        watched = [t for t in outputs if tf_internal.is_trainable(t)]
        graph = tf.compat.v1.get_default_graph()
        with graph.gradient_override_map({"IdentityN": _PROBE}):
            probes = tf.raw_ops.IdentityN(input=watched)

        def gradient(*dys: Any) -> list[Any]:
            dense = [tf.convert_to_tensor(slices.to_dense(dy)) for dy in dys]
            note = functools.partial(self._note, place, len(dense))
            subject, advice = f"{API}: the record of '{place.op.name}'", "Run it again."
            effects = python_op.call_python(subject, advice, note, [*dense, *recorded], [tf.TensorSpec([], tf.bool)])
            with tf.control_dependencies(effects):
                return [tf.identity(dy) for dy in dense]

        setattr(probes[0].op, _PROBE, gradient)
        remaining = iter(probes)
        return [next(remaining) if tf_internal.is_trainable(t) else t for t in outputs]

    def _note(self, place: Place, num_upstream: int, *arrays: np.ndarray) -> list[np.ndarray]:
        if place.order < 0:
            place.order = self._num_arrived
            self._num_arrived += 1
        place.count += 1
        upstream = arrays[:num_upstream]
        place.has_finite_upstream &= all(bool(np.all(np.isfinite(_numbers(dy)))) for dy in upstream)
        if (
            not place.runs or place.has_finite_upstream
        ):  # A loop has many runs. The last one may be where a nan was born.
            run = Run([np.array(dy) for dy in upstream], [np.array(x) for x in arrays[num_upstream:]])
            place.runs = [*place.runs[:1], run]
        return [np.array(True)]


def _numbers(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.complex128 if np.iscomplexobj(array) else np.float64)


def _place(op: Any, new_op: Any, kind: str) -> Place:
    if kind == "embed_gradient":
        num_pairs = op.get_attr("N")
        return Place(op, new_op, kind, list(op.inputs[:1]), list(op.inputs[1 + num_pairs :]))
    if kind == "custom_gradient":
        results, inputs, _ = rule_op.parts_of_inputs(op)
        return Place(op, new_op, kind, results, inputs, reason=rule_op.error(op).rstrip("."))
    # The op holds the results and then the arguments. The results have no gradient.
    first = min(new_op.get_attr("differentiated_inputs"), default=len(op.inputs))
    return Place(op, new_op, kind, list(op.inputs[:first]), list(op.inputs[first:]))


def num_results(new_op: Any) -> int:
    """The number of inputs of a CustomGradientRule that are results."""
    return len(new_op.get_attr("Tresults"))


def handle_of(tensor: Any) -> Any:
    """The handle that this tensor is, or is read from; None for other tensors."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    if tensor.op.type == "ReadVariableOp":
        return tensor.op.inputs[0]
    return tensor if tensor.dtype.base_dtype == tf.resource else None


def _find_inside(place: Place) -> None:
    """Finds what computes the results from the inputs."""
    sources = {id(t) for t in place.inputs} | {id(handle_of(t)) for t in place.inputs} - {id(None)}
    ancestors: dict[int, Any] = {}
    waiting = list(place.results)
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in sources and id(tensor.op) not in ancestors:
            ancestors[id(tensor.op)] = tensor.op
            waiting += tensor.op.inputs
    reached = set(sources)
    for op in place.op.graph.get_operations():
        if id(op) in ancestors and any(id(t) in reached for t in op.inputs):
            place.inside.append(op)
            # Integers and bools have no derivative: they stay as they were in the run, so no kink is crossed.
            reached |= {
                id(t) for t in op.outputs if tf_internal.is_trainable(t) or t.dtype in (tf.variant, tf.resource)
            }
    known = set(reached)
    for tensor in [*(t for op in place.inside for t in op.inputs), *place.results]:
        if id(tensor) not in known:
            known.add(id(tensor))
            place.boundary.append(tensor)
    place.reason = place.reason or _reason(place.inside)
    if place.api in _RECOMPUTING and any(map(_holds_places, place.inside)):
        place.reason = place.reason or "it recomputes what has gradients of its own, which have rows of their own"


def _reason(ops: Sequence[Any]) -> str:
    """Why these ops cannot be computed again at other arguments."""
    for op in ops:
        if op.type in control_flow.TYPES:
            for function in control_flow.functions_of(op):
                reason = _reason(function.get_operations())
                if reason:
                    return reason
        elif "PyFunc" in op.type:
            return "it calls Python code, which only runs in the dtypes of the model"
        elif op.op_def.is_stateful and "Random" in op.type:
            return f"its op '{op.name}' draws other random numbers each time"
    return ""


def _find_payload(place: Place, copy: GraphCopy) -> None:
    place.payload = [*place.new_op.inputs, *copy.tensors(place.boundary)]
    for i, tensor in enumerate(place.payload):
        if tensor.dtype.base_dtype == tf.resource:
            handle = _eager_handle(tensor)
            if handle is None:
                place.reason = place.reason or f"it reads '{tensor.name}', which is not a variable of the model"
            place.handles[i] = handle
        elif tensor.dtype.base_dtype == tf.variant:
            place.reason = place.reason or f"it reads the list '{tensor.name}', which is part of a loop"
            place.handles[i] = None


def _eager_handle(tensor: Any) -> Any:
    """The handle of a variable that stands behind a tensor of a function; None if there is none."""
    while not isinstance(tensor, tf_internal.EagerTensor):
        outside = [out for out, inside in getattr(tensor.graph, "captures", []) if inside is tensor]
        if not outside:
            return None
        (tensor,) = outside
    return tensor
