"""Runs a function and its gradient once, and records what arrives at each place with a gradient of its own."""

import contextlib
import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import calls, python_op, slices, text, tf_internal
from tf_cg_ops._src.custom_gradient import attaching, live_rule, rule_op
from tf_cg_ops._src.custom_gradient.call import Backward
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.graphs import control_flow
from tf_cg_ops._src.graphs.graph_copy import GraphCopy, Replace, captures_of, traceback_of
from tf_cg_ops._src.rewrite.traced_call import trace

API = "audit"
WORDING = without_gradient_function(API)
# Their gradients only recompute the function. Without them, what is inside gets an upstream gradient of its own.
RECOMPUTING = frozenset(["recompute_grad", "scan", "while_loop", "layers.Recompute", "keras.remat"])
PASSING = frozenset(["watch_gradient", "layers.WatchGradient"])
_RANDOM = re.compile("Random|Multinomial|TruncatedNormal|^Fractional|^Stateful(Std|Uni)|^Stateless.*Normal")
NOT_SAVED = "its gradient was not saved"
_PROBE = "TfCgOpsAudit"
# Files whose lines are not the user's.
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_FOREIGN = re.compile(rf"^<|^{re.escape(_PACKAGE + os.sep)}|[/\\\\]site-packages[/\\\\]")


@tf.RegisterGradient(_PROBE)
def _probe_gradient(op: Any, *dys: Any) -> list[Any]:
    return getattr(op, _PROBE)(*dys)


def with_gradient(tensors: Sequence[Any], gradient: Callable[..., list[Any]]) -> list[Any]:
    """The tensors, through an op whose gradient this function computes in the graph of the gradient."""
    with tf.compat.v1.get_default_graph().gradient_override_map({"IdentityN": _PROBE}):
        probes = tf.raw_ops.IdentityN(input=list(tensors))
    setattr(probes[0].op, _PROBE, gradient)
    return list(probes)


@dataclasses.dataclass
class Run:
    """The arrays of one run of a place: an upstream gradient for each result, and a value for each `Place.recorded`."""

    upstream: list[np.ndarray]
    values: list[np.ndarray]


@dataclasses.dataclass
class Place:
    """An op with a gradient of its own. Ops and tensors are in the traced graph, except `new_op`."""

    op: Any
    new_op: Any  # Its copy in the graph that ran, an op of this library; None if its gradient cannot be computed.
    api: str  # The function that made it, such as "custom_gradient", "embed_gradient" or "tf.custom_gradient".
    positions: list[int] = field(default_factory=list)  # The outputs that it gives a gradient to.
    # What it gives a gradient for, at the inputs of `new_op` from `offset`.
    inputs: list[Any] = field(default_factory=list)
    offset: int = 0
    # For each input of `new_op` the tensor that it is a copy of, or None.
    needed: list[Any] = field(default_factory=list)
    # The positions of the inputs that have gradients. Those of the same tensor or variable are together, as one leaf.
    leaves: list[list[int]] = field(default_factory=list)
    # The tensors that have the value of a leaf, each with its number.
    stand_ins: list[tuple[Any, int]] = field(default_factory=list)
    # The ops that compute the results, and what the rule reads, from the leaves.
    inside: list[Any] = field(default_factory=list)
    # Tensors to record: one for each leaf, then what the ops inside read besides.
    recorded: list[Any] = field(default_factory=list)
    # Of variables among these tensors, each with the handle outside of graphs.
    handles: list[tuple[Any, Any]] = field(default_factory=list)
    draws: bool = False  # Whether the random numbers in its value depend on the inputs.
    reason: str = ""  # Why the place is not checked; empty if it is.
    # If some leaves are computed from others: the place with only these others, and those in `dependent`.
    whole: "Place | None" = None
    dependent: list[list[int]] = field(default_factory=list)
    # If the rule sees what is needed or used: the place for one input or one output alone, by the name of the case.
    alone: "dict[str, Place]" = field(default_factory=dict)
    # The first run, and the last one whose upstream gradients so far were finite.
    runs: list[Run] = field(default_factory=list)
    count: int = 0  # How often a gradient arrived.
    order: int = -1  # Its place in the backward pass; -1 if no gradient arrived.
    has_finite_upstream: bool = True

    @property
    def results(self) -> list[Any]:
        """What the ops inside compute."""
        return [self.op.inputs[i] for i in self.positions]

    @property
    def versions(self) -> "list[Place]":
        """The place, and the same place with other inputs and outputs."""
        return [self, *filter(None, [self.whole]), *self.alone.values()]

    @property
    def names(self) -> list[str]:
        """The names of the leaves."""
        return [f"input {' and '.join(map(str, leaf))}" for leaf in self.leaves]


def is_place(op: Any) -> bool:
    """Whether the op has a gradient of its own."""
    return op.type in ("CustomGradientEmbed", "CustomGradientRule") or tf_internal.has_python_gradient(op)


def api_of(op: Any) -> str:
    """The function that made an op with a gradient of its own, such as "recompute_grad" or "tf.custom_gradient"."""
    if op.type == "CustomGradientRule":
        return rule_op.api(op)
    return "embed_gradient" if op.type == "CustomGradientEmbed" else "tf.custom_gradient"


def copy_place(copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> tuple[Sequence[Any], str]:
    """Copies an op with a gradient of its own. If that is not possible, returns its results, and says why."""
    try:
        if (exception := live_rule.exception_of(op)) is not None:
            raise exception
        if op.type == "CustomGradientRule" and rule_op.error(op) and not live_rule.is_needed(op):
            raise RuntimeError(rule_op.error(op))
        if tf_internal.find_gradient_function(op) is None:
            return inputs[: len(op.outputs)], NOT_SAVED
        return copy.copy_op(op, inputs), ""
    except Exception as error:  # The user's gradient function raised it, and the row says so.
        return inputs[: len(op.outputs)], f"Computing its gradient fails: {text.in_one_line(error)}."


def passes_gradients(op: Any) -> bool:
    """Whether the gradient that an op has of its own is the one that the ops inside have without it."""
    return is_place(op) and api_of(op) in RECOMPUTING | PASSING


def name_of(op: Any) -> str:
    """The name of the function with a gradient of its own that made an op; the type of another op."""
    if not is_place(op):
        return op.type
    if op.type == "CustomGradientRule":
        name, api = rule_op.function_name(op), rule_op.api(op)
        # Some functions of this library attach their rule to an identity.
        return api if name == "identity" and api != "custom_gradient" else name
    if op.type != "CustomGradientEmbed":
        return op.name
    scope = op.name.split("/")
    return scope[-2] if len(scope) > 1 else scope[-1]  # The scope is the layer, or the name that the user gave.


def line_of(op: Any) -> str:
    """The line of the user's code that made an op, such as "model.py:12"; empty in a loaded model."""
    own = [frame for frame in traceback_of(op) or [] if not _FOREIGN.search(frame.filename)]
    return f"{os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else ""


def trace_gradient(
    graph: Any, tensors: Sequence[tf.Tensor], upstream: Callable[[Sequence[Any]], list[Any]] | None, replace: Replace
) -> Any:
    """Traces a copy of a graph, which returns its outputs, and then its gradients for what `upstream` returns."""
    values, handles = captures_of(graph)
    others = [(inside, outside) for outside, inside in graph.captures]
    seeds = itertools.count(1)

    def replaced(copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[Any] | None:
        if op.type.startswith("CheckNumerics"):  # What is not finite is to be found, and not to end the run.
            return inputs
        is_known = op.type in control_flow.TYPES or is_place(op) or not tf_internal.lacks_gradient(op)
        if upstream is not None and not is_known:  # The audit is of those that have one.
            return [tf.stop_gradient(t) if has_numbers(t.dtype) else t for t in copy.copy_op(op, inputs)]
        outputs = replace(copy, op, inputs)
        if outputs is None and "seed2" in op.node_def.attr and not op.get_attr("seed") and not op.get_attr("seed2"):
            outputs = copy.copy_op(op, inputs)  # Each run of a trace draws the same numbers.
            tf_internal.set_attribute(outputs[0].op, "seed2", tf.compat.v1.AttrValue(i=next(seeds)))
        return outputs

    def flat_function(*inputs: tf.Tensor) -> list[Any]:
        copy = GraphCopy([*zip(graph.inputs, inputs, strict=False), *others], replaced)
        outputs = [tf.identity(output) for output in copy.outputs_of(graph)]
        if upstream is None:
            return outputs
        ys = [y for y in outputs if tf_internal.is_trainable(y)]
        here = tf.compat.v1.get_default_graph()
        xs = [x for x in inputs if tf_internal.is_trainable(x)]
        xs += [tf_internal.capture(here, outside) for _, outside in [*values, *handles]]
        gradients = [g for g in tf.gradients(ys, xs, grad_ys=upstream(outputs)) if g is not None]
        return [*outputs, *map(tf.identity, tf.nest.flatten(gradients, expand_composites=True))]

    return trace(flat_function, [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors])


def all_operations(ops: Sequence[Any]) -> Iterator[Any]:
    """These ops, and the ops of the functions, loops and conditionals that they call."""
    for op in ops:
        yield op
        for function in control_flow.functions_of(op) if op.type in control_flow.TYPES else []:
            yield from all_operations(function.get_operations())


def draws(op: Any) -> bool:
    """Whether an op, or a function that it calls, draws random numbers."""
    return any(_RANDOM.search(inner.type) for inner in all_operations([op]))


def are_finite(arrays: Sequence[np.ndarray]) -> bool:
    """Whether no number is infinite or nan."""
    return all(bool(np.all(np.isfinite(array))) for array in arrays)


class Recording:
    """A copy of a traced graph that records its places while it computes a gradient."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self._num_arrived = 0

    def sort(self) -> None:
        """Puts the places into the order of the backward pass."""
        self.places.sort(key=lambda place: place.order if place.order >= 0 else self._num_arrived)

    def replace(self, copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[Any] | None:
        """Records an op with a gradient of its own, and copies others as they are; for `trace_gradient`."""
        if op.type in calls.CALLS:  # XLA cannot compile what records.
            return control_flow.copy_body(op, inputs, copy.call)
        if not is_place(op):
            return None
        place = Place(op, None, api_of(op))
        self.places.append(place)
        outputs, place.reason = copy_place(copy, op, inputs)
        if place.reason:
            return outputs
        place.new_op = outputs[0].op
        _find_arguments(place)
        if not place.positions:  # All results are integers.
            return outputs
        _find_inside(place)
        _find_alone(place)
        return self._probed(place, copy, inputs[: len(outputs)] if passes_gradients(op) else outputs)

    def _probed(self, place: Place, copy: GraphCopy, outputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The outputs, with a gradient that records what arrives."""
        here = tf.compat.v1.get_default_graph()
        # Captured here, because the gradient of a conditional finds no tensors from around it.
        tensors = [t for version in place.versions for t in version.recorded]
        recorded = [tf_internal.capture(here, t) for t in copy.tensors(tensors)]
        for i, tensor in enumerate(recorded):
            if tensor.dtype == tf.resource:
                recorded[i] = tf.raw_ops.ReadVariableOp(resource=tensor, dtype=dtype_behind(_eager_handle(tensor)))
        recorded += [t for t, old in zip(place.new_op.inputs, place.needed, strict=True) if old is None]
        note, spec = functools.partial(self._note, place), tf.TensorSpec([], tf.bool)
        subject = f"{API}: the record of '{place.op.name}'"

        def gradient(*dys: Any) -> list[tf.Tensor]:
            dense = [tf.convert_to_tensor(slices.to_dense(dy)) for dy in dys]
            effects = python_op.call_python(subject, "Run it again.", note, [*dense, *recorded], [spec])
            with tf.control_dependencies(effects):
                return [tf.identity(dy) for dy in dense]

        probes = with_gradient([outputs[i] for i in place.positions], gradient)
        by_position = dict(zip(place.positions, probes, strict=True))
        return [by_position.get(i, output) for i, output in enumerate(outputs)]

    def _note(self, place: Place, *arrays: np.ndarray) -> list[np.ndarray]:
        if place.order < 0:
            place.order = self._num_arrived
            self._num_arrived += 1
        place.count += 1
        upstream, values = arrays[: len(place.positions)], arrays[len(place.positions) :]
        place.has_finite_upstream &= are_finite(upstream)
        # A loop has many runs. The last one whose upstream is finite may be where a nan was born.
        if not place.runs or place.has_finite_upstream:
            dys, xs = map(np.array, upstream), map(np.array, values)
            by_position = dict(zip(place.positions, dys, strict=True))
            for version in place.versions:
                run = Run([by_position[i] for i in version.positions], [next(xs) for _ in version.recorded])
                version.runs = [*version.runs[:1], run]
            place.runs[-1].values += xs
        return [np.array(True)]


def _find_arguments(place: Place) -> None:
    """Finds the results among the inputs of the op, and the inputs of its gradient."""
    op, num_outputs = place.op, len(place.op.outputs)
    place.needed, num_results = list(op.inputs), num_outputs
    if place.api == "embed_gradient":
        place.offset, last = 1 + op.get_attr("N"), len(op.inputs)
    else:
        place.offset, last = num_outputs, num_outputs + len(op.get_attr("Tinputs"))
        if place.api == "tf.custom_gradient" and op.inputs[0] is op.inputs[num_outputs]:
            # Of a loaded model: both the results and the inputs are the results and then the arguments. The results
            # have no gradient.
            num_results = min(op.get_attr("differentiated_inputs"), default=num_outputs)
            place.offset += num_results
    place.inputs = place.needed[place.offset : last]
    place.positions = [i for i, t in enumerate(op.inputs[:num_results]) if has_numbers(t.dtype)]


def has_numbers(dtype: Any) -> bool:
    """Whether tensors of a dtype hold numbers that have gradients."""
    return dtype not in (None, tf.resource, tf.variant) and tf_internal.is_trainable(dtype)


def source_of(tensor: Any) -> tuple[int, tf.DType]:
    """Equal for tensors that are the same number: identities, reads of one variable, and casts of these."""
    root, dtype = _root(tensor), tensor.dtype.base_dtype
    return id(root), dtype_behind(root) or dtype if dtype == tf.resource else dtype


def _root(tensor: Any) -> Any:
    op = tensor.op
    while (op.type == "Identity" and not is_place(op)) or op.type == "ReadVariableOp" or _is_cast(op):
        tensor = op.inputs[0]
        op = tensor.op
    return tensor


def _is_cast(op: Any) -> bool:
    return op.type == "Cast" and op.inputs[0].dtype.is_floating and op.outputs[0].dtype.is_floating


def dtype_behind(handle: Any) -> tf.DType | None:
    """The dtype of a variable; None for another resource, such as a hash table."""
    with contextlib.suppress(ValueError):
        return tf_internal.shape_and_dtype(handle)[1]
    return None


def _find_inside(place: Place) -> None:
    """Finds what computes the results, and what the rule reads, from the inputs."""
    by_source: dict[Any, list[int]] = {}
    for i, tensor in enumerate(place.inputs):
        if has_numbers(dtype_behind(tensor) if tensor.dtype == tf.resource else tensor.dtype):
            by_source.setdefault(source_of(tensor), []).append(i)
    place.leaves = list(by_source.values())
    tensors = [(source, place.inputs[leaf[0]]) for source, leaf in by_source.items()]
    tensors = [(source, _root(t)) for source, t in tensors if t.dtype != tf.resource]
    dependent = [s for s, t in tensors if _before(t.op.inputs, [other for other, _ in tensors if other != s])[1]]
    _find_computation(place, list(by_source))
    if dependent and not place.reason:
        independent = [source for source in by_source if source not in dependent]
        place.whole = dataclasses.replace(
            place,
            leaves=[by_source[source] for source in independent],
            dependent=[by_source[source] for source in dependent],
            inside=[],
            handles=[],
            draws=False,
        )
        _find_computation(place.whole, independent)


def _find_alone(place: Place) -> None:
    """Finds what the rule does if only one input is needed, or only one output is used."""
    live = live_rule.of(place.op)
    if place.reason or place.whole or live is None or not isinstance(live.backward, Backward):
        return
    for case, backward, inputs, outputs in live.backward.alone():
        leaves = [leaf for leaf in place.leaves if set(leaf) <= set(inputs)]
        other = dataclasses.replace(
            place,
            new_op=None,
            positions=[i for i in place.positions if i in outputs],
            leaves=leaves,
            inside=[],
            handles=[],
            draws=False,
            alone={},
        )
        if leaves and other.positions:
            place.alone[case] = other
            try:
                other.new_op, other.needed = attaching.traced_for(
                    place.op, dataclasses.replace(live, backward=backward)
                )
            except Exception as error:  # The user's rule raised it, and the row says so.
                other.reason = f"computing its gradient fails: {text.in_one_line(error)}"
            _find_computation(other, [source_of(place.inputs[leaf[0]]) for leaf in leaves])


def _find_computation(place: Place, sources: list[Any]) -> None:
    """Finds the ops between the leaves, which are of these sources, and the results."""
    place.recorded = [place.inputs[leaf[0]] for leaf in place.leaves]
    ends = [*place.results, *(t for t in place.needed if t is not None)]
    ops, place.stand_ins = _before(ends, sources)
    moved, drawn = {id(t) for t, _ in place.stand_ins}, set()
    for op in ops:
        is_random = draws(op)
        if any(id(t) in moved for t in op.inputs) and op.type not in control_flow.READ_SHAPES:
            place.inside.append(op)
            moved |= {id(t) for t in op.outputs}
            # Such as a sample that is accepted or not. A mask of random numbers, as in dropout, does not depend on it.
            decides = any(id(t) in drawn for t in op.inputs) and tf.bool in [t.dtype for t in op.outputs]
            place.draws |= is_random or decides
        if is_random or any(id(t) in drawn for t in op.inputs):
            drawn |= {id(t) for t in op.outputs}
    waiting = [*(t for op in place.inside for t in op.inputs), *ends]
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in moved:
            continue
        moved.add(id(tensor))
        if tensor.dtype == tf.resource:
            place.handles.append((tensor, _eager_handle(tensor)))
        elif tensor.dtype == tf.variant and tensor.op.type != "Placeholder":  # A list that begins here.
            waiting += tensor.op.inputs
        elif tensor.dtype == tf.variant:
            place.reason = f"it reads the list '{tensor.name}', which is part of a loop"
        elif tensor.op.type != "Const":
            place.recorded.append(tensor)
    place.handles += [(t, _eager_handle(t)) for t, _ in place.stand_ins if t.dtype == tf.resource]
    # What the function writes into a variable and reads again depends on its inputs in a way that no tensor shows.
    roots = [_root(t) for t in (*(t for t, _ in place.stand_ins), *(op.outputs[0] for op in ops if op.outputs))]
    handles = {id(root): root for root in roots if root.dtype == tf.resource}.values()
    written = [use.inputs[1] for handle in handles for use in handle.consumers() if use.type.startswith("Assign")]
    lacking = [op for op in all_operations(place.inside) if _lacks_gradient(op)]
    if place.reason:
        return
    if place.api in PASSING:
        place.reason = "it watches the gradient, which passes unchanged"
    elif place.api in RECOMPUTING:
        place.reason = "it recomputes the gradients of what is inside, which has rows of its own"
    elif place.api.startswith("linear."):
        place.reason = "its solver stops at a tolerance, which numeric differentiation sees"
    elif any(handle is None for _, handle in place.handles):
        place.reason = "it reads a resource that is made inside the model"
    elif any(_root(t).dtype != tf.resource for t, _ in _before(written, sources)[1]):
        place.reason = "its value goes through a variable that it writes"
    elif lacking:
        place.reason = f"TensorFlow has no gradient of its op '{lacking[0].name}' ({lacking[0].type})"


def _before(ends: Sequence[Any], sources: list[Any]) -> tuple[list[Any], list[tuple[Any, int]]]:
    """The ops that these tensors need, in order, up to tensors of these sources; and these, with their numbers."""
    ordered: list[Any] = []
    found: dict[int, tuple[Any, int]] = {}
    seen: set[int] = set()
    waiting = [(tensor, False) for tensor in ends]
    while waiting:
        tensor, is_ready = waiting.pop()
        if is_ready:
            ordered.append(tensor.op)
        elif id(tensor) not in found and id(tensor.op) not in seen:
            source = source_of(tensor)
            if source in sources:
                found[id(tensor)] = tensor, sources.index(source)
                continue
            seen.add(id(tensor.op))
            waiting += [(tensor, True), *((t, False) for t in tensor.op.inputs)]
    return ordered, list(found.values())


def _lacks_gradient(op: Any) -> bool:
    # TensorFlow takes what a Python function returns for a constant.
    lacks = op.type in ("PyFunc", "PyFuncStateless") or tf_internal.lacks_gradient(op)
    return lacks and any(has_numbers(t.dtype) for t in op.outputs)


def _eager_handle(tensor: Any) -> Any:
    """The handle of a variable that stands behind a tensor of a function; None if there is none."""
    while not isinstance(tensor, tf_internal.EagerTensor):
        outside = [out for out, inside in getattr(tensor.graph, "captures", []) if inside is tensor]
        if tensor.op.type != "Identity" and not outside:
            return None
        tensor = outside[0] if outside else tensor.op.inputs[0]
    return tensor
