"""A traced function in two parts: a forward pass that keeps what stateful ops returned, and a gradient.

The gradient computes everything else again.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.custom_gradient.wording import Wording
from tf_cg_ops._src.graphs import control_flow
from tf_cg_ops._src.graphs.graph_copy import GraphCopy
from tf_cg_ops._src.memory import checkpoint_name
from tf_cg_ops._src.memory.checkpoint_name import Keep
from tf_cg_ops._src.memory.forward_pass import ForwardPass, Read, with_derivative_of
from tf_cg_ops._src.memory.gradient_function import GradientFunction
from tf_cg_ops._src.rewrite.traced_call import spec_of

# Stateful ops that are safe to run again.
_CHECKS = frozenset(["Assert", "CheckNumerics", "CheckNumericsV2", "Print"])
CONTRACTIONS = ("MatMul", "BatchMatMul", "Conv", "Depthwise", "Einsum")
# The ops that gradients of weights come from.
_OF_WEIGHTS = (*CONTRACTIONS, "Sum", "BiasAddGrad")


class Replay:
    """Computes a traced function, or a segment of one, with `forward`, and its gradient with `gradients`."""

    def __init__(
        self,
        wording: Wording,
        name: str,
        graph: Any,
        inputs: Sequence[tf.Tensor],
        keep: Keep = (),
        constants: Sequence[tuple[tf.Tensor, Any]] = (),
    ) -> None:
        """`inputs` are the tensors of the graph that are inputs here: of a call and from outside, handles last.

        `constants` are tensors of the graph that are replaced by values.
        """
        self._api, self._name, self._keep = wording.api, name, keep
        self._graph, self._given, self._constants = graph, inputs, constants
        self._outputs: list[tf.Tensor] = []
        self._reads: list[Read | None] = []  # For each residual.
        self._function: Any = None
        # Not in the graph of a function: tf.vectorized_map cannot convert a call that writes a variable.
        if tf.executing_eagerly() or not tf.compat.v1.get_default_graph().building_function:
            self._function = tf.function(self._compute, autograph=False).get_concrete_function(*map(spec_of, inputs))
        self._gradients: dict[tuple[tuple[bool, ...], ...], GradientFunction] = {}
        self._lock = threading.Lock()

    def forward(self, values: Sequence[Any]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The outputs, and the residuals that `gradients` needs beside the inputs.

        To tapes and accumulators, what was read from a variable depends on it, and all else is constant.
        """
        if self._function is None:
            graph = tf.compat.v1.get_default_graph()
            values = [tf_internal.capture(graph, value) for value in values]  # Tapes see a capture that they record.
        with tf_internal.stop_recording():
            results = (self._function or self._compute)(*values)
        outputs, rest = results[: len(self._outputs)], results[len(self._outputs) :]
        residuals, indices = rest[: len(self._reads)], iter(rest[len(self._reads) :])
        if self._function is None:
            for each in filter(None, self._reads):
                tf_internal.record_copy(each.value.op)
            return outputs, residuals
        for position, (read, residual) in enumerate(zip(self._reads, residuals, strict=True)):
            if read is not None:
                rows = None if read.indices is None else next(indices)
                if tf_internal.is_trainable(residual) and _is_recorded():
                    residuals[position] = with_derivative_of(residual, read.again(values[self._handle_of(read)], rows))
        return outputs, residuals

    @property
    def are_read(self) -> list[bool]:
        """For each residual, whether it was read from a variable."""
        return [read is not None for read in self._reads]

    @property
    def are_differentiable(self) -> list[bool]:
        """For each output, whether it can have a gradient."""
        return [*map(tf_internal.is_trainable, self._outputs)]

    def gradients(
        self, values: Sequence[Any], residuals: Sequence[Any], dys: Sequence[Any], needed: Sequence[bool]
    ) -> list[Any]:
        """The gradients of the inputs and the residuals; None where one is not `needed` or not connected.

        `dys` holds an upstream gradient, or None, for each output that can have one.
        """
        are_used = [*self._are_used, *[True] * len(residuals)]
        key = tuple(itertools.compress(needed, are_used)), tuple(dy is not None for dy in dys)
        with self._lock:  # In eager mode several threads share one trace.
            if key not in self._gradients:
                self._gradients[key] = self._trace_gradients(*key)
        used = itertools.compress(values, self._are_used)
        found = iter(self._gradients[key](*used, *residuals, *(dy for dy in dys if dy is not None)))
        return [*(next(found) if is_used else None for is_used in self._are_used), *found]

    def _compute(self, *values: tf.Tensor) -> list[tf.Tensor]:
        """The outputs, the residuals, and what was looked up in tables."""
        forward_pass = ForwardPass()
        target = tf.compat.v1.get_default_graph()
        num_operations = target.num_operations()
        # tf.vectorized_map cannot convert an op that waits for the write of a variable.
        is_ordered = tf_internal.orders_side_effects(target)
        known = [(tensor, tf.constant(value, tensor.dtype)) for tensor, value in self._constants]
        copy = GraphCopy(
            [*zip(self._given, values, strict=True), *known], forward_pass, is_ordered=is_ordered, names=True
        )
        self._outputs = [tf.identity(output) for output in copy.outputs_of(self._graph)]
        self._inputs = list(values)
        self._residuals, self._kept = self._find_residuals(self._keep, target.get_operations()[num_operations:])
        read_of = {id(read.value): read for read in forward_pass.reads}
        residuals = [*self._residuals, *self._kept]
        self._reads = [read_of.get(id(residual)) for residual in residuals]
        indices = [read.indices for read in self._reads if read is not None and read.indices is not None]
        return [*self._outputs, *residuals, *indices]

    def _handle_of(self, read: Read) -> int:
        return next(i for i, tensor in enumerate(self._inputs) if tensor is read.handle)

    def _find_residuals(
        self, keep: Keep, operations: Sequence[tf.Operation]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The results of stateful ops that the outputs depend on, and the values to keep; notes the inputs."""
        is_kept = checkpoint_name.predicate(keep, self._name, operations, self._api)
        residuals: list[tf.Tensor] = []
        kept: list[tf.Tensor] = []
        is_used = {id(tensor): False for tensor in self._inputs}

        def look_behind(tensor: tf.Tensor) -> bool:
            if id(tensor) in is_used:
                is_used[id(tensor)] = True
                return False
            if tensor.op.type in control_flow.TYPES:
                self._refuse_stateful_ops(tensor.op)
            elif _reads_state(tensor.op):
                self._refuse_gradient(tensor.op)
                residuals.append(tensor)
                return False
            if tensor.dtype != tf.variant and is_kept(tensor.op):
                kept.append(tensor)
            return True

        _visit(self._outputs, look_behind)
        self._are_used = [is_used[id(tensor)] for tensor in self._inputs]
        return residuals, kept

    def _refuse_stateful_ops(self, op: Any) -> None:
        """Raises an error if the outputs of a loop or branch depend on an op that cannot run again."""
        nested: dict[int, Any] = {}

        def look_behind(tensor: tf.Tensor) -> bool:
            inner = tensor.op
            if inner.type in control_flow.TYPES:
                nested[id(inner)] = inner
            elif _reads_state(inner):
                raise NotImplementedError(
                    f"{self._api}: stateful ops of '{self._name}' in a loop or branch must be random ops or reads of "
                    f"variables that the loop does not write, because the gradient runs them again, got '{inner.name}' "
                    f"of type {inner.type}. Run it before the loop, and pass its results to the loop."
                )
            return True

        for function in control_flow.functions_of(op):
            _visit(function.outputs, look_behind)
        for inner in nested.values():
            self._refuse_stateful_ops(inner)

    def _refuse_gradient(self, op: Any) -> None:
        """Raises an error if a stateful op has a gradient, which would be lost."""
        tensors = [t for t in op.inputs if t.dtype != tf.resource]
        differentiable = any(map(tf_internal.is_trainable, tensors)) and any(map(tf_internal.is_trainable, op.outputs))
        # `numpy_function` has its gradient at another op.
        is_python = op.type in ("PyFunc", "PyFuncStateless")
        if differentiable and not is_python and tf_internal.find_gradient_function(op) is not None:
            raise NotImplementedError(
                f"{self._api}: stateful ops of '{self._name}' must not have gradients, because they cannot run again, "
                f"got '{op.name}' of type {op.type}. Call it outside of the recomputed function, or use "
                "numpy_function."
            )

    def _trace_gradients(self, needed: tuple[bool, ...], used: tuple[bool, ...]) -> GradientFunction:
        differentiable = [output for output in self._outputs if tf_internal.is_trainable(output)]
        targets = [output for output, is_used in zip(differentiable, used, strict=True) if is_used]
        known = [*itertools.compress(self._inputs, self._are_used), *self._residuals]

        def gradients(*inputs: tf.Tensor) -> list[Any]:
            values, remaining = inputs[: len(known)], inputs[len(known) :]
            kept_values = dict(zip(map(id, self._kept), remaining, strict=False))
            dys = remaining[len(self._kept) :]

            def use_kept_values(copy: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> list[tf.Tensor] | None:
                if not any(id(output) in kept_values for output in op.outputs):
                    return None
                computed = zip(op.outputs, copy.copy_op(op, inputs), strict=True)
                # The gradient of a kept value goes to the op that computes it. That op is pruned, with its inputs.
                return [
                    with_derivative_of(kept_values[id(old)], new) if id(old) in kept_values else new
                    for old, new in computed
                ]

            graph = tf.compat.v1.get_default_graph()
            copy = GraphCopy(zip(known, values, strict=True), use_kept_values, pure=True)
            outputs = copy.tensors(targets)
            pairs = zip(values, needed, strict=False)
            sources = [value if is_needed and tf_internal.is_trainable(value) else None for value, is_needed in pairs]
            num_operations = graph.num_operations()
            found = iter(tf.gradients(outputs, [source for source in sources if source is not None], grad_ys=dys))
            _run_in_order(graph.get_operations()[num_operations:])
            by_value = [None if source is None else next(found) for source in sources]
            return by_value + [None] * len(self._kept)

        specs = [spec_of(tensor) for tensor in (*known, *self._kept, *targets)]
        return GradientFunction(tf.function(gradients, autograph=False).get_concrete_function(*specs))


def _run_in_order(operations: Sequence[tf.Operation]) -> None:
    """Makes contractions and sums run one after the other, as with one thread.

    Otherwise gradients of weights fall behind on a busy machine, and what they read stays in memory.
    """
    for before, op in itertools.pairwise(op for op in operations if op.type.startswith(_OF_WEIGHTS)):
        tf_internal.wait_for(op, [before])


def _is_recorded() -> bool:
    """Whether a tape, an accumulator or tf.gradients of TensorFlow 1 can look at what is computed now."""
    return not tf.executing_eagerly() or tf_internal.could_possibly_record()


def _visit(outputs: Sequence[tf.Tensor], look_behind: Callable[[tf.Tensor], bool]) -> None:
    """Visits the tensors that the outputs depend on, and goes on behind each for which `look_behind` is True."""
    waiting, seen = list(outputs), set()
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in seen:
            seen.add(id(tensor))
            if look_behind(tensor):
                waiting.extend(tensor.op.inputs)


def _reads_state(op: Any) -> bool:
    # A CustomGradientRule returns its inputs; only its gradient reads the variables among them.
    is_stateful = op.op_def.is_stateful or any(tensor.dtype == tf.resource for tensor in op.inputs)
    return is_stateful and op.type not in _CHECKS and op.type != "CustomGradientRule"
