"""The gradient of one place against numeric differentiation of what it computes, at the numbers of a recorded run."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import slices, tf_internal
from tf_cg_ops._src.rewrite import control_flow
from tf_cg_ops._src.rewrite.graph_copy import GraphCopy
from tf_cg_ops._src.rewrite.traced_call import trace

from . import _hints
from ._audit_record import Place, Run, is_place, is_variable, read_of, source_of
from ._flat_function import Arrays, FlatFunction, to_double_precision, to_tensors
from ._numeric import Estimate, norm, typical_size
from ._references import RandomNumbers, numeric_gradients
from ._report import Comparison, Reference, Tolerances, compare_with_reference

_DOUBLE = {tf.half: tf.float64, tf.bfloat16: tf.float64, tf.float32: tf.float64, tf.complex64: tf.complex128}
_DOUBLE_NUMBERS = {low.as_datatype_enum: double.as_datatype_enum for low, double in _DOUBLE.items()}
# Relative to each element: one step with which smooth functions are exact to many digits in double precision, and one
# that shows in single precision.
_STEP, _STEP_IN_LOW_PRECISION = 1e-3, 0.1
# The rounding of half precision, and its smallest step, in which gradients underflow.
_HALF, _SMALLEST_HALF = 1e-3, 6e-8
# The rule computes in the dtypes of the model: the relative tolerance, and the rounding.
_PRECISION = {
    tf.float64: (1e-6, 2.3e-16),
    tf.float32: (1e-3, 1.2e-7),
    tf.half: (3e-2, _HALF),
    tf.bfloat16: (3e-2, 8e-3),
}
_RTOL_IN_LOW_PRECISION = 3e-2
_LEAST_UPSTREAM = 1e-30
# An error may be so much of the tolerance at the largest element, for small elements of the same input.
_SHARED_TOLERANCE = 1e-2
# Roundings of the value that may show in the gradient, as in 1 - tanh(x)**2 where tanh is nearly 1.
_ROUNDINGS = 4
# Of a numeric derivative, relative to its terms.
_MAX_UNCERTAINTY = 1e-2
# The end of the name of an input that was compared for another upstream gradient than that of the run.
OTHER_UPSTREAM = ", for random upstream gradients"
# Evaluations for one element or direction, and for the two directions that are tried.
_PER_ELEMENT, _PER_ARGUMENT = 6, 12


@dataclasses.dataclass(frozen=True)
class _PlaceFunction(FlatFunction):
    """What a place computes, with the gradient of its rule at the recorded numbers."""

    rule: Callable[[Sequence[tf.Tensor]], list[Any]] = lambda _: []

    def gradients(self, tensors: Sequence[tf.Tensor], upstream: Sequence[tf.Tensor]) -> tuple[list, list, list]:
        outputs, others = self.call(tensors)
        return outputs, others, self.rule(upstream)


@dataclasses.dataclass(frozen=True)
class Findings:
    """What one run of a place shows.

    Attributes:
      value_norm, upstream_norm, gradient_norm: Of all results, of what arrived, and of what left.
      comparisons: One for each input that has a gradient; none if the place cannot be checked.
      uncertain: The names of inputs whose numeric derivative is uncertain everywhere.
      without_gradient: The names of inputs that the value depends on, and that the rule has no gradient for.
      together: How many elements were only moved together, in a random direction.
      lost: The names of inputs whose gradient is as small as the rounding of the dtype.
      is_held: Whether the gradient is right if the results of `tf.stop_gradient` are constant, and only then.
    """

    value_norm: float
    upstream_norm: float
    gradient_norm: float
    comparisons: list[Comparison] = dataclasses.field(default_factory=list)
    uncertain: list[str] = dataclasses.field(default_factory=list)
    without_gradient: list[str] = dataclasses.field(default_factory=list)
    together: int = 0
    lost: list[str] = dataclasses.field(default_factory=list)
    is_held: bool = False

    @property
    def passed(self) -> bool:
        """Whether nothing that was compared differs."""
        return all(comparison.passed for comparison in self.comparisons)


def check(place: Place, run: Run, like: Callable[..., Any] | None, max_elements: int) -> Findings:
    """Compares the gradient at the numbers of one run, for its upstream gradient and for a random one."""
    arguments = _Arguments(place, run)
    upstream = [to_double_precision(tf.constant(dy)) for dy in run.upstream[: arguments.num_float_results]]
    results = arguments.results()
    value_norm, upstream_norm = _norm(results), _norm(upstream)
    if place.reason:
        return Findings(value_norm, upstream_norm, place.gradient_norm)
    rule = arguments.rule()
    gradients = rule(to_tensors(upstream))
    norms = value_norm, upstream_norm, _norm([np.asarray(g) for g in gradients if g is not None])
    arguments.keep([g is not None for g in gradients])
    if not arguments.leaves or not np.isfinite(value_norm):
        return Findings(*norms, [], [], arguments.without_gradient)

    def checked(function: FlatFunction, intended: FlatFunction) -> Findings:
        intended = dataclasses.replace(intended, step=arguments.step())
        checker = _Checker(function, intended, results, *arguments.precision(), max_elements)
        comparisons = checker.compare_twice(upstream)
        together = sum(checker.together.values())
        return Findings(*norms, comparisons, checker.uncertain, arguments.without_gradient, together, checker.lost)

    function = arguments.function(rule)
    if like is not None:
        return checked(function, dataclasses.replace(function, call=arguments.call_of(like)))
    found = checked(function, function)
    if not found.passed and any(op.type == "StopGradient" for op in place.inside):
        function = arguments.function(rule, holds=True)
        held = checked(function, function)
        return dataclasses.replace(held, is_held=True) if held.passed else found
    return found


@dataclasses.dataclass
class _Checker:
    """Compares the rule of a place with numeric differentiation.

    Attributes:
      results: The values of the place in the run.
      rtol, rounding: The relative tolerance and the rounding of the dtype that the rule computes in.
      uncertain: The names of inputs that could not be compared.
      lost: The names of inputs whose gradient is as small as the rounding of the dtype.
      together: For each input, the number of elements that were moved together.
    """

    function: FlatFunction
    intended: FlatFunction
    results: Arrays
    rtol: float
    rounding: float
    max_elements: int
    uncertain: list[str] = dataclasses.field(default_factory=list)
    together: dict[str, int] = dataclasses.field(default_factory=dict)
    lost: list[str] = dataclasses.field(default_factory=list)

    def compare_twice(self, upstream: Arrays) -> list[Comparison]:
        """The comparisons for the upstream gradient of the run, and for a random one if they find nothing."""
        # Of a smaller upstream gradient the products underflow.
        least = _LEAST_UPSTREAM if self.rounding > _PRECISION[tf.float64][1] else 0.0
        comparisons = self.compare(upstream) if least < _norm(upstream) < np.inf else []
        if not all(comparison.passed for comparison in comparisons):
            return comparisons
        # Zeros in the upstream hide errors, and so does an output that is small beside another one.
        numbers = RandomNumbers(0)
        others = [numbers.draw_like(dy) / typical_size(y) for dy, y in zip(upstream, self.results, strict=True)]
        renamed = [dataclasses.replace(c, name=f"{c.name}{OTHER_UPSTREAM}") for c in self.compare(others)]
        return [*comparisons, *(c for c in renamed if not (c.passed and comparisons))]

    def compare(self, upstream: Arrays) -> list[Comparison]:
        """The comparisons for one upstream gradient."""
        values = self.function.values
        # Two upstream gradients are tried.
        elements = max(0, (3 * self.max_elements // (2 * len(values)) - _PER_ARGUMENT) // _PER_ELEMENT)
        comparisons: list[Comparison] = []
        gradients = [np.asarray(g) for g in self.function.gradients(to_tensors(values), to_tensors(upstream))[2]]
        for most in (0, elements) if any(x.size > self.max_elements for x in values) else (elements,):
            references = numeric_gradients(self.intended, upstream, RandomNumbers(0), most)
            pairs = zip(references, gradients, strict=True)
            references = [self._in_the_precision(_certain(r, g), upstream) for r, g in pairs]
            comparisons = []
            for i, (reference, gradient) in enumerate(zip(references, gradients, strict=True)):
                if reference.direction is not None:
                    self.together[reference.name] = gradient.size - reference.elements.size
                elif gradient.size and not reference.elements.size:
                    self.uncertain.append(reference.name)
                    continue
                compared = compare_with_reference(
                    reference,
                    gradient,
                    reference.dtype,
                    Tolerances(self.rtol, 0.0),
                    nonfinite_may_agree=False,
                    mode="audit",
                    order="first",
                )
                if not compared.passed and compared.error <= self._rounding_of_gradient(upstream):
                    self.lost.append(reference.name)
                    continue
                if not compared.passed and reference.elements.size:
                    hint = self._hint(references, i, gradient, upstream)
                    compared = dataclasses.replace(compared, hint=hint)
                comparisons.append(compared)
            if all(comparison.passed for comparison in comparisons):
                break  # Only the hints need elements.
        return comparisons

    def _rounding_of_gradient(self, upstream: Arrays) -> float:
        """An error that comes from numbers of size 1 in the rule, such as 1 - sigmoid(x), or from an underflow."""
        largest = max((float(np.max(np.abs(dy), initial=0.0)) for dy in upstream), default=0.0)
        return max(_ROUNDINGS * self.rounding * largest, _SMALLEST_HALF if self.rounding == _HALF else 0.0)

    def _in_the_precision(self, reference: Reference, upstream: Arrays) -> Reference:
        """The reference, whose terms have at least the size that the rounding of the model's dtype gives them."""
        noise = _norm([dy * y for dy, y in zip(upstream, self.results, strict=True)]) * self.rounding * _ROUNDINGS
        x = self.function.values[self.function.names.index(reference.name)]
        terms = np.maximum(reference.estimate.scale, np.abs(reference.estimate.value))
        largest = np.max(terms, initial=0.0, where=np.isfinite(terms))
        least = max(noise / typical_size(x) / self.rtol, _SHARED_TOLERANCE * largest)
        estimate = dataclasses.replace(reference.estimate, scale=np.maximum(terms, least))
        along = reference.directional_derivative
        if along is not None:
            scale = np.maximum(np.maximum(along.scale, np.abs(along.value)), noise / self.rtol)
            along = dataclasses.replace(along, scale=scale)
        return dataclasses.replace(reference, estimate=estimate, directional_derivative=along)

    def _hint(self, references: list[Reference], i: int, gradient: np.ndarray, upstream: Arrays) -> str:
        with np.errstate(all="ignore"):
            found = _hints.hint_from_numbers(references[i], references, gradient, is_trusted=True)
            found = found or _hints.hint_from_ratio(references[i], gradient)
            if found or self.rtol > _PRECISION[tf.float32][0]:
                return found
            return _hints.hint_from_upstreams(self.function, self.intended, upstream, i, references[i], gradient)


def _certain(reference: Reference, gradient: np.ndarray) -> Reference:
    """The elements whose numeric derivative is known: at a kink it is not."""
    direction, derivative = reference.direction, reference.directional_derivative
    if derivative is not None and not np.all(_is_certain(derivative, gradient)):
        direction = derivative = None
    known = _is_certain(reference.estimate, gradient)
    parts = (part[known] for part in dataclasses.astuple(reference.estimate))
    return dataclasses.replace(
        reference,
        elements=reference.elements[known],
        estimate=Estimate(*parts),
        direction=direction,
        directional_derivative=derivative,
    )


def _is_certain(estimate: Estimate, gradient: np.ndarray) -> np.ndarray:
    # Where nothing changes, the derivative is zero, unless the step is too small to change anything.
    is_constant = estimate.scale <= estimate.rounding
    is_zero = estimate.rounding <= _MAX_UNCERTAINTY * np.max(np.abs(gradient), initial=0.0)
    return np.where(is_constant, is_zero | ~np.any(gradient), estimate.error <= _MAX_UNCERTAINTY * estimate.scale)


def _norm(arrays: Sequence[np.ndarray]) -> float:
    return float(norm(np.concatenate([np.abs(array).ravel() for array in arrays]))) if arrays else 0.0


class _Arguments:
    """The numbers of a run, as the arguments of the function of a place.

    Attributes:
      leaves: What is differentiated by: for each, the inputs that are the same tensor or variable.
      without_gradient: The names of leaves that the value depends on, and that the rule has no gradient for.
      num_float_results: How many results have gradients.
    """

    def __init__(self, place: Place, run: Run) -> None:
        self._place = place
        recorded = iter(run.payload)
        self._payload = [None if i in place.handles else next(recorded) for i in range(len(place.payload))]
        captures = place.new_op.get_attr("Tcaptures") if place.new_op.type == "CustomGradientRule" else []
        self._offset = len(place.new_op.inputs) - len(place.inputs) - len(captures)
        by_source: dict[Any, list[int]] = {}
        for i, tensor in enumerate(place.inputs):
            if self._value(i) is not None:
                by_source.setdefault(source_of(tensor), []).append(i)
        self.leaves = list(by_source.values())
        self._sources = list(by_source)
        self.without_gradient: list[str] = []
        self.num_float_results = sum(map(tf_internal.is_trainable, place.results))
        self._is_low_precision = False

    def results(self) -> Arrays:
        """The values that have gradients."""
        values = zip(self._place.results, self._payload, strict=False)
        return [to_double_precision(tf.constant(x)) for t, x in values if tf_internal.is_trainable(t)]

    def precision(self) -> tuple[float, float]:
        """The relative tolerance and the rounding of the lowest dtype that the place computes in."""
        limits = [_PRECISION[dtype.real_dtype] for dtype in self._place.dtypes]
        rtol, rounding = max(limits, default=_PRECISION[tf.float64])
        return max(rtol, _RTOL_IN_LOW_PRECISION * self._is_low_precision), rounding

    def step(self) -> float:
        """The step of numeric differentiation, relative to each element."""
        return _STEP_IN_LOW_PRECISION if self._is_low_precision else _STEP

    def keep(self, has_gradient: Sequence[bool]) -> None:
        """Keeps the leaves that the rule has a gradient for."""
        for i, has in enumerate(has_gradient):
            if not has and self._sources[i] in self._place.reached:
                self.without_gradient.append(self._name(i))
        kept = [i for i, has in enumerate(has_gradient) if has]
        self._kept = kept
        self.leaves, self._sources = [self.leaves[i] for i in kept], [self._sources[i] for i in kept]

    def _name(self, leaf: int) -> str:
        return "input " + " and ".join(map(str, self.leaves[leaf]))

    def _value(self, i: int) -> np.ndarray | None:
        """The number of an input; of a variable, its value. None if it has no derivative."""
        position = self._offset + i
        if position in self._place.handles:
            handle = self._place.handles[position]
            if handle is None or self._place.inputs[i].dtype == tf.variant:
                return None
            try:
                dtype = tf_internal.shape_and_dtype(handle)[1]
            except ValueError:  # Such as a hash table.
                return None
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
            return value.numpy() if tf_internal.is_trainable(value) else None
        value = self._payload[position]
        return value if value is not None and tf_internal.is_trainable(tf.as_dtype(value.dtype)) else None

    def function(self, rule: Callable[[Sequence[tf.Tensor]], list[Any]], holds: bool = False) -> _PlaceFunction:
        """What the place computes, with its rule. If it `holds`, the results of `tf.stop_gradient` are not moved."""
        place = self._place
        values = [to_double_precision(tf.constant(self._value(leaf[0]))) for leaf in self.leaves]
        finite = [np.isfinite(x) for x in values]
        moved = {id(t): leaf for t, source in place.siblings for leaf, s in enumerate(self._sources) if s == source}
        # What is not moved: values, and handles of variables.
        given: list[tuple[Any, tf.Tensor]] = []
        handles: list[tuple[Any, Any]] = []
        start = len(place.new_op.inputs)
        by_source = {source_of(t): self._offset + i for i, t in enumerate(place.inputs)}
        fixed = [(t, by_source[source]) for t, source in place.siblings if id(t) not in moved]
        for tensor, position in [*fixed, *((t, start + i) for i, t in enumerate(place.boundary))]:
            handle = place.handles.get(position)
            if handle is None:
                given.append((tensor, _in_double(tf.constant(self._payload[position]))))
            elif tensor.dtype == tf.resource:
                handles.append((tensor, handle))
            else:  # It was read.
                value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tensor.dtype.base_dtype)
                given.append((tensor, _in_double(value)))

        stopped = [op.outputs[0] for op in place.inside if holds and op.type == "StopGradient"]

        def copy_at(leaves: Sequence[tf.Tensor], rest: Sequence[tf.Tensor], held: Mapping[int, Any]) -> GraphCopy:
            stand_ins: list[tuple[Any, Any]] = list(zip((t for t, _ in given), rest, strict=True))
            stand_ins += handles
            reads: dict[int, tf.Tensor] = {}
            tokens: list[Any] = []
            for tensor, _ in place.siblings:
                if id(tensor) in moved:
                    leaf = leaves[moved[id(tensor)]]
                    if tensor.dtype == tf.resource:
                        tokens.append(tf_internal.graph_placeholder(tf.resource, []))
                        reads[id(tokens[-1])] = leaf
                    stand_ins.append((tensor, tokens[-1] if tensor.dtype == tf.resource else leaf))

            def replace(copy: GraphCopy, op: Any, inputs: list[Any]) -> Sequence[Any] | None:
                if op.outputs and id(op.outputs[0]) in held:
                    return [held[id(op.outputs[0])]]
                if inputs and id(inputs[0]) in reads:
                    return [read_of(op, reads[id(inputs[0])], inputs[1:])]
                if is_place(op):
                    return [_in_double(t) for t in inputs[: len(op.outputs)]]  # Its value.
                return self._double_op(copy, op, inputs)

            return GraphCopy(stand_ins, replace, pure=True)

        def flat_function(*tensors: tf.Tensor) -> list[tf.Tensor]:
            leaves, rest = list(tensors[: len(values)]), tensors[len(values) :]
            for i, mask in enumerate(finite):
                if not np.all(mask):  # Such as the -inf of a mask.
                    leaves[i] = tf.where(mask, leaves[i], values[i])
            still = copy_at([*map(tf.constant, values)], rest, {}).tensors(stopped)
            copy = copy_at(leaves, rest, dict(zip(map(id, stopped), still, strict=True)))
            results = [t for t in place.results if tf_internal.is_trainable(t)]
            return [tf.identity(_in_double(t)) for t in copy.tensors(results)]

        arguments = [*map(tf.constant, values), *(x for _, x in given)]
        value = trace(flat_function, [tf.TensorSpec(t.shape, t.dtype) for t in arguments])
        rest = arguments[len(values) :]

        def call(tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            return tf_internal.call_trace(value, *tensors, *rest), []

        def gradients(upstream: Sequence[tf.Tensor]) -> list[Any]:
            found = rule(upstream)
            return [tf.where(mask, found[i], 0) for i, mask in zip(self._kept, finite, strict=True)]

        names = [self._name(i) for i in range(len(self.leaves))]
        still = [np.where(mask, x, 0) for mask, x in zip(finite, values, strict=True)]
        return _PlaceFunction(names, still, call, self.step(), rule=gradients)

    def call_of(
        self, like: Callable[..., Any]
    ) -> Callable[[Sequence[tf.Tensor]], tuple[list[tf.Tensor], list[tf.Tensor]]]:
        """The function whose gradient is intended, of all inputs that are not variables."""
        place = self._place
        given = {
            i: tf.constant(self._payload[self._offset + i]) for i, t in enumerate(place.inputs) if not is_variable(t)
        }

        def call_in(dtypes: str, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            moved = {i: tensor for leaf, tensor in zip(self.leaves, tensors, strict=True) for i in leaf}
            if dtypes == "double":
                inputs = [moved.get(i, _in_double(x)) for i, x in given.items()]
            else:
                inputs = [tf.cast(moved[i], x.dtype) if i in moved else x for i, x in given.items()]
            return [_in_double(tf.convert_to_tensor(y)) for y in tf.nest.flatten(like(*inputs))]

        dtypes = "double"
        try:
            call_in(dtypes, [_in_double(tf.constant(self._value(leaf[0]))) for leaf in self.leaves])
        except (TypeError, tf.errors.InvalidArgumentError):  # It reads numbers of the model, in their dtypes.
            dtypes, self._is_low_precision = "own", True
        return lambda tensors: (call_in(dtypes, tensors), [])

    def _double_op(self, copy: GraphCopy, op: Any, inputs: list[Any]) -> Sequence[Any] | None:
        """The outputs of an op in double precision; where the op has none, in its own and cast."""
        if op.type in control_flow.TYPES:
            return None
        if op.type == "Const":
            value = tf.constant(tf.make_ndarray(op.get_attr("value")))
            return [_in_double(value)]
        new = _DoubleOp(op)
        if new.is_possible and all(t.dtype.base_dtype == d for t, d in zip(inputs, new.input_dtypes, strict=True)):
            return copy.copy_op(new, inputs)
        wanted = [old.dtype.base_dtype for old in op.inputs]
        is_lossy = any(t.dtype.base_dtype != dtype for t, dtype in zip(inputs, wanted, strict=True))
        self._is_low_precision |= is_lossy
        cast = [t if t.dtype.base_dtype == d else tf.cast(t, d) for t, d in zip(inputs, wanted, strict=True)]
        return [_in_double(t) for t in copy.copy_op(op, cast)]

    def rule(self) -> Callable[[Sequence[tf.Tensor]], list[Any]]:
        """The gradient of each leaf by the rule, which computes in the dtypes of the model; None for none."""
        new_op, handles = self._place.new_op, self._place.handles
        known = [x for x in self._payload[: len(new_op.inputs)] if x is not None]
        outputs = [i for i, t in enumerate(new_op.outputs) if tf_internal.is_trainable(t)]
        has_gradient: list[bool] = []
        leaves = list(self.leaves)

        def flat_function(*tensors: tf.Tensor) -> list[tf.Tensor]:
            recorded, dys = iter(tensors[: len(known)]), iter(tensors[len(known) :])
            graph = tf.compat.v1.get_default_graph()
            inputs = [handles[i] if i in handles else next(recorded) for i in range(len(new_op.inputs))]
            copies = GraphCopy([]).copy_op(new_op, [tf_internal.capture(graph, t) for t in inputs])
            upstream = [next(dys) if i in outputs else None for i in range(len(copies))]
            op = copies[0].op
            gradients = tf_internal.find_gradient_function(op)(op, *upstream)
            wanted = []
            for leaf in leaves:
                parts = [slices.to_dense(gradients[self._offset + i]) for i in leaf]
                parts = [tf.convert_to_tensor(part) for part in parts if part is not None]
                wanted.append(tf.add_n(parts) if parts else None)
            has_gradient[:] = [gradient is not None for gradient in wanted]
            return [gradient for gradient in wanted if gradient is not None]

        tensors = [tf.constant(x) for x in known]
        specs = [tf.TensorSpec(t.shape, t.dtype) for t in tensors]
        traced = trace(flat_function, [*specs, *(tf.TensorSpec(None, new_op.outputs[i].dtype) for i in outputs)])

        def gradients(upstream: Sequence[tf.Tensor]) -> list[Any]:
            given = [tf.cast(dy, new_op.outputs[i].dtype) for dy, i in zip(upstream, outputs, strict=False)]
            rest = [tf.zeros_like(self._payload[i]) for i in outputs[len(given) :]]
            found = iter(tf_internal.call_trace(traced, *tensors, *given, *rest))
            return [_in_double(next(found)) if has else None for has in has_gradient]

        return gradients


def _in_double(tensor: Any) -> Any:
    double = _DOUBLE.get(tensor.dtype.base_dtype)
    return tensor if double is None else tf.cast(tensor, double)


class _DoubleOp:
    """An op with the attributes of the same op in double precision."""

    def __init__(self, op: Any) -> None:
        self._op = op
        self.node_def = type(op.node_def).FromString(op.node_def.SerializeToString())
        definition = op.op_def
        self.is_possible = True
        for attribute in definition.attr:
            value = self.node_def.attr[attribute.name]
            allowed = attribute.allowed_values.list.type
            if attribute.type == "type" and value.type in _DOUBLE_NUMBERS:
                value.type = _DOUBLE_NUMBERS[value.type]
                self.is_possible &= not allowed or value.type in allowed
            elif attribute.type == "list(type)":
                value.list.type[:] = [_DOUBLE_NUMBERS.get(number, number) for number in value.list.type]
                self.is_possible &= not allowed or all(number in allowed for number in value.list.type)
        self.input_dtypes = list(self._dtypes(definition)) if self.is_possible else []

    def _dtypes(self, definition: Any) -> Any:
        for argument in definition.input_arg:
            attributes = self.node_def.attr
            if argument.type_list_attr:
                yield from map(tf.as_dtype, attributes[argument.type_list_attr].list.type)
            else:
                number = attributes[argument.type_attr].type if argument.type_attr else argument.type
                count = attributes[argument.number_attr].i if argument.number_attr else 1
                yield from [tf.as_dtype(number)] * count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)
