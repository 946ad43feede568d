"""A gradient rule as a function of the graph: traced with the value, inlined where a gradient is asked for.

The op CustomGradientRule names the rule in an attribute, so it goes wherever the graph goes. The gradient is the body
of that function, imported into the graph at hand rather than called: then its ops are differentiated like any others.
"""

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from . import _errors, _inline, _library, _tapes, _tf_internal

# What a rule does: from one upstream gradient for each result to one gradient, or None, for each input.
Backward = Callable[[list[Any]], Sequence[Any]]

_serial = itertools.count()

_num_rules: weakref.WeakKeyDictionary[tf.Graph, int] = weakref.WeakKeyDictionary()

# Where the op keeps the user's own exception for as long as the Python process lives.
_EXCEPTION = "_tf_cg_ops_exception"


def attach(
    api: str, name: str, results: list[tf.Tensor], inputs: list[tf.Tensor], backward: Backward
) -> list[tf.Tensor]:
    """Returns the results with `backward` as their gradient with respect to the inputs."""
    graph = tf.compat.v1.get_default_graph()
    differentiated = [i for i, result in enumerate(results) if _tf_internal.is_trainable(result)]
    error, exception = "", None
    try:
        rule, captures, positions, sliced = _trace(name, results, differentiated, backward)
    except Exception as raised:  # Whatever it is, it belongs to whoever asks for a gradient.
        exception = raised
        # A function all the same: the attribute of a saved op has to name one.
        rule, captures, positions, sliced = _trace(name, results, [], lambda _: [])
        error = _errors.NO_RULE.format(api=api, function=name, error=f"{type(raised).__name__}: {raised}")
    _tf_internal.add_function(graph, rule)
    with _tf_internal.stop_recording():
        outputs = _library.custom_gradient_rule(
            results,
            inputs,
            captures,
            rule=rule.name,
            differentiated_results=differentiated,
            differentiated_inputs=positions,
            sliced_inputs=sliced,
            function_name=name,
            error=error,
        )
    op = outputs[0].op
    if exception is not None:
        setattr(op, _EXCEPTION, exception)
    # The tapes' own record of an op hashes its attributes, which forward mode cannot do with the name of a function;
    # and it speaks of what the graph captured, which a tape does not know if nothing was recorded at the time.
    given = [*results, *inputs, *captures]
    _tapes.record(op.type, outputs, given, lambda *dys: gradients(op, dys, captures))
    return list(outputs)


def _trace(
    name: str, results: list[tf.Tensor], differentiated: list[int], backward: Backward
) -> tuple[Any, list[tf.Tensor], list[int], list[int]]:
    """The rule as a function, what it captures, and the positions of the inputs with gradients, and with slices."""
    positions: list[int] = []
    sliced: list[int] = []

    seed = _next_seed(tf.compat.v1.get_default_graph())

    def rule(*upstream: tf.Tensor) -> list[tf.Tensor]:
        tf.compat.v1.get_default_graph().seed = seed
        given = dict(zip(differentiated, upstream, strict=True))
        # What has no upstream, such as an integer, gets zeros, as TensorFlow does it.
        dys = [given[i] if i in given else tf.zeros_like(result) for i, result in enumerate(results)]
        gradients = []
        for position, gradient in enumerate(backward(dys)):
            if gradient is None:
                continue
            positions.append(position)
            if isinstance(gradient, tf.IndexedSlices):
                sliced.append(position)
                # In 64 bits whatever they were, so that the op need not say it.
                positions64 = [tf.cast(t, tf.int64) for t in (gradient.indices, gradient.dense_shape)]
                gradients += [gradient.values, *positions64]
            else:
                gradients.append(tf.convert_to_tensor(gradient))
        return gradients

    specs = [tf.TensorSpec(results[i].shape, results[i].dtype) for i in differentiated]
    unique = f"custom_gradient_rule_of_{_identifier(name)}_{next(_serial)}"
    graph = _graph_of(unique, rule, specs)
    function = _tf_internal.from_func_graph(unique, graph, {})
    return function, list(graph.external_captures), positions, sliced


def _graph_of(name: str, function: Callable[..., list[tf.Tensor]], specs: list[tf.TensorSpec]) -> Any:
    """The function as a graph: a third of the time of TensorFlow's own tracing, which every call of ours waits for.

    That looks at each op once more, to put those with a state into their order. Most rules have none.
    """
    graph = _tf_internal.FuncGraph(name)
    with graph.as_default():
        order = _tf_internal.AutomaticControlDependencies()
        order.__enter__()
        parameters = [tf.compat.v1.placeholder(spec.dtype, spec.shape, "upstream") for spec in specs]
        graph.inputs = list(parameters)
        outputs = function(*parameters)
        if any(_tf_internal.op_def_registry.get(op.type).is_stateful for op in graph.get_operations()):
            outputs = [order.mark_as_return(output) for output in outputs]
            order.__exit__(None, None, None)
        else:
            outputs = [graph.capture(output) for output in outputs]
            given = {id(t) for t in (*parameters, *graph.internal_captures)}  # Which a function cannot return.
            outputs = [tf.identity(output) if id(output) in given else output for output in outputs]
        graph.structured_input_signature = (tuple(specs), {})
        graph.structured_outputs = outputs
        graph.outputs.extend(outputs)
        graph.inputs = parameters + graph.internal_captures
    graph.control_outputs.extend(order.ops_which_must_run)
    return graph


def _next_seed(graph: tf.Graph) -> int | None:
    """A seed for the next rule of a graph. Each graph counts its draws from 0: rules would all draw the same."""
    _num_rules[graph] = _num_rules.get(graph, 0) + 1
    return None if graph.seed is None else (graph.seed + _num_rules[graph] * 1_000_003) % (2**31 - 1)


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name)


def gradients(op: Any, dys: Sequence[Any], captures: list[tf.Tensor] | None = None) -> list[Any]:
    """The gradients of a CustomGradientRule op with respect to all its inputs.

    For the tapes, `captures` are what the op was given: what a graph puts in their place when it captures them is on no
    tape, and second derivatives with respect to what `grad_fn` reads from outside of the graph would end there.
    """
    inputs = list(op.inputs)
    num_results, num_inputs = len(op.outputs), len(op.get_attr("Tinputs"))
    if captures is None:
        captures = inputs[num_results + num_inputs :]
    return [None] * num_results + _apply(op, dys, captures, inputs[num_results:]) + [None] * len(captures)


def vectorize(op: Any, values: list[Any], is_stacked: list[bool]) -> list[tf.Tensor]:
    """The op for a whole batch: results are stacked, inputs and captures may be; its rule maps the op's rule."""
    num_results, num_inputs = len(op.outputs), len(op.get_attr("Tinputs"))
    results, inputs = values[:num_results], values[num_results : num_results + num_inputs]
    captures = list(zip(values, is_stacked, strict=True))[num_results + num_inputs :]

    def backward(dys: Sequence[Any]) -> Sequence[Any]:
        stacked_captures = [value for value, stacked in captures if stacked]

        def one(elements: tuple[Any, Any]) -> list[Any]:
            own_dys, own_captures = elements[0], iter(elements[1])
            own = [next(own_captures) if stacked else value for value, stacked in captures]
            gradients = _apply(op, own_dys, own, op.inputs[num_results:])
            return [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]

        found = iter(tf.vectorized_map(one, (list(dys), stacked_captures)))
        by_input: list[Any] = [None] * num_inputs
        for position in op.get_attr("differentiated_inputs"):
            gradient = next(found)
            by_input[position] = gradient if is_stacked[num_results + position] else tf.reduce_sum(gradient, 0)
        return by_input

    return attach("custom_gradient", tf.compat.as_str(op.get_attr("function_name")), results, inputs, backward)


def _apply(op: Any, dys: Sequence[Any], captures: list[tf.Tensor], like: Sequence[tf.Tensor]) -> list[Any]:
    """What the op's rule returns, for each of its inputs; the gradients have the shapes of `like`."""
    error = tf.compat.as_str(op.get_attr("error"))
    if error:
        raise getattr(op, _EXCEPTION, None) or RuntimeError(error)
    _check_positions(op)
    result: list[Any] = [None] * len(op.get_attr("Tinputs"))
    positions = op.get_attr("differentiated_inputs")
    if positions:
        upstream = [tf.convert_to_tensor(dys[i]) for i in op.get_attr("differentiated_results")]
        _check_signature(op, captures)
        outputs = iter(_inline.inline(op.graph, op.get_attr("rule").name, upstream + captures))
        sliced = op.get_attr("sliced_inputs")
        for position in positions:
            if position in sliced:
                values, indices, dense_shape = next(outputs), next(outputs), next(outputs)
                # In 32 bits, as TensorFlow has it: the branches of a conditional have to agree.
                result[position] = tf.IndexedSlices(values, indices, tf.cast(dense_shape, tf.int32))
            else:
                result[position] = next(outputs)
                result[position].set_shape(like[position].shape)
    return result


def _check_positions(op: Any) -> None:
    """An op that nobody made here may name whatever it likes."""
    counts = {"differentiated_results": len(op.outputs), "differentiated_inputs": len(op.get_attr("Tinputs"))}
    allowed = {name: set(range(count)) for name, count in counts.items()}
    allowed["sliced_inputs"] = set(op.get_attr("differentiated_inputs"))
    for name, known in allowed.items():
        positions = op.get_attr(name)
        is_repeated = name != "differentiated_results" and len(set(positions)) < len(positions)
        if is_repeated or not known.issuperset(positions):
            raise ValueError(_errors.RULE_POSITIONS.format(attribute=name, expected=sorted(known), got=positions))


def _check_signature(op: Any, captures: list[tf.Tensor]) -> None:
    """The function that it names may be none, or another one."""
    name = op.get_attr("rule").name
    function = _tf_internal.find_function(op.graph, name)
    if function is None:
        raise ValueError(_errors.RULE_NOT_THERE.format(rule=name))
    signature = _tf_internal.definition_of(function).signature
    parameters = [tf.as_dtype(argument.type) for argument in signature.input_arg]
    returned = [tf.as_dtype(argument.type) for argument in signature.output_arg]
    inputs = op.inputs[len(op.outputs) :]
    expected: list[tf.DType] = []
    for position in op.get_attr("differentiated_inputs"):
        dtype = inputs[position].dtype.base_dtype
        if dtype in (tf.resource, tf.variant) and len(expected) < len(returned):
            dtype = returned[len(expected)]  # Only the rule knows of which dtype their contents are.
        expected.append(dtype)
        expected += [tf.int64] * 2 if position in op.get_attr("sliced_inputs") else []
    given = [op.outputs[i] for i in op.get_attr("differentiated_results")] + captures
    arguments = [tensor.dtype.base_dtype for tensor in given]
    if (parameters, returned) != (arguments, expected):
        expected_text, got_text = (
            f"({', '.join(t.name for t in before)}) -> ({', '.join(t.name for t in after)})"
            for before, after in ((arguments, expected), (parameters, returned))
        )
        raise ValueError(_errors.RULE_SIGNATURE.format(rule=name, expected=expected_text, got=got_text))
