"""Computes one place of a recorded run again, in double precision: its value and its gradients."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import slices, tf_internal
from tf_cg_ops._src.rewrite import control_flow
from tf_cg_ops._src.rewrite.graph_copy import GraphCopy
from tf_cg_ops._src.rewrite.traced_call import trace

from ._audit_record import Place, Run, draws, is_place, is_variable, read_of, source_of
from ._flat_function import Arrays, FlatFunction, to_double_precision, to_tensors

_DOUBLE = {tf.half: tf.float64, tf.bfloat16: tf.float64, tf.float32: tf.float64, tf.complex64: tf.complex128}
_DOUBLE_NUMBERS = {low.as_datatype_enum: double.as_datatype_enum for low, double in _DOUBLE.items()}

Gradients = list[np.ndarray | None]


@dataclasses.dataclass(frozen=True)
class PlaceFunction(FlatFunction):
    """A function of the inputs of a place, with the gradient of its rule at the recorded numbers."""

    rule: Callable[[Arrays], Arrays] = lambda _: []

    def gradients(self, tensors: Sequence[tf.Tensor], upstream: Sequence[tf.Tensor]) -> tuple[list, list, list]:
        outputs, others = self.call(tensors)
        found = self.rule([np.asarray(dy) for dy in upstream])
        return outputs, others, to_tensors(found)


class Replay:
    """A place at the numbers of one run.

    Attributes:
      names: The inputs that are differentiated. Inputs that are the same tensor or variable count as one.
      values: Their values, in double precision.
      finite: For each, where it is finite. Other elements, such as the -inf of a mask, stay as they are.
      results: The values of the place in the run that have gradients.
      without_gradient: The names of inputs that the value depends on, and that the rule has no gradient for.
      rounded_constants: The dtypes of constants that were rounded to half precision, such as 0.1.
      low_in_value, low_in_rule: The lower dtypes that the copies compute in, because an op or a residual has no other.
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
        self._leaves, self._sources = list(by_source.values()), list(by_source)
        results = zip(place.results, self._payload, strict=False)
        self.results = [to_double_precision(tf.constant(x)) for t, x in results if tf_internal.is_trainable(t)]
        self.without_gradient: list[str] = []
        self.low_in_value: set[tf.DType] = set()
        self.low_in_rule = set(place.rounded) & set(_DOUBLE)
        self.rounded_constants: set[tf.DType] = set()
        self._set_values()

    def _set_values(self) -> None:
        self.names = ["input " + " and ".join(map(str, leaf)) for leaf in self._leaves]
        self.values = [to_double_precision(tf.constant(self._value(leaf[0]))) for leaf in self._leaves]
        self.finite = [np.isfinite(x) for x in self.values]

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

    def rule(self, upstream: Arrays) -> Gradients:
        """The gradient of the rule by each input, in the dtypes of the model."""
        tensors = [tf.constant(x) for x in self._known]
        found = iter(tf_internal.call_trace(self._rule, *tensors, *self._upstream(upstream)))
        return [to_double_precision(next(found)) if has else None for has in self._has_gradient]

    def draws(self) -> bool:
        """Whether the rule draws random numbers, other ones each time."""
        return any(map(draws, _all_operations(self._rule.graph)))

    def leave_out(self, gradients: Gradients) -> None:
        """Leaves out the inputs that the rule has no gradient for."""
        pairs = list(zip(self.names, self._sources, gradients, strict=True))
        self.without_gradient = [name for name, s, g in pairs if g is None and s in self._place.reached]
        kept = [i for i, g in enumerate(gradients) if g is not None]
        if len(kept) < len(gradients):
            self._leaves, self._sources = [self._leaves[i] for i in kept], [self._sources[i] for i in kept]
            self._set_values()
            del self._rule  # It has outputs for all inputs.

    @property
    def _known(self) -> list[np.ndarray]:
        """The recorded inputs of the op."""
        return [x for x in self._payload[: len(self._place.new_op.inputs)] if x is not None]

    @functools.cached_property
    def _float_outputs(self) -> list[int]:
        return [i for i, t in enumerate(self._place.new_op.outputs) if tf_internal.is_trainable(t)]

    def _upstream(self, upstream: Arrays) -> list[tf.Tensor]:
        """An upstream gradient for each output; zeros for the arguments of `tf.custom_gradient`."""
        op, outputs = self._place.new_op, self._float_outputs
        given = [tf.cast(dy, op.outputs[i].dtype) for dy, i in zip(upstream, outputs, strict=False)]
        return [*given, *(tf.zeros_like(self._payload[i]) for i in outputs[len(given) :])]

    @functools.cached_property
    def _rule(self) -> Any:
        """A trace of the rule, of the recorded inputs of the op and the upstream gradients."""
        new_op, handles, leaves = self._place.new_op, self._place.handles, list(self._leaves)
        outputs, offset = self._float_outputs, self._offset
        has_gradient: list[bool] = []

        def flat_function(*tensors: tf.Tensor) -> list[tf.Tensor]:
            recorded, dys = iter(tensors[: -len(outputs)]), iter(tensors[-len(outputs) :])
            graph = tf.compat.v1.get_default_graph()
            inputs = [handles[i] if i in handles else next(recorded) for i in range(len(new_op.inputs))]
            copies = GraphCopy([]).copy_op(new_op, [tf_internal.capture(graph, t) for t in inputs])
            upstream = [next(dys) if i in outputs else None for i in range(len(copies))]
            gradients = tf_internal.find_gradient_function(copies[0].op)(copies[0].op, *upstream)
            wanted = []
            for leaf in leaves:
                parts = [slices.to_dense(gradients[offset + i]) for i in leaf]
                parts = [tf.convert_to_tensor(part) for part in parts if part is not None]
                wanted.append(tf.add_n(parts) if parts else None)
            has_gradient[:] = [gradient is not None for gradient in wanted]
            return [gradient for gradient in wanted if gradient is not None]

        specs = [tf.TensorSpec(x.shape, x.dtype) for x in self._known]
        traced = trace(flat_function, [*specs, *(tf.TensorSpec(None, new_op.outputs[i].dtype) for i in outputs)])
        self._has_gradient = has_gradient
        return traced

    @functools.cached_property
    def _fixed(self) -> tuple[list[tuple[Any, tf.Tensor]], list[tuple[Any, Any]]]:
        """What the ops inside read beside the inputs: numbers in double precision, and handles of variables."""
        place, start = self._place, len(self._place.new_op.inputs)
        by_source = {source_of(t): self._offset + i for i, t in enumerate(place.inputs)}
        still = [(t, by_source[source]) for t, source in place.siblings if source not in self._sources]
        numbers: list[tuple[Any, tf.Tensor]] = []
        handles: list[tuple[Any, Any]] = []
        for tensor, position in [*still, *((t, start + i) for i, t in enumerate(place.boundary))]:
            handle = place.handles.get(position)
            if handle is None:
                numbers.append((tensor, _in_double(tf.constant(self._payload[position]))))
            elif tensor.dtype == tf.resource:
                handles.append((tensor, handle))
            else:  # It was read.
                value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tensor.dtype.base_dtype)
                numbers.append((tensor, _in_double(value)))
        return numbers, handles

    def _copy_at(self, tensors: Sequence[tf.Tensor]) -> GraphCopy:
        """A copy of the ops inside, for the values of the inputs and then the numbers of `_fixed`."""
        leaves, rest = list(tensors[: len(self.values)]), tensors[len(self.values) :]
        for i, mask in enumerate(self.finite):
            if not np.all(mask):
                leaves[i] = tf.where(mask, leaves[i], self.values[i])
        numbers, handles = self._fixed
        stand_ins: list[tuple[Any, Any]] = [*zip((t for t, _ in numbers), rest, strict=True), *handles]
        reads: dict[int, tf.Tensor] = {}
        tokens: list[Any] = []
        for tensor, source in self._place.siblings:
            if source in self._sources:
                leaf = leaves[self._sources.index(source)]
                if tensor.dtype == tf.resource:
                    tokens.append(tf_internal.graph_placeholder(tf.resource, []))
                    reads[id(tokens[-1])] = leaf
                stand_ins.append((tensor, tokens[-1] if tensor.dtype == tf.resource else leaf))

        def replace(copy: GraphCopy, op: Any, inputs: list[Any]) -> Sequence[Any] | None:
            if inputs and id(inputs[0]) in reads:
                return [read_of(op, reads[id(inputs[0])], inputs[1:])]
            return _in_double_precision(self.low_in_value, self.rounded_constants, copy, op, inputs)

        return GraphCopy(stand_ins, replace, pure=True)

    def _results_in(self, copy: GraphCopy) -> list[tf.Tensor]:
        results = [t for t in self._place.results if tf_internal.is_trainable(t)]
        return [tf.identity(_in_double(t)) for t in copy.tensors(results)]

    def _rule_in(self, copy: GraphCopy, dys: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The gradients by the rule, for results and residuals of this copy."""
        graph, place = self._rule.graph, self._place
        positions = [i for i, x in enumerate(self._payload[: len(place.new_op.inputs)]) if x is not None]
        numbers = [
            copy.tensors([place.originals[i]])[0] if i in place.originals else _in_double(tf.constant(self._payload[i]))
            for i in positions
        ]
        zeros = [_in_double(tf.zeros_like(self._payload[i])) for i in self._float_outputs[len(dys) :]]
        stand_ins: list[tuple[Any, Any]] = list(zip(graph.inputs, [*numbers, *dys, *zeros], strict=False))
        stand_ins += [(inside, _in_double(outside)) for outside, inside in graph.captures]
        in_double_precision = functools.partial(_in_double_precision, self.low_in_rule, self.rounded_constants)
        again = GraphCopy(stand_ins, in_double_precision, pure=True)
        return [_in_double(t) for t in again.tensors(graph.outputs)]

    def function(self, upstream: Arrays) -> PlaceFunction:
        """What the place computes, with its rule."""
        inputs = [*map(tf.constant, self.values), *(x for _, x in self._fixed[0])]
        specs = [tf.TensorSpec(t.shape, t.dtype) for t in inputs]
        value = trace(lambda *tensors: self._results_in(self._copy_at(tensors)), specs)
        traced_rule = trace(
            lambda *tensors: self._rule_in(self._copy_at(tensors[: len(inputs)]), tensors[len(inputs) :]),
            [*specs, *(tf.TensorSpec(dy.shape, dy.dtype) for dy in upstream)],
        )

        def rule(dys: Arrays) -> Arrays:
            found = tf_internal.call_trace(traced_rule, *inputs, *to_tensors(dys))
            return [np.where(mask, to_double_precision(g), 0) for mask, g in zip(self.finite, found, strict=True)]

        def call(tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            return tf_internal.call_trace(value, *tensors, *inputs[len(self.values) :]), []

        still = [np.where(mask, x, 0) for mask, x in zip(self.finite, self.values, strict=True)]
        return PlaceFunction(self.names, still, call, None, rule=rule)

    def intended(self, like: Callable[..., Any]) -> Callable[..., Any]:
        """The call of a function whose gradient is intended, of all inputs that are not variables."""
        place = self._place
        given = {
            i: tf.constant(self._payload[self._offset + i]) for i, t in enumerate(place.inputs) if not is_variable(t)
        }

        def call_in(dtypes: str, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            moved = {i: tensor for leaf, tensor in zip(self._leaves, tensors, strict=True) for i in leaf}
            if dtypes == "double":
                inputs = [moved.get(i, _in_double(x)) for i, x in given.items()]
            else:
                inputs = [tf.cast(moved[i], x.dtype) if i in moved else x for i, x in given.items()]
            return [_in_double(tf.convert_to_tensor(y)) for y in tf.nest.flatten(like(*inputs))]

        dtypes = "double"
        try:
            call_in(dtypes, to_tensors(self.values))
        except (TypeError, tf.errors.InvalidArgumentError):  # It reads numbers of the model, in their dtypes.
            dtypes = "own"
            self.low_in_value |= {x.dtype for x in given.values() if x.dtype in _DOUBLE}
        return lambda tensors: (call_in(dtypes, tensors), [])


def _in_double_precision(
    low: set[tf.DType], rounded_constants: set[tf.DType], copy: GraphCopy, op: Any, inputs: list[Any]
) -> Sequence[Any] | None:
    """The outputs of an op in double precision, or in its own if it has no other, which is added to `low`."""
    if is_place(op):
        return [_in_double(t) for t in inputs[: len(op.outputs)]]  # Its value.
    if op.type in control_flow.TYPES:
        return None
    if op.type.startswith("CheckNumerics"):
        return inputs
    if op.type == "Const":
        value, dtype = tf.make_ndarray(op.get_attr("value")), op.outputs[0].dtype
        if dtype in (tf.half, tf.bfloat16):
            number = value.astype(np.float64)
            # Whole numbers, and such as 0.5 and 0.75, are exact.
            if np.any((number % 1 != 0) & (4 * np.frexp(number)[0] % 1 != 0)):
                rounded_constants.add(dtype)
        return [_in_double(tf.constant(value))]
    if re.fullmatch("FusedBatchNorm(Grad)?(V2|V3)?", op.type):
        return _batch_norm(op, inputs)
    new = _DoubleOp(op)
    if new.is_possible and all(t.dtype.base_dtype == d for t, d in zip(inputs, new.input_dtypes, strict=True)):
        return copy.copy_op(new, inputs)
    wanted = [old.dtype.base_dtype for old in op.inputs]
    low |= {d for t, d in zip(inputs, wanted, strict=True) if t.dtype.base_dtype != d}
    cast = [t if t.dtype.base_dtype == d else tf.cast(t, d) for t, d in zip(inputs, wanted, strict=True)]
    return [_in_double(t) for t in copy.copy_op(op, cast)]


def _all_operations(graph: Any) -> Iterator[Any]:
    for op in graph.get_operations():
        if op.type in control_flow.TYPES:
            for function in control_flow.functions_of(op):
                yield from _all_operations(function)
        else:
            yield op


def _in_double(tensor: Any) -> Any:
    double = _DOUBLE.get(tensor.dtype.base_dtype)
    return tensor if double is None else tf.cast(tensor, double)


def _batch_norm(op: Any, inputs: list[Any]) -> list[tf.Tensor]:
    """The outputs of a fused batch normalization or its gradient, which have no double precision in TensorFlow."""
    is_gradient, x = "Grad" in op.type, inputs["Grad" in op.type]
    letters, epsilon = tf.compat.as_str(op.get_attr("data_format")), op.get_attr("epsilon")
    axes = [i for i, letter in enumerate(letters) if letter != "C"]
    scale, mean, variance = (inputs[i] for i in ((2, 3, 4) if is_gradient else (1, 3, 4)))
    if op.get_attr("is_training"):
        mean, variance = tf.nn.moments(x, axes)

    def spread(t: tf.Tensor) -> tf.Tensor:
        return tf.reshape(t, [-1 if letter == "C" else 1 for letter in letters])

    normalized = (x - spread(mean)) / tf.sqrt(spread(variance) + epsilon)
    empty = [tf.zeros([0], tf.float64)] * (len(op.outputs) - (3 if is_gradient else 5))
    if not is_gradient:
        moving = [mean, variance]
        if op.get_attr("is_training"):
            count = tf.cast(tf.size(x) / tf.size(mean), tf.float64)
            moving[1] = variance * count / tf.maximum(count - 1, 1)  # Bessel's correction.
            factor = op.get_attr("exponential_avg_factor") if "exponential_avg_factor" in op.node_def.attr else 1.0
            if factor != 1.0:
                moving = [factor * new + (1 - factor) * old for new, old in zip(moving, inputs[3:], strict=True)]
        return [normalized * spread(scale) + spread(inputs[2]), *moving, mean, variance, *empty]
    dy = inputs[0]
    dx = dy
    if op.get_attr("is_training"):
        by_normalized = tf.reduce_mean(dy * normalized, axes, keepdims=True)
        dx = dy - tf.reduce_mean(dy, axes, keepdims=True) - normalized * by_normalized
    dx *= spread(scale) / tf.sqrt(spread(variance) + epsilon)
    return [dx, tf.reduce_sum(dy * normalized, axes), tf.reduce_sum(dy, axes), *empty]


class _DoubleOp:
    """An op with the attributes of the same op in double precision."""

    def __init__(self, op: Any) -> None:
        self._op = op
        self.node_def = type(op.node_def).FromString(op.node_def.SerializeToString())
        definition = op.op_def
        # Random ops draw other numbers in another dtype.
        has_own_dtype = any(part in op.type for part in ("PyFunc", "Random", "Stateless", "Bitcast"))
        self.is_possible = not has_own_dtype and not any(t.dtype == tf.resource for t in op.inputs)
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
