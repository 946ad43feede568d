"""A traced function in two parts: a forward pass that keeps what stateful ops returned, and a gradient.

The gradient computes everything else again.
"""

import threading
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.custom_gradient.wording import Wording
from tf_cg_ops._src.memory import checkpoint_name
from tf_cg_ops._src.memory.checkpoint_name import Keep
from tf_cg_ops._src.memory.forward_pass import ForwardPass, with_derivative_of
from tf_cg_ops._src.memory.gradient_function import GradientFunction
from tf_cg_ops._src.rewrite import control_flow
from tf_cg_ops._src.rewrite.graph_copy import GraphCopy
from tf_cg_ops._src.rewrite.traced_call import spec_of

# Stateful ops that are safe to run again.
_CHECKS = frozenset(["CheckNumerics", "CheckNumericsV2", "Print"])


class Replay:
    """Computes a traced function with `forward`, and its gradient with `backward`.

    Attributes:
      reads: For each residual, the position among the inputs of the handle that it was read from, or None.
    """

    def __init__(
        self,
        wording: Wording,
        name: str,
        graph: Any,
        inputs: Sequence[tf.Tensor],
        keep: Keep = (),
        constants: Sequence[tuple[tf.Tensor, Any]] = (),
    ) -> None:
        """`inputs` are the tensors of the graph that are inputs here: of a call and from outside, handles too.

        `constants` are tensors of the graph that are replaced by values.
        """
        self._api = wording.api
        self._name = name
        forward_pass = ForwardPass(wording)
        self._outputs: list[tf.Tensor] = []

        def forward(*values: tf.Tensor) -> list[tf.Tensor]:
            target = tf.compat.v1.get_default_graph()
            values = tuple(tf_internal.capture(target, value) for value in values)
            num_operations = target.num_operations()
            # tf.vectorized_map cannot convert an op that waits for the write of a variable.
            is_ordered = tf_internal.orders_side_effects(target)
            known = [(tensor, tf.constant(value, tensor.dtype)) for tensor, value in constants]
            copy = GraphCopy([*zip(inputs, values, strict=True), *known], forward_pass, is_ordered=is_ordered)
            self._outputs = [tf.identity(output) for output in copy.outputs_of(graph)]
            self._inputs = list(values)
            self._residuals, self._kept = self._find_residuals(keep, target.get_operations()[num_operations:])
            position_of = {id(tensor): position for position, tensor in enumerate(values)}
            handle_of = {id(value): position_of[id(handle)] for handle, value in forward_pass.reads}
            self.reads = [handle_of.get(id(residual)) for residual in (*self._residuals, *self._kept)]
            return [*self._outputs, *self._residuals, *self._kept]

        self._forward = forward
        # Not in the graph of a function: tf.vectorized_map cannot convert a call that writes a variable.
        if tf.executing_eagerly() or not tf.compat.v1.get_default_graph().building_function:
            self._forward = tf.function(forward, autograph=False).get_concrete_function(*map(spec_of, inputs))
        self._backward: dict[tuple[bool, ...], GradientFunction] = {}
        self._lock = threading.Lock()

    def forward(self, values: Sequence[Any]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The outputs, and the residuals that `backward` needs beside the inputs."""
        results = self._forward(*values)
        return results[: len(self._outputs)], results[len(self._outputs) :]

    def backward(
        self, values: Sequence[Any], residuals: Sequence[Any], dys: Sequence[Any], needed: Sequence[bool]
    ) -> list[Any]:
        """The gradients of the inputs and the residuals; None where an input is not `needed` or not connected."""
        with self._lock:  # In eager mode several threads share one trace.
            key = tuple(needed)
            if key not in self._backward:
                self._backward[key] = self._trace_backward(key)
        return self._backward[key](*values, *residuals, *dys)

    def _find_residuals(
        self, keep: Keep, operations: Sequence[tf.Operation]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The results of stateful ops that the outputs depend on, and the values to keep."""
        is_kept = checkpoint_name.predicate(keep, self._name, operations, self._api)
        residuals: list[tf.Tensor] = []
        kept: list[tf.Tensor] = []
        inputs = set(map(id, self._inputs))

        def look_behind(tensor: tf.Tensor) -> bool:
            if id(tensor) in inputs:
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

    def _trace_backward(self, needed: tuple[bool, ...]) -> GradientFunction:
        targets = [output for output in self._outputs if tf_internal.is_trainable(output)]
        known = [*self._inputs, *self._residuals]

        def backward(*inputs: tf.Tensor) -> list[Any]:
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

            copy = GraphCopy(zip(known, values, strict=True), use_kept_values, pure=True)
            outputs = copy.tensors(targets)
            pairs = zip_longest(values, needed, fillvalue=True)
            sources = [value if is_needed and tf_internal.is_trainable(value) else None for value, is_needed in pairs]
            gradients = iter(tf.gradients(outputs, [source for source in sources if source is not None], grad_ys=dys))
            by_value = [None if source is None else next(gradients) for source in sources]
            return by_value + [None] * len(self._kept)

        specs = [spec_of(tensor) for tensor in (*known, *self._kept, *targets)]
        return GradientFunction(tf.function(backward, autograph=False).get_concrete_function(*specs))


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
