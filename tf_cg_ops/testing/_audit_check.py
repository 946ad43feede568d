"""The gradient of one place against numeric differentiation of what it computes, at the numbers of a recorded run."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import slices, tf_internal
from tf_cg_ops._src.rewrite import control_flow
from tf_cg_ops._src.rewrite.graph_copy import GraphCopy
from tf_cg_ops._src.rewrite.traced_call import trace

from ._audit_record import Place, Run, handle_of, is_place, num_results
from ._compare_modes import ModeComparisons
from ._flat_function import Arrays, FlatFunction, to_double_precision, to_tensors
from ._numeric import Estimate, norm
from ._references import RandomNumbers, numeric_gradients
from ._report import Comparison, Reference, Tolerances

_DOUBLE = {tf.half: tf.float64, tf.bfloat16: tf.float64, tf.float32: tf.float64, tf.complex64: tf.complex128}
_DOUBLE_NUMBERS = {low.as_datatype_enum: double.as_datatype_enum for low, double in _DOUBLE.items()}
# Relative to each element: one step with which smooth functions are exact to many digits in double precision, and one
# that shows in single precision.
_STEP, _STEP_IN_LOW_PRECISION = 1e-3, 0.1
# The model computes the gradient in its own dtype: tolerances relative to its terms, and for numbers that underflow.
_LIMITS = {tf.float64: (1e-6, 0.0), tf.complex128: (1e-6, 0.0), tf.float32: (1e-3, 1e-36), tf.complex64: (1e-3, 1e-36)}
_LIMITS_OF_HALF, _RTOL_IN_LOW_PRECISION = (3e-2, 1e-6), 3e-2
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
      comparisons: One for each input that has a gradient; none if inputs or results are infinite or nan.
      uncertain: The names of inputs whose numeric derivative is uncertain everywhere.
      together: How many elements were only moved together, in a random direction.
      value_norm, upstream_norm, gradient_norm: Of all results, of what arrived, and of what left.
    """

    comparisons: list[Comparison]
    uncertain: list[str]
    together: int
    value_norm: float
    upstream_norm: float
    gradient_norm: float


def check(place: Place, run: Run, like: Callable[..., Any] | None, max_elements: int) -> Findings:
    """Compares the gradient at the numbers of one run. An upstream gradient of zeros, or nan, is replaced by others."""
    arguments = _Arguments(place, run)
    function = arguments.function()
    upstream = [to_double_precision(tf.constant(dy)) for dy in run.upstream[: arguments.num_float_results]]
    gradients = [np.asarray(g) for g in function.rule(to_tensors(upstream)) if g is not None]
    norms = [_norm(arrays) for arrays in (function.outputs(function.values), upstream, gradients)]
    if not arguments.positions or not all(np.all(np.isfinite(x)) for x in function.values) or not np.isfinite(norms[0]):
        return Findings([], [], 0, *norms)
    numbers = RandomNumbers(0)
    others = [numbers.draw_like(dy) for dy in upstream]
    function = dataclasses.replace(function, step=_STEP_IN_LOW_PRECISION if arguments.is_low_precision else _STEP)
    intended = function if like is None else dataclasses.replace(function, call=_call_of(like))
    limits = [_LIMITS.get(tensor.dtype, _LIMITS_OF_HALF) for tensor in arguments.tensors]
    rtol = max(_RTOL_IN_LOW_PRECISION if arguments.is_low_precision else 0.0, *(rtol for rtol, _ in limits))
    tolerances = Tolerances(rtol, max(atol for _, atol in limits))
    uncertain: list[str] = []
    together: dict[str, int] = {}
    compared = functools.partial(_compare, function, intended, tolerances, max_elements, uncertain, together)
    comparisons = compared(upstream) if 0 < norms[1] < np.inf else []
    if all(comparison.passed for comparison in comparisons):
        # Zeros in the upstream hide errors.
        renamed = [dataclasses.replace(c, name=f"{c.name}{OTHER_UPSTREAM}") for c in compared(others)]
        comparisons = [*comparisons, *(c for c in renamed if not (c.passed and comparisons))]
    return Findings(comparisons, uncertain, sum(together.values()), *norms)


def _compare(
    function: FlatFunction,
    intended: FlatFunction,
    tolerances: Tolerances,
    max_elements: int,
    uncertain: list[str],
    together: dict[str, int],
    upstream: Arrays,
) -> list[Comparison]:
    """The comparisons for one upstream gradient; adds the inputs for which there are none, and the elements."""
    numbers = RandomNumbers(0)
    # Two upstream gradients are tried.
    elements = max(0, (3 * max_elements // (2 * len(function.values)) - _PER_ARGUMENT) // _PER_ELEMENT)
    comparisons: list[Comparison] = []
    unknown: list[str] = []
    for most in (0, elements) if any(x.size > max_elements for x in function.values) else (elements,):
        found = ModeComparisons(["eager"], tolerances, True)
        references = [_certain(reference) for reference in numeric_gradients(intended, upstream, numbers, most)]
        found.compare_gradients("first", function, intended, upstream, references, numbers)
        unknown = [r.name for r in references if math.prod(r.shape) and not r.elements.size and r.direction is None]
        moved = [r for r in references if r.direction is not None]
        together.update({r.name: math.prod(r.shape) - r.elements.size for r in moved})
        comparisons = [c for c in found.comparisons if c.order == "first" and c.name not in unknown]
        if all(comparison.passed for comparison in comparisons) and not unknown:
            break  # Only the hints need elements.
    uncertain += unknown
    return comparisons


def _certain(reference: Reference) -> Reference:
    """The elements whose numeric derivative is known: at a kink it is not."""
    direction, derivative = reference.direction, reference.directional_derivative
    if derivative is not None and not np.all(_is_certain(derivative)):
        direction = derivative = None
    known = _is_certain(reference.estimate)
    parts = (part[known] for part in dataclasses.astuple(reference.estimate))
    return dataclasses.replace(
        reference,
        elements=reference.elements[known],
        estimate=Estimate(*parts),
        direction=direction,
        directional_derivative=derivative,
    )


def _is_certain(estimate: Estimate) -> np.ndarray:
    is_constant = estimate.scale <= estimate.rounding
    return is_constant | ~(estimate.error > _MAX_UNCERTAINTY * estimate.scale)


def _norm(arrays: Sequence[np.ndarray]) -> float:
    return float(norm(np.concatenate([np.abs(array).ravel() for array in arrays]))) if arrays else 0.0


def _call_of(like: Callable[..., Any]) -> Callable[[Sequence[tf.Tensor]], tuple[list[tf.Tensor], list[tf.Tensor]]]:
    return lambda tensors: (tf.nest.flatten(like(*tensors)), [])


class _Arguments:
    """The numbers of a run, as the arguments of the function of a place.

    Attributes:
      positions: The inputs of the place that are differentiated by.
      is_low_precision: Whether an op inside computes in less than double precision.
    """

    def __init__(self, place: Place, run: Run) -> None:
        self._place = place
        recorded = iter(run.payload)
        self._payload = [None if i in place.handles else next(recorded) for i in range(len(place.payload))]
        captures = place.new_op.get_attr("Tcaptures") if place.kind != "embed_gradient" else []
        self._offset = len(place.new_op.inputs) - len(place.inputs) - len(captures)
        trainable = [i for i in range(len(place.inputs)) if self._value(i) is not None]
        differentiated = set(range(len(place.new_op.inputs)))
        if place.kind != "embed_gradient":
            first = num_results(place.new_op)
            differentiated = {first + i for i in place.new_op.get_attr("differentiated_inputs")}
        self.positions = [i for i in trainable if self._offset + i in differentiated]
        self.tensors = [tf.constant(self._value(i)) for i in self.positions]
        self.num_float_results = sum(map(tf_internal.is_trainable, place.results))
        self.is_low_precision = False

    def _value(self, i: int) -> np.ndarray | None:
        """The number of an input; of a variable, its value. None if it has no derivative."""
        position = self._offset + i
        if position in self._place.handles:
            handle = self._place.handles[position]
            try:
                dtype = tf_internal.shape_and_dtype(handle)[1]
            except ValueError:
                return None
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).numpy()
        value = self._payload[position]
        return value if value is not None and tf_internal.is_trainable(tf.as_dtype(value.dtype)) else None

    def function(self) -> _PlaceFunction:
        """What the place computes, with its rule."""
        place = self._place
        names = [f"input {i}" for i in self.positions]
        values = [to_double_precision(tensor) for tensor in self.tensors]
        # What is not moved, by the tensor of the old graph.
        fixed = [(t, self._payload[self._offset + i]) for i, t in enumerate(place.inputs) if i not in self.positions]
        start = len(place.new_op.inputs)
        fixed += list(zip(place.boundary, self._payload[start:], strict=True))
        fixed = [(t, x if x is None else _in_double(tf.constant(x))) for t, x in fixed]
        given = [(t, x) for t, x in fixed if x is not None]
        handles = {id(t): place.handles[start + i] for i, t in enumerate(place.boundary) if start + i in place.handles}

        def flat_function(*tensors: tf.Tensor) -> list[tf.Tensor]:
            leaves, rest = tensors[: len(values)], tensors[len(values) :]
            stand_ins: list[tuple[Any, Any]] = list(zip((t for t, _ in given), rest, strict=True))
            stand_ins += [(t, handles[id(t)]) for t, x in fixed if x is None and id(t) in handles]
            reads: dict[int, tf.Tensor] = {}
            for i, leaf in zip(self.positions, leaves, strict=True):
                source = place.inputs[i]
                if source.dtype != tf.resource:
                    stand_ins.append((source, leaf))
                handle = handle_of(source)
                if handle is not None:
                    token = tf_internal.graph_placeholder(tf.resource, [])
                    reads[id(token)] = leaf
                    stand_ins.append((handle, token))
                    of_graph = place.op.graph.get_operations()
                    stand_ins += [(op.outputs[0], leaf) for op in of_graph if _reads(op, handle)]

            def replace(copy: GraphCopy, op: Any, inputs: list[Any]) -> Sequence[Any] | None:
                if op.type == "ReadVariableOp" and id(inputs[0]) in reads:
                    return [reads[id(inputs[0])]]
                if is_place(op):
                    return [_in_double(t) for t in inputs[: len(op.outputs)]]  # Its value.
                return self._double_op(copy, op, inputs)

            copy = GraphCopy(stand_ins, replace, pure=True)
            results = [t for t in place.results if tf_internal.is_trainable(t)]
            return [tf.identity(_in_double(t)) for t in copy.tensors(results)]

        arguments = [*map(tf.constant, values), *(x for _, x in given)]
        value = trace(flat_function, [tf.TensorSpec(t.shape, t.dtype) for t in arguments])
        rest = arguments[len(values) :]

        def call(tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            return tf_internal.call_trace(value, *tensors, *rest), []

        return _PlaceFunction(names, values, call, None, rule=self._rule())

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
        self.is_low_precision |= is_lossy
        cast = [t if t.dtype.base_dtype == d else tf.cast(t, d) for t, d in zip(inputs, wanted, strict=True)]
        return [_in_double(t) for t in copy.copy_op(op, cast)]

    def _rule(self) -> Callable[[Sequence[tf.Tensor]], list[Any]]:
        """The gradient of the rule, in the dtypes of the model."""
        new_op, handles = self._place.new_op, self._place.handles
        known = [x for x in self._payload[: len(new_op.inputs)] if x is not None]
        dtypes = [t.dtype for t in new_op.outputs if tf_internal.is_trainable(t)]
        has_gradient: list[bool] = []

        def flat_function(*tensors: tf.Tensor) -> list[tf.Tensor]:
            recorded, dys = iter(tensors[: len(known)]), iter(tensors[len(known) :])
            inputs = [handles[i] if i in handles else next(recorded) for i in range(len(new_op.inputs))]
            graph = tf.compat.v1.get_default_graph()
            inputs = [tf_internal.capture(graph, t) for t in inputs]
            outputs = GraphCopy([]).copy_op(new_op, inputs)
            upstream = [next(dys) if tf_internal.is_trainable(t) else None for t in outputs]
            op = outputs[0].op
            gradients = tf_internal.find_gradient_function(op)(op, *upstream)
            wanted = [slices.to_dense(gradients[self._offset + i]) for i in self.positions]
            has_gradient[:] = [g is not None for g in wanted]
            return [tf.convert_to_tensor(g) for g in wanted if g is not None]

        tensors = [tf.constant(x) for x in known]
        dys = [t for t in new_op.outputs if tf_internal.is_trainable(t)]
        specs = [tf.TensorSpec(t.shape, t.dtype) for t in tensors] + [tf.TensorSpec(None, t.dtype) for t in dys]
        rule = trace(flat_function, specs)

        def gradients(upstream: Sequence[tf.Tensor]) -> list[Any]:
            given = [tf.cast(dy, dtype) for dy, dtype in zip(upstream, dtypes, strict=False)]
            rest = [tf.zeros_like(self._payload[i]) for i in range(len(given), len(dtypes))]
            found = iter(tf_internal.call_trace(rule, *tensors, *given, *rest))
            return [_in_double(next(found)) if has else None for has in has_gradient]

        return gradients


def _reads(op: Any, handle: Any) -> bool:
    return op.type == "ReadVariableOp" and op.inputs[0] is handle


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
