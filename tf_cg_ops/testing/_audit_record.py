"""Runs a function and its gradient once, and records what arrives at each place with a gradient of its own."""

import contextlib
import dataclasses
import functools
import math
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

from ._report import in_one_line

API = "audit"
RAISES = "Computing its gradient fails:"
_WORDING = without_gradient_function(API)
# Their gradients only recompute the function. Without them, what is inside gets an upstream gradient of its own.
_RECOMPUTING = frozenset(["recompute_grad", "scan", "while_loop", "layers.Recompute"])


PASSING = frozenset(["watch_gradient", "layers.WatchGradient"])
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
      siblings: Tensors that are an input once more, and which one.
      reached: The inputs that the results depend on.
      originals: For inputs of `new_op` that the ops inside compute, their tensor in the graph of `op`.
      rounded: The dtypes of residuals that the rule reads, if they cannot be computed again in double precision.
      payload: What is recorded, tensors of the new graph: the inputs of `new_op`, then the boundary.
      handles: The handle of a variable for each position of the payload that has one.
      reason: Why the place cannot be checked; empty if it can.
      runs: The first run, and the last one whose upstream gradients so far were finite.
      count: How often a gradient arrived.
      order: Its place in the backward pass; -1 if no gradient arrived.
      gradient_norm: The largest norm of what left by one input, if the place cannot be checked.
    """

    op: Any
    new_op: Any
    kind: str
    results: list[Any]
    inputs: list[Any]
    inside: list[Any] = dataclasses.field(default_factory=list)
    boundary: list[Any] = dataclasses.field(default_factory=list)
    siblings: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)
    reached: set[Any] = dataclasses.field(default_factory=set)
    originals: dict[int, Any] = dataclasses.field(default_factory=dict)
    rounded: set[tf.DType] = dataclasses.field(default_factory=set)
    payload: list[Any] = dataclasses.field(default_factory=list)
    handles: dict[int, Any] = dataclasses.field(default_factory=dict)
    reason: str = ""
    runs: list[Run] = dataclasses.field(default_factory=list)
    count: int = 0
    order: int = -1
    has_finite_upstream: bool = True
    gradient_norm: float = 0.0

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


def is_place(op: Any) -> bool:
    """Whether the op has a gradient of its own."""
    if op.type in ("CustomGradientEmbed", "CustomGradientRule"):
        return True
    return tf_internal.has_python_gradient(op)


class Recording:
    """A copy of a traced graph that records its places while it computes a gradient."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self.places: list[Place] = []
        self._num_arrived = 0

    def trace(self, tensors: Sequence[tf.Tensor], upstream: Callable[[Sequence[Any]], list[Any]]) -> Any:
        """Traces the copy that computes the gradient for what `upstream` returns for the outputs."""
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
            gradients = tf.gradients(ys, xs, grad_ys=upstream(outputs))
            effects = [g.op for g in gradients if isinstance(g, tf.Tensor)]
            effects += [g.values.op for g in gradients if isinstance(g, tf.IndexedSlices)]
            with tf.control_dependencies(effects):
                return [tf.identity(output) for output in outputs]

        return trace(flat_function, [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors])

    def run(self, traced: Any, tensors: Sequence[tf.Tensor]) -> None:
        """Runs the copy."""
        tf_internal.call_trace(traced, *tensors)
        self.places.sort(key=lambda place: place.order if place.order >= 0 else self._num_arrived)

    def _replace(self, copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[Any] | None:
        if op.type.startswith("CheckNumerics"):
            return inputs  # What is not finite is to be found, and not to end the run.
        if not is_place(op):
            return None
        reason = _reason_without_rule(op)
        if reason:
            return self._without_rule(op, inputs, reason)
        places: list[Place] = []

        def note_what_leaves(*gradients: Any) -> list[Any]:
            if not places or not places[0].reason:
                return list(gradients)  # The check runs the rule again.
            note = functools.partial(_note_what_leaves, places[0])
            return self._after(places[0], note, gradients, [])

        # One by one: a probe of several would pass zeros to those that have no gradient.
        inputs = [_probed([tensor], note_what_leaves)[0] for tensor in inputs]
        try:
            outputs: Sequence[Any] | None = copy_with_python_gradient(
                _WORDING, copy, op, inputs, is_differentiated=False
            )
        except Exception as error:  # The user's gradient function raised it, and the row says so.
            return self._without_rule(op, inputs, f"{RAISES} {in_one_line(error)}.")
        if outputs is None:
            outputs = copy.copy_op(op, inputs)
        place = _place(op, outputs[0].op, copy)
        places.append(place)
        _find_inside(place)
        self.places.append(place)
        _find_payload(place, copy)
        if place.api in PASSING:
            place.reason = "it watches the gradient, which passes unchanged"
        if place.api in _RECOMPUTING | PASSING:
            outputs = inputs[: len(outputs)]
        recorded = [t for i, t in enumerate(place.payload) if i not in place.handles]

        def note_what_arrives(*dys: Any) -> list[Any]:
            return self._after(place, functools.partial(self._note, place, len(dys)), dys, recorded)

        return _probed(outputs, note_what_arrives)

    def _without_rule(self, op: Any, inputs: list[tf.Tensor], reason: str) -> list[tf.Tensor]:
        """Adds a place whose gradient cannot be computed, and returns its outputs, without this gradient."""
        results = list(op.inputs[: len(op.outputs)])
        self.places.append(Place(op, op, _kind(op), results, [], reason=reason))
        return inputs[: len(op.outputs)]

    def _after(
        self, place: Place, note: Callable[..., list[np.ndarray]], gradients: Sequence[Any], others: Sequence[Any]
    ) -> list[tf.Tensor]:
        """The gradients, after a Python function got them and other tensors as arrays."""
        dense = [tf.convert_to_tensor(slices.to_dense(gradient)) for gradient in gradients]
        subject, advice = f"{API}: the record of '{place.op.name}'", "Run it again."
        effects = python_op.call_python(subject, advice, note, [*dense, *others], [tf.TensorSpec([], tf.bool)])
        with tf.control_dependencies(effects):
            return [tf.identity(gradient) for gradient in dense]

    def _note(self, place: Place, num_upstream: int, *arrays: np.ndarray) -> list[np.ndarray]:
        if place.order < 0:
            place.order = self._num_arrived
            self._num_arrived += 1
        place.count += 1
        upstream = arrays[:num_upstream]
        place.has_finite_upstream &= all(bool(np.all(np.isfinite(_numbers(dy)))) for dy in upstream)
        # A loop has many runs. The last one whose upstream is finite may be where a nan was born.
        if not place.runs or place.has_finite_upstream:
            run = Run([np.array(dy) for dy in upstream], [np.array(x) for x in arrays[num_upstream:]])
            place.runs = [*place.runs[:1], run]
        return [np.array(True)]


def _probed(tensors: Sequence[tf.Tensor], gradient: Callable[..., list[Any]]) -> list[tf.Tensor]:
    """The tensors, with this function for the gradients of those that have some."""
    watched = [t for t in tensors if tf_internal.is_trainable(t) and t.dtype not in (tf.resource, tf.variant)]
    if not watched:
        return list(tensors)
    with tf.compat.v1.get_default_graph().gradient_override_map({"IdentityN": _PROBE}):
        probes = tf.raw_ops.IdentityN(input=watched)
    setattr(probes[0].op, _PROBE, gradient)
    by_id = {id(t): probe for t, probe in zip(watched, probes, strict=True)}
    return [by_id.get(id(t), t) for t in tensors]


def _note_what_leaves(place: Place, gradient: np.ndarray) -> list[np.ndarray]:
    norm = float(np.linalg.norm(_numbers(gradient)))
    if math.isfinite(place.gradient_norm):  # What is not finite stays.
        place.gradient_norm = max(place.gradient_norm, norm) if math.isfinite(norm) else norm
    return [np.array(True)]


def _numbers(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.complex128 if np.iscomplexobj(array) else np.float64)


def _kind(op: Any) -> str:
    kinds = {"CustomGradientEmbed": "embed_gradient", "CustomGradientRule": "custom_gradient"}
    return kinds.get(op.type, "tf.custom_gradient")


def _reason_without_rule(op: Any) -> str:
    """Why an op has no gradient function that could be called; empty if it has one."""
    if _kind(op) == "custom_gradient":
        error = rule_op.error(op).rstrip(".")
        return f"{RAISES} {error.rpartition(' is not there, because ')[2]}" if error else ""
    is_foreign = _kind(op) == "tf.custom_gradient"
    return "its gradient was not saved" if is_foreign and tf_internal.find_gradient_function(op) is None else ""


def _place(op: Any, new_op: Any, copy: GraphCopy) -> Place:
    tensors, kind = list(op.inputs), _kind(op)
    if kind == "embed_gradient":
        results, inputs = tensors[:1], tensors[1 + op.get_attr("N") :]
    elif kind == "custom_gradient":
        results, inputs, _ = rule_op.parts_of_inputs(op)
        if rule_op.api(op) == "tf.custom_gradient":  # As below: it is an identity of results and arguments.
            first = min(op.get_attr("differentiated_inputs"), default=len(results))
            results, inputs = results[:first], inputs[first:]
    else:
        # The op holds the results and then the arguments. The results have no gradient.
        first = tf_internal.num_results_of_python_gradient(op)
        if first is None:
            first = min(new_op.get_attr("differentiated_inputs"), default=len(tensors))
        results, inputs = tensors[:first], tensors[first:]
        # The copy has them twice, and then the residuals.
        tensors += [*tensors, *(copy.original_of(t) for t in new_op.inputs[2 * len(tensors) :])]
    place = Place(op, new_op, kind, results, inputs)
    place.originals = {i: t for i, t in enumerate(tensors) if t is not None}
    return place


def source_of(tensor: Any) -> tuple[int, tf.DType]:
    """Equal for tensors that are the same number: identities, reads of one variable, and casts of these."""
    dtype = tensor.dtype.base_dtype
    while (tensor.op.type == "Identity" and not is_place(tensor.op)) or _is_cast(tensor.op):
        tensor = tensor.op.inputs[0]
    if tensor.op.type == "ReadVariableOp":
        tensor = tensor.op.inputs[0]
    while tensor.op.type == "Identity" and tensor.dtype == tf.resource:
        tensor = tensor.op.inputs[0]
    if dtype == tf.resource:
        with contextlib.suppress(ValueError):  # Such as a hash table.
            dtype = tf_internal.shape_and_dtype(tensor)[1]
    return id(tensor), dtype


def is_variable(tensor: Any) -> bool:
    """Whether it is a variable, or read from one."""
    while tensor.op.type == "Identity" or _is_cast(tensor.op):
        tensor = tensor.op.inputs[0]
    return tensor.op.type == "ReadVariableOp" or tensor.dtype == tf.resource


def read_of(op: Any, value: tf.Tensor, others: Sequence[tf.Tensor]) -> tf.Tensor:
    """What an op that reads a variable returns, if the variable has this value."""
    if op.type == "ResourceGather":
        return tf.gather(value, others[0], batch_dims=op.get_attr("batch_dims"))
    return tf.gather_nd(value, others[0]) if op.type == "ResourceGatherNd" else value


def _is_cast(op: Any) -> bool:
    return op.type == "Cast" and op.inputs[0].dtype.is_floating and op.outputs[0].dtype.is_floating


def _find_inside(place: Place) -> None:
    """Finds what computes the results, and the residuals that the rule reads, from the inputs."""
    place.siblings = [(t, source_of(t)) for t in place.inputs]
    moved = {id(t) for t in place.inputs}
    place.inside, place.reached = _ops_that_move(place, place.results, moved)
    place.reason = place.reason or _reason(place.inside)
    residuals = list(place.originals.values())
    of_residuals = set(moved)
    more, sources = _ops_that_move(place, residuals, of_residuals)
    if _reason(more):
        place.rounded = {t.dtype.base_dtype for t in residuals if sources and id(t) not in moved}
    else:
        moved = of_residuals
        place.inside += more
    place.originals = {i: t for i, t in place.originals.items() if id(t) in moved}
    known, waiting = set(moved), [*(t for op in place.inside for t in op.inputs), *place.results]
    while waiting:
        tensor = waiting.pop(0)
        if id(tensor) in known:
            continue
        known.add(id(tensor))
        if tensor.dtype == tf.variant and tensor.op.type != "Placeholder":  # A list that begins here.
            place.inside.append(tensor.op)
            waiting += tensor.op.inputs
        elif tensor.op.type != "Const":
            place.boundary.append(tensor)
    if place.api in _RECOMPUTING:
        place.reason = place.reason or "it recomputes the gradients of what is inside, which has rows of its own"
    elif place.api.startswith("linear."):
        place.reason = "its solver stops at a tolerance, which numeric differentiation sees"
    elif place.kind == "embed_gradient" and not place.reached:
        place.reason = "its value is not computed from its x in the graph"


def _ops_that_move(place: Place, ends: Sequence[Any], moved: set[int]) -> tuple[list[Any], set[Any]]:
    """The ops between the inputs and these tensors, in order, and the inputs found. Adds their outputs to `moved`."""
    sources, found = {source for _, source in place.siblings}, set()
    ancestors: dict[int, Any] = {}
    waiting = list(ends)
    while waiting:
        tensor = waiting.pop()
        source = source_of(tensor)
        if source in sources:
            found.add(source)
            if id(tensor) not in moved:
                moved.add(id(tensor))
                place.siblings.append((tensor, source))
        elif id(tensor.op) not in ancestors:
            ancestors[id(tensor.op)] = tensor.op
            waiting += tensor.op.inputs
    ops = []
    for op in place.op.graph.get_operations() if ancestors else []:
        if id(op) in ancestors and any(id(t) in moved for t in op.inputs):
            ops.append(op)
            if op.type not in control_flow.READ_SHAPES:
                moved |= {id(t) for t in op.outputs}
    return ops, found


READS = frozenset(["ReadVariableOp", "ResourceGather", "ResourceGatherNd"])
# Stateful ops that return the same for the same inputs.
_STATEFUL_AND_SAME = frozenset(["CheckNumerics", "CheckNumericsV2", "VarHandleOp"])


def _reason(ops: Sequence[Any]) -> str:
    """Why these ops cannot be computed again at other arguments."""
    for op in ops:
        if op.type in control_flow.TYPES:
            for function in control_flow.functions_of(op):
                reason = _reason(function.get_operations())
                if reason:
                    return reason
        elif any(t.dtype == tf.resource for t in op.inputs) and op.type not in READS:
            return f"its op '{op.name}' writes a variable or reads a table"
        elif "PyFunc" in op.type:
            return "it calls Python code, which only runs in the dtypes of the model"
        elif draws(op):
            return f"its op '{op.name}' draws other random numbers each time"
    return ""


def draws(op: Any) -> bool:
    """Whether an op returns something else each time, such as a random number."""
    is_same = op.type in READS | _STATEFUL_AND_SAME or "PyFunc" in op.type
    is_stateful = op.op_def.is_stateful or op.type.startswith("Fractional")  # Pooling over random regions.
    return is_stateful and bool(op.outputs) and not is_same


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
