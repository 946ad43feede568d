"""A gradient rule as a function of the graph: `grad_fn`, traced together with the value.

It is for everything that does not have the Python closure: a loaded model, an imported graph, a batch of
tf.vectorized_map, a C program.
"""

import contextlib
import dataclasses
import functools
import itertools
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tapes, text, tf_internal
from tf_cg_ops._src.custom_gradient import unused_outputs, variable_reads
from tf_cg_ops._src.custom_gradient.captures import RuleGraph
from tf_cg_ops._src.custom_gradient.wording import Wording

# A decorated call inside a rule has its own rule, for the next derivative. If a function calls itself in its rule,
# tracing needs a limit to end, and each order multiplies the number of rules. Most models are saved for inference or
# for training, which needs one order.
_SAVED_ORDERS = 1

_serial = itertools.count()

_num_rules: weakref.WeakKeyDictionary[tf.Graph, int] = weakref.WeakKeyDictionary()


class _DerivativeState(threading.local):
    """The derivative that this thread computes or traces."""

    order = 0  # 0 for a value.
    saved_orders = 0  # The user's choice; 0 for the default.
    is_late = False  # Whether a rule is traced that was not traced with its op.
    num_values = 0  # How many functions with a rule are computing their values.


_now = _DerivativeState()

Conversion = Callable[[Any], Callable[..., list[Any]] | None]

# Python code never calls a rule.
_NO_TYPE = tf_internal.FunctionType([])


@dataclasses.dataclass(frozen=True)
class TracedRule:
    """The function, which takes upstream gradients and captures, and the gradients that it returns."""

    function: Any
    captures: list[tf.Tensor]
    results: list[int]  # The positions of the results that have an upstream gradient.
    inputs: list[int]  # The positions of the inputs that have a gradient.
    sliced_inputs: list[int]  # The positions of the inputs whose gradient consists of slices.
    error: str = ""  # The message if the rule is missing.
    exception: Exception | None = None  # The exception of `grad_fn` while it was traced.
    variables: Sequence[int] = ()  # The positions of captured handles whose values the function gets.


def current_order() -> int:
    """The order of the derivative that is being computed or traced; 0 for a value."""
    return _now.order


def computing_value(saved_orders: int | None) -> contextlib.AbstractContextManager[None]:
    """A scope in which a function with a rule computes its value.

    The first derivative is the rule's. So the rule of a function that is called here only serves the second derivative,
    if the outer rule reads its value.
    """
    return _state(num_values=_now.num_values + 1, saved_orders=max(saved_orders or 0, _now.saved_orders))


def computing_derivative(order: int, saved_orders: int = 0) -> contextlib.AbstractContextManager[None]:
    """A scope in which a derivative of this order is computed or traced."""
    return _state(order=order, saved_orders=saved_orders)


def next_order(order: int) -> contextlib.AbstractContextManager[None]:
    """A scope, wherever it is, in which the rule of an op is traced that belongs to a derivative of this order."""
    return _state(order=order, saved_orders=order + 1, num_values=0, is_late=True)


@contextlib.contextmanager
def _state(**state: int) -> Iterator[None]:
    before = {name: getattr(_now, name) for name in state}
    vars(_now).update(state)
    try:
        yield
    finally:
        vars(_now).update(before)


def trace_rule(
    wording: Wording,
    name: str,
    results: list[tf.Tensor],
    backward: Callable[[list[Any]], Sequence[Any]],
    conversion: Conversion,
    saved_orders: int | None = None,
) -> TracedRule:
    """Traces the rule of the function `name`. Never fails: the error comes when you compute a gradient.

    `conversion` gives a function like a traced graph, without ops of `tf.custom_gradient`, or None if it has none.
    """
    saved_orders = max(saved_orders or 0, _now.saved_orders)
    order = current_order() + _now.num_values + 1
    if order > (saved_orders or _SAVED_ORDERS):
        return without_rule(wording.message(wording.no_rule, name, order=order))
    try:
        with computing_derivative(current_order() + 1, saved_orders):
            return _trace(name, results, backward, conversion)
    except Exception as exception:
        error = text.in_one_line(exception)
        # The traceback would keep the traced graphs alive.
        return without_rule(wording.message(wording.not_traced, name, error=error), exception.with_traceback(None))


def in_forward_mode(inputs: Sequence[tf.Tensor]) -> bool:
    """Whether an accumulator watches one of the inputs."""
    return bool(tf_internal.pack_tangents(list(inputs)).tangents)


def zeros_like(result: tf.Tensor) -> tf.Tensor:
    """Zeros for a result without an upstream gradient, such as an integer. Reads only its shape."""
    shape, dtype = tf_internal.shape_and_dtype(result)
    return tf.zeros(shape if shape.is_fully_defined() else tf.shape(result), dtype)


def without_rule(error: str, exception: Exception | None = None) -> TracedRule:
    """Stands for a missing rule."""
    return TracedRule(_empty_function(), [], [], [], [], error, exception)


@functools.cache
def _empty_function() -> Any:
    """A rule without gradients, since the attribute of the op must name a function."""
    with tf.init_scope():
        name = "custom_gradient_without_rule"
        return _function_of(name, _graph_of(name, lambda: [], []))


def _trace(
    name: str, results: list[tf.Tensor], backward: Callable[[list[Any]], Sequence[Any]], conversion: Conversion
) -> TracedRule:
    differentiated = [i for i, result in enumerate(results) if tf_internal.is_trainable(result)]
    positions: list[int] = []
    sliced: list[int] = []

    seed = _next_seed(tf.compat.v1.get_default_graph())

    def rule(*upstream: tf.Tensor) -> list[tf.Tensor]:
        tf.compat.v1.get_default_graph().seed = seed
        upstream_of = dict(zip(differentiated, map(unused_outputs.mark, upstream), strict=True))
        dys = [upstream_of[i] if i in upstream_of else zeros_like(result) for i, result in enumerate(results)]
        gradients = []
        for position, gradient in enumerate(backward(dys)):
            if gradient is None:
                continue
            positions.append(position)
            if isinstance(gradient, tf.IndexedSlices):
                sliced.append(position)
                # Always 64 bits, so that the op does not need an attribute for the dtype.
                indices, dense_shape = (tf.cast(t, tf.int64) for t in (gradient.indices, gradient.dense_shape))
                gradients += [gradient.values, indices, dense_shape]
            else:
                gradients.append(tf.convert_to_tensor(gradient))
        return gradients

    specs = [tf.TensorSpec(*tf_internal.shape_and_dtype(results[i])) for i in differentiated]
    # An imported graph can hold rules of another process with the same names.
    prefix, graph = re.sub(r"\W", "_", name, flags=re.ASCII), tf.compat.v1.get_default_graph()
    names = (f"custom_gradient_rule_of_{prefix}_{number}" for number in _serial)
    name = next(name for name in names if tf_internal.find_function(graph, name) is None)
    traced = _graph_of(name, rule, specs)
    converted = conversion(traced)
    function = _function_of(name, traced if converted is None else _graph_of(name, converted, specs))
    captures = list(function.graph.external_captures)
    function, variables = variable_reads.take_values(function, captures, len(differentiated))
    return TracedRule(function, captures, differentiated, positions, sliced, variables=variables)


def _function_of(name: str, graph: Any) -> Any:
    return tf_internal.from_func_graph(name, graph, {}, function_type=_NO_TYPE)


def _graph_of(name: str, function: Callable[..., list[tf.Tensor]], specs: list[tf.TensorSpec]) -> Any:
    """Traces a function; unlike TensorFlow, it skips the control dependencies if no op is stateful."""
    graph = RuleGraph(name)
    apart = tapes.recording_apart() if _now.is_late else contextlib.nullcontext()
    # A function can be traced in a tf.init_scope, in which the tapes of the rule would not record.
    with graph.as_default(), tf_internal.resume_recording(), apart as graph.is_traced_in:
        order = tf_internal.AutomaticControlDependencies()
        order.__enter__()
        parameters = [tf_internal.graph_placeholder(spec.dtype, spec.shape, "upstream") for spec in specs]
        graph.inputs = list(parameters)
        outputs = function(*parameters)
        if any(tf_internal.op_def_registry.get(op.type).is_stateful for op in graph.get_operations()):
            outputs = [order.mark_as_return(output) for output in outputs]
            order.__exit__(None, None, None)
        else:
            outputs = [graph.capture(output) for output in outputs]
            placeholders = {id(t) for t in (*parameters, *graph.internal_captures)}  # Functions cannot return these.
            outputs = [tf.identity(output) if id(output) in placeholders else output for output in outputs]
        graph.outputs.extend(outputs)
        graph.inputs = parameters + graph.internal_captures
    graph.control_outputs.extend(order.ops_which_must_run)
    return graph


def _next_seed(graph: tf.Graph) -> int | None:
    """A seed for the next rule. Each graph counts its draws from 0, so with one seed all rules would draw the same."""
    _num_rules[graph] = _num_rules.get(graph, 0) + 1
    return None if graph.seed is None else (graph.seed + _num_rules[graph] * 1_000_003) % (2**31 - 1)
