"""The gradient of one place against TensorFlow's own gradient of the ops inside, on the values of a recorded run.

They are compared in double precision, for two upstream gradients. Where they differ, or TensorFlow's is not finite,
numeric differentiation along a direction decides.
"""

import copy
import dataclasses
import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import calls, slices, text, tf_internal
from tf_cg_ops._src.graphs import control_flow
from tf_cg_ops._src.graphs.graph_copy import GraphCopy
from tf_cg_ops._src.rewrite import built_functions
from tf_cg_ops._src.rewrite.traced_call import trace

from . import _hints
from ._audit_record import API, Place, Run, all_operations, are_finite, draws, is_place
from ._flat_function import Arrays, FlatFunction, to_double_precision
from ._numeric import Estimate, NumericDerivatives, norm, typical_size
from ._references import RandomNumbers
from ._report import exact_reference

# The relative errors that pass, and the part of the error at the largest element that passes at small ones.
_TOLERANCE = 1e-4, 1e-2
# If constants, such as 0.1, are rounded to these dtypes.
_ROUNDED_CONSTANTS = {tf.half: (3e-3, 1.0), tf.bfloat16: (3e-2, 1.0)}
# A solver stops at its tolerance, which numeric differentiation sees.
_SOLVERS = frozenset(["implicit_root", "implicit_fixed_point", "implicit_minimum"])
_TOLERANCE_OF_SOLVERS = 0.1, 1.0
# A numeric derivative is known if its error is at most this part of its terms. At a kink it is larger.
_KNOWN = 1e-2
# How many elements are moved one by one where the direction of all tells nothing, as at a kink.
_MAX_ELEMENTS = 16
# From this relative error on, the rounding of the model's dtypes is mentioned.
_MENTIONED_ROUNDING = 0.05
_OTHERS_ARE_WRONG = "It is right for the upstream gradient of this run, and wrong for a random one."

_DOUBLE = {tf.half: tf.float64, tf.bfloat16: tf.float64, tf.float32: tf.float64, tf.complex64: tf.complex128}
_DOUBLE_NUMBERS = {low.as_datatype_enum: double.as_datatype_enum for low, double in _DOUBLE.items()}

State = Literal["right", "unknown", "wrong"]
STATES = ("right", "unknown", "wrong")
_Gradients = list[np.ndarray | None]


@dataclasses.dataclass
class Findings:
    """What one run of a place shows."""

    state: State = "right"  # Whether the gradient is the vector-Jacobian product.
    detail: str = ""  # The likely mistake, or why the state is unknown.
    norms: dict[str, Any] = dataclasses.field(default_factory=dict)  # As in `AuditedGradient`.
    remarks: list[str] = dataclasses.field(default_factory=list)  # What else the user must know.
    error: float = 0.0  # The largest error, relative to the largest that passes.

    def add(self, state: State, detail: str, error: float = 0.0) -> None:
        """Adds a finding. The worst one counts."""
        self.error = max(self.error, error)
        if STATES.index(state) > STATES.index(self.state):
            self.state, self.detail = state, detail


@dataclasses.dataclass(frozen=True)
class _Answers:
    """What the graph of a place gives for an upstream gradient: a gradient for each leaf, None if there is none."""

    upstream: Arrays
    values: Arrays
    by_rule: _Gradients
    expected: _Gradients

    @property
    def pairs(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """For each leaf that the rule has a gradient for: its number, the gradient, and the expected one."""
        for i, (got, expected) in enumerate(zip(self.by_rule, self.expected, strict=True)):
            if got is not None:
                yield i, got, np.zeros_like(got) if expected is None else expected


def key(place: Place, run: Run) -> str | None:
    """Equal for places that compute the same from what was recorded, as the layers of a model do; None if unknown."""
    known: dict[int, str] = {}

    def digest(tensor: Any) -> str:
        if id(tensor) not in known:
            parts = [*_attributes(tensor.op), *map(digest, tensor.op.inputs)]
            whole = hashlib.sha256(repr(parts).encode()).hexdigest()
            for i, output in enumerate(tensor.op.outputs):
                known.setdefault(id(output), f"{whole}:{i}")
        return known[id(tensor)]

    others = enumerate(place.recorded[len(place.leaves) :])
    known.update({id(tensor): f"recorded {i}" for i, tensor in others})
    known.update({id(tensor): f"leaf {leaf}" for tensor, leaf in place.stand_ins})
    known.update({id(tensor): f"handle {id(handle)}" for tensor, handle in place.handles})
    try:
        for op in place.inside:  # In order, so that the recursion is not deep.
            list(map(digest, op.outputs))
        tensors = [None if t is None else digest(t) for t in (*place.results, *place.needed)]
        rule = _attributes(place.new_op)
    except built_functions.NotSharedError:
        return None
    shapes = [(x.shape, x.dtype.name) for x in (*run.values, *run.upstream)]
    return repr((place.api, place.positions, place.leaves, place.offset, place.draws, tensors, rule, shapes))


def _attributes(op: Any) -> list[Any]:
    """The type and the attributes of an op, with the contents of the functions that it names."""
    parts = [op.type]
    for name, attribute in sorted(op.node_def.attr.items()):
        if name not in ("_class", "_output_shapes"):
            functions = calls.functions_in([attribute])
            contents = [built_functions.fingerprint_of_function(op.graph, function.name) for function in functions]
            parts += [name, contents or attribute.SerializeToString(deterministic=True)]
    return parts


class LikeError(ValueError):
    """A function in `like` does not fit."""


class Computation:
    """The graph of a place as a function of its leaves and of what else was recorded."""

    def __init__(self, place: Place, declared: str, like: Callable[..., Any] | None) -> None:
        self.place, self.like, self._declared = place, like, declared
        self._run: list[tf.Tensor] = []
        self._traces: dict[bool, Any] = {}
        self._has: dict[bool, list[list[bool]]] = {}

    def at(self, run: Run) -> "Computation":
        """The computation on the values of a run, also of another place with an equal `key`."""
        other = copy.copy(self)  # It shares what is traced.
        other._run = [tf.constant(x) for x in run.values]
        return other

    def answers(self, upstream: Arrays, double: bool) -> _Answers:
        """The values and gradients in the dtypes of the model, or in double precision."""
        dys = [tf.cast(dy, t.dtype) for dy, t in zip(upstream, self.place.results, strict=True)]
        tensors = [in_double(t) if double else t for t in (*self._run, *dys)]
        if double not in self._traces:
            compute = lambda *given: self._compute(given[: len(self._run)], given[len(self._run) :], double)  # noqa: E731
            self._traces[double] = trace(compute, [tf.TensorSpec(t.shape, t.dtype) for t in tensors])
        found = iter(map(to_double_precision, tf_internal.call_trace(self._traces[double], *tensors)))
        values = [next(found) for _ in dys]
        return _Answers(
            upstream, values, *([next(found) if has else None for has in flags] for flags in self._has[double])
        )

    @property
    def points(self) -> Arrays:
        """The values of the leaves."""
        return [to_double_precision(t) for t in self._run[: len(self.place.leaves)]]

    @property
    def function(self) -> FlatFunction:
        """The values as a function of the leaves in double precision, to differentiate it numerically."""
        tensors, count = list(map(in_double, self._run)), len(self.place.leaves)
        specs = [tf.TensorSpec(t.shape, t.dtype) for t in tensors]
        value = trace(lambda *given: self._values(self._copy(given, True), True), specs)

        def call(leaves: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            moved = [tf.cast(leaf, t.dtype) for leaf, t in zip(leaves, tensors, strict=False)]
            try:
                return tf_internal.call_trace(value, *moved, *tensors[count:])
            except tf.errors.OpError:  # Outside of the domain.
                return [tf.fill(y.shape, tf.cast(math.nan, y.dtype)) for y in value.outputs]

        return FlatFunction(self.place.names, [to_double_precision(t) for t in tensors[:count]], call, None)

    @property
    def tolerance(self) -> tuple[float, float]:
        """The relative error that passes, and its part for small elements."""
        if self.place.api in _SOLVERS:
            return _TOLERANCE_OF_SOLVERS
        constants = [op for op in all_operations(self._traces[False].graph.get_operations()) if op.type == "Const"]
        return max([_ROUNDED_CONSTANTS[op.outputs[0].dtype] for op in constants if _is_rounded(op)], default=_TOLERANCE)

    @property
    def what_draws(self) -> str:
        """What draws random numbers: "value", "rule" or an empty string."""
        if self.place.draws:
            return "value"
        return "rule" if any(map(draws, self._traces[False].graph.get_operations())) else ""

    def _copy(self, tensors: Sequence[tf.Tensor], double: bool) -> GraphCopy:
        """A copy of the ops inside, for these values of what was recorded."""
        place, graph = self.place, tf.compat.v1.get_default_graph()
        handles = [(t, tf_internal.capture(graph, handle)) for t, handle in place.handles]
        by_id = {id(t): handle for t, handle in handles}
        read = {id(by_id[id(t)]): tensors[leaf] for t, leaf in place.stand_ins if id(t) in by_id}

        def replace(copy: GraphCopy, op: Any, inputs: list[Any]) -> Sequence[Any] | None:
            if inputs and id(inputs[0]) in read:
                return [_read(op, read[id(inputs[0])], inputs[1:])]
            if op.type.startswith("CheckNumerics"):
                return inputs
            if double:
                return _in_double_precision(copy, op, inputs)
            return None

        stand_ins = [(t, tensors[leaf]) for t, leaf in place.stand_ins if id(t) not in by_id]
        others = zip(place.recorded[len(place.leaves) :], tensors[len(place.leaves) :], strict=False)
        return GraphCopy([*handles, *stand_ins, *others], replace, pure=True)

    def _values(self, copy: GraphCopy, double: bool) -> list[tf.Tensor]:
        values = copy.tensors(self.place.results)
        if self.like is not None:
            given = copy.tensors([t for t in self.place.inputs if t.dtype != tf.resource])
            values = [tf.convert_to_tensor(y) for y in tf.nest.flatten(self.like(*given))]
            got, expected = [y.shape for y in values], [y.shape for y in self.place.results]
            if len(got) != len(expected) or not all(map(tf.TensorShape.is_compatible_with, got, expected)):
                raise LikeError(
                    f"{API}: like[{self._declared!r}] must return the shapes of the value, "
                    f"{[shape.as_list() for shape in expected]}, got {[shape.as_list() for shape in got]}."
                )
        return [tf.identity(in_double(y) if double else y) for y in values]

    def _compute(self, tensors: Sequence[tf.Tensor], dys: Sequence[tf.Tensor], double: bool) -> list[tf.Tensor]:
        """The values, the gradients by the rule, and the expected ones. Notes which gradients there are."""
        place, copy = self.place, self._copy(tensors, double)
        values, recorded = self._values(copy, double), iter(tensors[len(place.recorded) :])
        needed = [next(recorded) if t is None else copy.tensors([t])[0] for t in place.needed]
        graph, leaves = tf_internal.FuncGraph("rule"), list(tensors[: len(place.leaves)])
        with graph.as_default():
            inputs = [tf_internal.graph_placeholder(t.dtype, t.shape) for t in place.new_op.inputs]
            op = GraphCopy([]).copy_op(place.new_op, inputs)[0].op
            upstream = [tf_internal.graph_placeholder(t.dtype, t.shape) for t in op.outputs]
            found = [slices.to_dense(g) for g in tf_internal.find_gradient_function(op)(op, *upstream)]
            every = [*place.leaves, *place.dependent]
            parts = [[g for i in leaf if (g := found[place.offset + i]) is not None] for leaf in every]
            gradients = [tf.add_n(group) if group else None for group in parts]
        given = dict(zip(place.positions, dys, strict=True))
        # An argument that tf.custom_gradient returns beside the results has no upstream gradient.
        outer = [given[i] if i in given else tf.zeros_like(needed[i]) for i in range(len(upstream))]
        stand_ins = [*zip([*inputs, *upstream], [*needed, *outer], strict=True)]
        stand_ins += [(inside, outside) for outside, inside in graph.captures]
        rule = GraphCopy(stand_ins, _in_double_precision if double else None, pure=True)
        by_rule = [None if g is None else rule.tensors([g])[0] for g in gradients]
        if place.dependent:
            xs = copy.tensors([place.inputs[leaf[0]] for leaf in place.dependent])
            pairs = [(x, g) for x, g in zip(xs, by_rule[len(leaves) :], strict=True) if g is not None]
            passed = tf.gradients([x for x, _ in pairs], leaves, [g for _, g in pairs]) if pairs else []
            groups = [filter(tf.is_tensor, group) for group in itertools.zip_longest(by_rule[: len(leaves)], passed)]
            by_rule = [tf.add_n(group) if (group := [*map(slices.to_dense, each)]) else None for each in groups]
        expected: list[Any] = [None] * len(leaves)
        if not place.reason:
            expected = [slices.to_dense(g) for g in tf.gradients(values, leaves, list(dys))]
        self._has[double] = [[g is not None for g in group] for group in (by_rule, expected)]
        return [*values, *(tf.convert_to_tensor(g) for g in (*by_rule, *expected) if g is not None)]


def _read(op: Any, value: tf.Tensor, others: Sequence[tf.Tensor]) -> tf.Tensor:
    """What an op that reads a variable returns, if the variable has this value."""
    if op.type == "ResourceGather":
        return tf.gather(value, others[0], batch_dims=op.get_attr("batch_dims"))
    return tf.gather_nd(value, others[0]) if op.type == "ResourceGatherNd" else value


def in_double(tensor: Any) -> Any:
    """A floating-point or complex tensor in double precision; others as they are."""
    double = _DOUBLE.get(tensor.dtype.base_dtype)
    return tensor if double is None else tf.cast(tensor, double)


def _in_double_precision(copy: GraphCopy, op: Any, inputs: list[Any]) -> Sequence[Any] | None:
    """The outputs of an op in double precision; of an op that has none, computed in its own and cast."""
    if op.type in control_flow.TYPES:
        return None
    if is_place(op):
        return [in_double(t) for t in inputs[: len(op.outputs)]]  # Its value.
    if op.type == "Const":
        return [in_double(tf.constant(tf.make_ndarray(op.get_attr("value"))))]
    # Python functions and variables have their dtypes, and Bitcast another value in another dtype.
    if "PyFunc" not in op.type and op.type != "Bitcast" and all(t.dtype != tf.resource for t in inputs):
        try:
            return copy.copy_op(_DoubleOp(op), inputs)
        except (TypeError, ValueError):
            pass  # TensorFlow has no such op.
    cast = [t if t.dtype == old.dtype else tf.cast(t, old.dtype) for t, old in zip(inputs, op.inputs, strict=True)]
    return [in_double(t) for t in copy.copy_op(op, cast)]


class _DoubleOp:
    """An op with the attributes of the same op in double precision."""

    def __init__(self, op: Any) -> None:
        self._op = op
        self.node_def = type(op.node_def).FromString(op.node_def.SerializeToString())
        for attribute in self.node_def.attr.values():
            if attribute.WhichOneof("value") == "type":
                attribute.type = _DOUBLE_NUMBERS.get(attribute.type, attribute.type)
            elif attribute.WhichOneof("value") == "list":
                attribute.list.type[:] = [_DOUBLE_NUMBERS.get(number, number) for number in attribute.list.type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)


def _is_rounded(constant: Any) -> bool:
    """Whether a constant was rounded to half precision. Whole numbers, and such as 0.5 and 0.75, are exact."""
    if constant.outputs[0].dtype not in _ROUNDED_CONSTANTS:
        return False
    value = tf.make_ndarray(constant.get_attr("value")).astype(np.float64)
    return bool(np.any((value % 1 != 0) & (4 * np.frexp(value)[0] % 1 != 0)))


@np.errstate(all="ignore")  # What is not finite is noticed.
def check(place: Place, run: Run, computation: Computation) -> Findings:
    """Compares the gradient on the values of one run, for its upstream gradient and for a random one."""
    arrived = [to_double_precision(dy) for dy in run.upstream]
    found, computation = Findings(norms={"upstream_norm": _norm(arrived)}), computation.at(run)
    try:
        own = computation.answers(arrived, double=False)
        found.norms |= {"value_norm": _norm(own.values), "gradient_norm": _norm(own.by_rule)}
        if not place.reason:
            _check(computation, own, found)
    except LikeError:
        raise
    except Exception as error:  # For example, TensorFlow's gradient of an op does not take its attributes.
        found.add("unknown", f"computing it again fails: {text.in_one_line(error)}")
    if place.reason:
        found.state, found.detail = "unknown", place.reason
    index = next(i for i, each in enumerate(place.runs) if each is run)

    def check_other(other: Place) -> Findings:
        return check(other, other.runs[index], Computation(other, computation._declared, computation.like))

    if found.state == "wrong" and place.whole:  # What the rule does not give to one input it can give to another.
        whole = check_other(place.whole)
        if whole.state != "wrong":
            found.state, found.detail, found.error = whole.state, whole.detail, whole.error
            found.remarks.append("Some inputs are functions of others, so this is about their gradients as a whole.")
    for case, other in place.alone.items() if found.state == "right" else ():
        alone = Findings("wrong", other.reason) if other.new_op is None else check_other(other)
        if alone.state == "wrong":
            found.add("wrong", f"If {case}: {alone.detail}", alone.error)
    return found


def _check(computation: Computation, own: _Answers, found: Findings) -> None:
    """Compares in double precision, and lets numeric differentiation decide where the gradients differ.

    The answers in the dtypes of the model, `own`, must be finite.
    """
    names = computation.place.names
    pairs = list(zip(names, own.by_rule, own.expected, strict=True))
    missing = " and ".join(name for name, got, g in pairs if got is None and g is not None and np.any(g))
    # Such as a matrix, if the value is computed from its Cholesky factor.
    unused = " and ".join(name for name, got, g in pairs if got is not None and np.any(got) and g is None)
    if missing:
        unused = f", and a gradient for {unused}, on which it does not" if unused else ""
        found.remarks.append(f"The rule returns None for {missing}, on which the value depends{unused}.")
    if all(got is None for got in own.by_rule):
        return found.add("unknown", "its rule returns no gradient")
    random, what = computation.answers(_random_upstream(own), double=True), ""
    if not all(np.all(~np.isnan(y)) for y in random.values):
        return found.add("unknown", "its value is not finite")
    compared = [random]
    if are_finite(own.upstream) and any(map(np.any, own.upstream)):
        # An infinite value, such as the -inf of a mask, has no derivative.
        dys = [np.where(np.isfinite(y), dy, 0) for dy, y in zip(own.upstream, random.values, strict=True)]
        compared.insert(0, computation.answers(dys, double=True))
        found.remarks += _rounding(own, compared[0])
    if not are_finite(own.upstream):  # A nan from above hides that the rule makes one of its own.
        own, what = computation.answers(random.upstream, double=False), " for a random upstream gradient"
        found.remarks += _rounding(own, random)
    if not are_finite([got for _, got, _ in own.pairs]):
        found.add("wrong", f"The gradient is not finite{what}.", math.inf)
    for k, answers in enumerate(compared):
        was_right = k and found.state == "right"
        for leaf in _differences(computation, answers):
            if found.state != "wrong":
                found.add(*_decide(computation, answers, *leaf))
        if was_right and found.state == "wrong":
            found.detail = f"{found.detail} {_OTHERS_ARE_WRONG}"
    return None


def _differences(computation: Computation, answers: _Answers) -> Iterator[tuple[int, Any, Any, Any]]:
    """As `answers.pairs`, the leaves whose gradients differ, each with a mask of where they do."""
    rtol, shared = computation.tolerance
    is_constant = computation.like is not None or any(op.type == "StopGradient" for op in computation.place.inside)
    for i, got, expected in answers.pairs:
        size = np.abs(expected)
        allowed = rtol * (size + shared * np.max(size, initial=0.0, where=np.isfinite(size)))
        # TensorFlow's gradient through a comparison is zero.
        is_zero = not (np.any(got) or np.any(expected) or is_constant)
        mask = (is_zero | ~(np.abs(got - expected) <= allowed)) & np.isfinite(computation.points[i])
        if np.any(mask):
            yield i, got, expected, mask


def _random_upstream(answers: _Answers) -> Arrays:
    random = RandomNumbers(0)
    finite = [np.isfinite(y) for y in answers.values]
    # Zeros in the upstream hide errors, and so does an output that is small beside another one.
    sizes = [typical_size(y[m]) for y, m in zip(answers.values, finite, strict=True)]
    drawn = [random.draw_like(y) * (min(sizes) / size) for y, size in zip(answers.values, sizes, strict=True)]
    return [np.where(m, dy, 0) for m, dy in zip(finite, drawn, strict=True)]


def _decide(
    computation: Computation, answers: _Answers, i: int, got: np.ndarray, own: np.ndarray, mask: np.ndarray
) -> tuple[State, str, float]:
    """Whether the rule is right where it differs from TensorFlow's gradient: a state, a detail and the error."""
    name, gaps = computation.place.names[i], np.nan_to_num(np.abs(got - own), nan=np.inf)
    mistake = _mistake(computation.place.names, answers, i, got, np.where(mask, gaps, -1))
    if computation.what_draws:
        return "unknown", f"its {computation.what_draws} draws random numbers; at a fixed seed: {mistake}", 0.0
    if not are_finite([got[mask]]):
        return "wrong", "The gradient is not finite.", math.inf
    if computation.like is not None:
        return "wrong", mistake, math.inf
    function = computation.function
    numeric, rtol = NumericDerivatives(function, answers.upstream), computation.tolerance[0]
    # A function of symmetric matrices, such as `eigh`, can read one triangle, where its rule is symmetric.
    reads_one = own.ndim > 1 and not (np.triu(own, 1).any() and np.tril(own, -1).any())
    is_symmetric = reads_one and _is_symmetric(function.values[i]) and _is_symmetric(got)
    still = np.where(np.isfinite(function.values[i]), function.values[i], 0)
    for direction in _directions(still, np.where(mask, gaps, -1)):
        if is_symmetric:
            direction = direction + _transposed(direction)
        (estimate,) = numeric.directional_derivative(i, [direction])
        error, error_of_own = (_error_along(g, direction, estimate, rtol) for g in (got, own))
        if error > 1:
            along = f"{name}, along a random direction: {_got(_along(got, direction), float(estimate.value))}"
            return "wrong", mistake if error_of_own <= 1 else along, error
        # Where both seem right, the numeric derivative is not exact enough to tell them apart.
        if not math.isnan(error) and (is_symmetric or not error_of_own <= 1 or np.array_equal(got, own)):
            others = RandomNumbers(2).draw_direction(still, 1.0) * ~mask
            (estimate,) = numeric.directional_derivative(i, [others])
            if error_of_own > 1 and _error_along(got, others, estimate, rtol) > 1:
                along = f"{name}, where TensorFlow's gradient is the same and wrong"
                return "wrong", f"{along}: {_got(_along(got, others), float(estimate.value))}", math.inf
            return "right", "", error
    return "unknown", f"the numeric derivative by {name} is uncertain: there may be a kink", 0.0


def _directions(x: np.ndarray, gaps: np.ndarray) -> Iterator[np.ndarray]:
    """Directions of the elements at which the gradients differ, and then of those alone at which they differ most."""
    random, mask = RandomNumbers(1), gaps >= 0  # Not the numbers of the upstream gradient.
    yield random.draw_direction(x, 1.0) * mask
    yield random.draw_direction(x, 0.0) * mask  # A small element can be near the end of the domain.
    for element in np.argsort(-gaps, axis=None)[: min(_MAX_ELEMENTS, np.count_nonzero(mask))]:
        yield random.draw_direction(x, 1.0) * (np.arange(x.size) == element).reshape(x.shape)


def _transposed(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x, -1, -2).conj()


def _is_symmetric(x: np.ndarray) -> bool:
    is_square = x.ndim > 1 and x.shape[-1] == x.shape[-2]
    return is_square and np.allclose(x, _transposed(x), rtol=1e-5, atol=1e-6 * np.max(np.abs(x), initial=0.0))


def _error_along(gradient: np.ndarray, direction: np.ndarray, estimate: Estimate, rtol: float) -> float:
    """The error relative to the largest that passes; nan if the numeric derivative is not known."""
    terms = max(float(estimate.scale), float(norm(np.where(direction == 0, 0, gradient * direction))))
    if not estimate.error <= _KNOWN * terms and estimate.scale != 0:
        return math.nan
    difference = abs(_along(gradient, direction) - estimate.value)
    return float(difference / (rtol * terms + estimate.error)) if difference != 0 else 0.0


def _along(gradient: np.ndarray, direction: np.ndarray) -> float:
    return float(np.sum(np.real(np.conj(np.where(direction == 0, 0, gradient)) * direction)))


def _mistake(names: Sequence[str], answers: _Answers, i: int, got: np.ndarray, gaps: np.ndarray) -> str:
    """The likely mistake in the gradient of a leaf, or the element with the largest difference."""
    references = {k: exact_reference(names[k], own, own.dtype, "") for k, _, own in answers.pairs}
    hint = _hints.hint_from_numbers(references[i], list(references.values()), got, is_trusted=True)
    hint = hint or _hints.hint_from_ratio(references[i], got)
    if hint:
        return hint
    worst, count = int(np.argmax(gaps)), int(np.count_nonzero(gaps >= 0))
    index, expected = [int(k) for k in np.unravel_index(worst, got.shape)], references[i].estimate.value[worst]
    text = f"{names[i]}{f' at {index}' if index else ''}: {_got(got.ravel()[worst], expected)}"
    return f"{text} {count:,} of {got.size:,} elements differ." if count > 1 else text


def _got(got: complex, expected: complex) -> str:
    return f"got {got:.6g}, expected {expected:.6g}."


def _rounding(own: _Answers, exact: _Answers) -> list[str]:
    """A remark if the gradient in the model's dtypes is far from the one in double precision."""
    pairs = [(got, precise) for got, precise in zip(own.by_rule, exact.by_rule, strict=True) if got is not None]
    error, size = _norm([got - precise for got, precise in pairs]), _norm([precise for _, precise in pairs])
    if error <= _MENTIONED_ROUNDING * size or not size < math.inf:
        return []
    if not math.isfinite(error):
        return ["In float64 it is finite."]
    return [f"Rounding changes it by {100 * error / size:.0f} %." if size else "In float64 it is zero."]


def _norm(arrays: Sequence[np.ndarray | None]) -> float:
    parts = [np.abs(array).ravel() for array in arrays if array is not None]
    return float(norm(np.concatenate(parts))) if parts else 0.0
