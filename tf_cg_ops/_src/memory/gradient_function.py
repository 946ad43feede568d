"""A traced gradient whose own derivatives compute it again."""

import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import slices, tapes, tf_internal
from tf_cg_ops._src.graphs import control_flow
from tf_cg_ops._src.graphs.graph_copy import GraphCopy


class GradientFunction:
    """Calls a traced function that computes gradients. Its own gradient is traced only when you compute it.

    TensorFlow alone would build it when a tape records the call, for all inputs and in several rounds.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._outputs = list(function.graph.outputs)
        self._can_compute_again: bool | None = None
        self._gradients: dict[tuple[bool, ...], GradientFunction] = {}
        self._lock = threading.Lock()  # In eager mode several threads share one trace.

    def __call__(self, *inputs: tf.Tensor) -> Any:
        """The gradients, in the structure that the function returned."""
        # If only forward mode records, TensorFlow's own tangents of the function are better.
        if not tf_internal.should_record_backprop(inputs) or not self._is_pure():
            return self._function(*inputs)
        with tf_internal.stop_recording():
            results = self._function(*inputs)
        outputs = [t for t in tf.nest.flatten(results, expand_composites=True) if t is not None]
        # Accumulators that record too will transpose the gradient.
        needed = tuple(bool(tf_internal.possible_gradient_types([tensor])) for tensor in inputs)

        def backward(*dys: Any) -> list[Any]:
            pairs = zip(dys, outputs, strict=True)
            dense = [slices.to_dense(dy) for dy, output in pairs if tf_internal.is_trainable(output)]
            return self._gradient(len(inputs), needed)(*inputs, *dense)

        tapes.record("gradient", outputs, inputs, backward)
        return results

    def _is_pure(self) -> bool:
        """Whether the function can run again: it has no state, and captures nothing that has gradients."""
        if self._can_compute_again is None:
            graph = self._function.graph
            self._can_compute_again = not any(map(_is_not_copied, graph.get_operations())) and not any(
                map(tf_internal.is_trainable, graph.external_captures)
            )
        return self._can_compute_again

    def _gradient(self, num_inputs: int, needed: tuple[bool, ...]) -> "GradientFunction":
        with self._lock:
            if needed not in self._gradients:
                self._gradients[needed] = GradientFunction(self._trace_gradient(num_inputs, needed))
            return self._gradients[needed]

    def _trace_gradient(self, num_inputs: int, needed: Sequence[bool]) -> Any:
        graph = self._function.graph
        old_inputs, captures = graph.inputs[:num_inputs], [(inside, outside) for outside, inside in graph.captures]
        targets = [output for output in self._outputs if tf_internal.is_trainable(output)]

        def gradient(*tensors: tf.Tensor) -> list[Any]:
            inputs, dys = tensors[:num_inputs], tensors[num_inputs:]
            copy = GraphCopy([*zip(old_inputs, inputs, strict=True), *captures], pure=True)
            sources = [tensor for tensor, is_needed in zip(inputs, needed, strict=True) if is_needed]
            gradients = iter(tf.gradients(copy.tensors(targets), sources, grad_ys=dys))
            return [next(gradients) if is_needed else None for is_needed in needed]

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in (*old_inputs, *targets)]
        return tf.function(gradient, autograph=False).get_concrete_function(*specs)


def _is_not_copied(op: Any) -> bool:
    return (
        tf_internal.has_python_gradient(op)
        or op.type in control_flow.TYPES
        or tf_internal.op_def_registry.get(op.type).is_stateful
    )
