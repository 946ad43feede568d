"""Copies calls, loops and conditionals of a traced graph, together with the functions that they name."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.core.calls import CALLS, CONDITIONALS, LOOPS, TYPES

# Copies the graph of a function into the default graph, for these inputs, and returns its outputs: `GraphCopy.call`.
Call = Callable[[Any, Sequence[Any]], list[Any]]

# Ops that only read the shape and dtype of a tensor.
READ_SHAPES = frozenset(["Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"])

TYPES_OF_TENSORFLOW_1 = frozenset(["Enter", "Exit", "NextIteration", "Switch", "Merge", "LoopCond"])


def functions_of(op: Any) -> list[Any]:
    """The graphs of the functions that a call, loop or conditional names. The condition of a loop comes first."""
    if op.type in CALLS:
        return [tf_internal.graph_of_function(tf_internal.find_function(op.graph, op.get_attr("f").name))]
    return tf_internal.control_flow_graphs(op)


def is_compiled(op: Any) -> bool:
    """Whether an op calls a tf.function(jit_compile=True)."""
    return op.type in CALLS and "_XlaMustCompile" in op.node_def.attr and op.get_attr("_XlaMustCompile")


def uses_of(tensor: Any, nested: bool = False) -> Iterator[tuple[Any, bool]]:
    """The ops that use a tensor, also in functions that get it, each with whether it is in a loop or branch.

    A loop itself counts as a use if its body returns another tensor for it.
    """
    for use in tensor.consumers():
        if use.type not in TYPES:
            yield use, nested
            continue
        for position, argument in enumerate(use.inputs):
            if argument is tensor:
                yield from uses_by(use, position, nested)


def uses_by(op: Any, position: int, nested: bool = False) -> Iterator[tuple[Any, bool]]:
    """`uses_of` for the functions of a call, loop or conditional that gets the tensor as this input."""
    offset = 1 if op.type in CONDITIONALS else 0
    functions = functions_of(op)
    for function in functions:
        yield from uses_of(function.inputs[position - offset], nested or op.type not in CALLS)
    if op.type in LOOPS and position not in loop_invariant_inputs(functions[1]):
        yield op, True


def copy(
    op: Any,
    inputs: list[tf.Tensor],
    call: Call,
    iteration_scope: Callable[[tf.Tensor], AbstractContextManager[None]] | None = None,
) -> Sequence[tf.Tensor]:
    """Copies the op into the default graph, and returns its outputs.

    If there is an `iteration_scope`, a copied loop counts its iterations and runs each in the scope for its number.
    """
    if is_compiled(op):  # The copy is compiled, too.
        # Handles are captured, so that who copies recognizes them in the function.
        tensors = [tensor for tensor in inputs if tensor.dtype != tf.resource]

        def compiled(*tensors: Any) -> list[Any]:
            given = iter(tensors)
            with tf_internal.stop_recording():  # TensorFlow differentiates the call.
                return copy_body(op, [t if t.dtype == tf.resource else next(given) for t in inputs], call)

        return tf.function(compiled, autograph=False, jit_compile=True)(*tensors)
    if op.type in CALLS:
        return copy_body(op, inputs, call)
    if op.type in LOOPS:
        return _copy_loop(op, inputs, call, iteration_scope)

    def copied(branch: Any) -> Callable[[], list[Any]]:
        # A branch needs at least one output.
        return lambda: [tf.constant(0), *call(branch, inputs[1:])]

    branches = [copied(branch) for branch in functions_of(op)]
    if "Case" in op.type:
        return tf.switch_case(inputs[0], branches)[1:]
    return tf.cond(_truth(inputs[0], op.inputs[0]), *branches)[1:]


def copy_body(op: Any, inputs: Sequence[Any], call: Call) -> list[Any]:
    """Copies the function that an op calls into the default graph, and returns the outputs of the call."""
    (body,) = functions_of(op)
    # If TensorFlow has differentiated the function, it has added outputs to its graph.
    return call(body, inputs)[: len(op.outputs)]


def _truth(tensor: tf.Tensor, original: Any) -> tf.Tensor:
    """What an op makes of the condition: it takes any tensor, TensorFlow's Python functions take a boolean."""
    if not _is_boolean(original):
        return tf.raw_ops.ToBool(input=tensor)
    return tf.reshape(tensor, [])  # TensorFlow can know less about a copy.


def _is_boolean(tensor: Any) -> bool:
    return tensor.dtype == tf.bool and tensor.shape.rank == 0


def loop_invariant_inputs(body: Any) -> list[int]:
    """The positions of the inputs that a body returns as they are."""
    return [
        i for i, (before, after) in enumerate(zip(body.inputs, body.outputs, strict=True)) if _source(after) is before
    ]


def _source(tensor: Any) -> Any:
    while not isinstance(tensor, tf_internal.EagerTensor) and tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _copy_loop(
    op: Any,
    inputs: list[tf.Tensor],
    call: Call,
    iteration_scope: Callable[[tf.Tensor], AbstractContextManager[None]] | None,
) -> Sequence[tf.Tensor]:
    condition, body = functions_of(op)
    invariant = set(loop_invariant_inputs(body))
    varying = [i for i in range(len(inputs)) if i not in invariant]
    # tf.while_loop needs a variable, and a loop that only writes variables of TensorFlow has none that varies.
    counter = [tf.constant(0)] if iteration_scope or not varying else []

    def run(function: Any, loop_vars: Sequence[Any]) -> list[Any]:
        values = list(inputs)  # The body captures the ones that do not vary.
        for i, value in zip(varying, loop_vars[len(counter) :], strict=True):
            values[i] = value
        with iteration_scope(loop_vars[0]) if iteration_scope else contextlib.nullcontext():
            return call(function, values)

    def copied_body(*loop_vars: Any) -> list[Any]:
        outputs = run(body, loop_vars)
        for i in varying:  # TensorFlow can know less about a copy, or about a loop of tf.vectorized_map.
            outputs[i].set_shape(body.inputs[i].shape)
        return [*(number + 1 for number in loop_vars[: len(counter)]), *(outputs[i] for i in varying)]

    outputs = tf.while_loop(
        lambda *loop_vars: _truth(run(condition, loop_vars)[0], condition.outputs[0]),
        copied_body,
        [*counter, *(inputs[i] for i in varying)],
        shape_invariants=[*(number.shape for number in counter), *(body.inputs[i].shape for i in varying)],
        parallel_iterations=op.get_attr("parallel_iterations"),
        maximum_iterations=_maximum_iterations(op, inputs),
    )
    results = list(inputs)
    for i, output in zip(varying, outputs[len(counter) :], strict=True):
        results[i] = output
    return results


def _maximum_iterations(op: Any, inputs: Sequence[Any]) -> Any:
    """What the number of iterations cannot exceed; None if the loop does not say it. XLA needs it for gradients."""
    for counter, limit in _counters(op):
        if tf.get_static_value(inputs[counter]) == 0:
            maximum = _largest_value(inputs[limit])
            value = tf.get_static_value(maximum)
            return maximum if value is None else int(value)
    return None


def _largest_value(tensor: Any) -> Any:
    """The limit of a counter, such as the number of iterations for the loop of a gradient; else the tensor itself."""
    source = _source(tensor)
    if not isinstance(source, tf_internal.EagerTensor) and source.op.type in LOOPS:
        inputs = source.op.inputs
        for counter, limit in _counters(source.op):
            if counter == source.value_index and tf.get_static_value(inputs[counter]) == 0:
                return _largest_value(inputs[limit])
    return tensor


def _counters(op: Any) -> Iterator[tuple[int, int]]:
    """The positions of loop variables that each iteration increments while they are less than an invariant input.

    All loops of TensorFlow that have a maximum of iterations have one. The positions alone say nothing about the loops
    of tf.raw_ops.
    """
    condition, body = functions_of(op)
    if not _is_boolean(condition.outputs[0]):
        return
    positions = {id(tensor): i for i, tensor in enumerate(condition.inputs)}
    invariant = loop_invariant_inputs(body)
    for comparison in _conjunction(condition.outputs[0]):
        if comparison.type == "Less" and all(t.dtype == tf.int32 and t.shape.rank == 0 for t in comparison.inputs):
            counter, limit = (positions.get(id(_source(tensor))) for tensor in comparison.inputs)
            if counter is not None and limit in invariant and _is_incremented(body, counter):
                yield counter, limit


def _conjunction(output: Any) -> Iterator[Any]:
    """The ops all of which must give True for the output of a condition to be True."""
    op = output.op
    if op.type == "LogicalAnd":
        yield from (inner for tensor in op.inputs for inner in _conjunction(tensor))
    elif op.type in ("Identity", "Reshape", "Squeeze"):
        yield from _conjunction(op.inputs[0])
    else:
        yield op


def _is_incremented(body: Any, position: int) -> bool:
    op = _source(body.outputs[position]).op
    is_sum = op.type in ("Add", "AddV2") and _source(op.inputs[0]) is body.inputs[position]
    return is_sum and tf.get_static_value(op.inputs[1]) == 1
