"""What the graphs of gradient functions capture.

A gradient function reads tensors of the forward pass, which are in another graph, so it captures them. TensorFlow keeps
each of them for the backward pass, in a loop once for each step, and cannot capture some of them. So `RuleGraph`
captures just the shape of a tensor if only the shape is read, and `capture_substitutes` makes a graph capture another
tensor with the same value.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.core.tf_internal import EagerTensor


# The gradient of a conditional can capture tensors from the branch and from the graph around the gradient, but not from
# further outside. The gradient of a loop cannot capture a large EagerTensor (see TensorFlow's cond_v2.py, while_v2.py).
@contextlib.contextmanager
def capture_substitutes(substitutes: dict[int, Any]) -> Iterator[None]:
    """Makes the default graph capture substitutes for the tensors with these ids.

    Tapes and tf.gradients, which a gradient function can use, differentiate with respect to the tensors themselves.
    """
    graph = tf.compat.v1.get_default_graph()
    if not isinstance(graph, tf_internal.FuncGraph):
        yield
        return
    captures = _captures.get(graph) or _captures.setdefault(graph, _Captures(graph))
    captures.substitutes.append(substitutes)
    try:
        yield
    finally:
        captures.leave(substitutes)


class _Captures:
    """The method `capture` of a graph in which gradient functions are called."""

    def __init__(self, graph: Any) -> None:
        # Of all scopes that the graph is in: rules call other rules, and the replicas of a strategy take turns in one
        # graph.
        self.substitutes: list[dict[int, Any]] = []
        self._graph, self._capture = graph, graph.capture
        self._listed: list[Any] = []
        graph.capture = self

    def __call__(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        source = tensor
        for substitutes_by_id in reversed(self.substitutes):
            source = substitutes_by_id.get(id(source), source)
        if not isinstance(source, EagerTensor) and source.graph is self._graph:
            captured = source
        else:
            # In the gradient of a loop or conditional, ops keep and restore the value. TensorFlow records only those
            # ops, and only once.
            with tf_internal.stop_recording():
                captured = self._capture(source, *args, **kwargs)
        if captured is not tensor:
            _record_capture(self._graph, captured, tensor)
            is_listed = source is tensor or captured.op.type != "Placeholder"
            if not is_listed and tf_internal.list_capture(self._graph, tensor, captured):
                self._listed.append(tensor)
        return captured

    def leave(self, substitutes: dict[int, Any]) -> None:
        """Leaves a scope; after the last one, the graph captures as before."""
        self.substitutes = [other for other in self.substitutes if other is not substitutes]
        if not self.substitutes:
            for tensor in self._listed:
                tf_internal.unlist_capture(self._graph, tensor)
            del self._graph.capture
            del _captures[self._graph]


_captures: weakref.WeakKeyDictionary[Any, _Captures] = weakref.WeakKeyDictionary()


# TensorFlow only records a capture when it makes the placeholder.
def _record_capture(graph: Any, captured: Any, tensor: Any) -> None:
    """Tells tapes and accumulators that one tensor is the capture of another."""
    is_watched = (graph.is_traced_in if isinstance(graph, RuleGraph) else None) or (lambda: True)
    tf_internal.record_operation(
        *("captured_value", [captured], [tensor], lambda dy: [dy]),
        lambda tangent: [tangent if is_watched() else None],
    )


# TensorFlow's while_v2.py does the same for gradient functions in Python.
class RuleGraph(tf_internal.FuncGraphWithMakeOp):
    """The graph of a function that captures only the shape of an outer tensor if it reads nothing else."""

    # Tells whether the accumulator that computes a tangent was made in this trace; None if the trace is not for forward
    # mode. Other accumulators do not watch what the trace captures: they record the rule where it is imported.
    is_traced_in: Callable[[], bool] | None = None

    def capture(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Captures a tensor for tapes and accumulators."""
        if self.is_traced_in is None:
            return super().capture(tensor, *args, **kwargs)
        with tf_internal.stop_recording():
            captured = super().capture(tensor, *args, **kwargs)
        if captured is not tensor:
            _record_capture(self, captured, tensor)
        return captured

    def make_op(self, op_type: str, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Makes an op; one that reads a shape goes into the outer graph."""
        reads_shapes = op_type in ("Shape", "Size", "Rank", "TensorListElementShape", "TensorListLength")
        is_filled = op_type in ("ZerosLike", "OnesLike") and inputs[0].dtype != tf.variant
        if not (reads_shapes or is_filled) or any(isinstance(t, EagerTensor) or t.graph is self for t in inputs):
            return super().make_op(op_type, inputs, *args, **kwargs)
        if reads_shapes:
            kwargs["name"] = op_type  # The name in kwargs is only unique in this graph.
            with self.outer_graph.as_default():
                return tf_internal.create_op(self.outer_graph, op_type, inputs, kwargs.pop("attrs", None), **kwargs)
        fill = tf.zeros if op_type == "ZerosLike" else tf.ones
        return fill(tf.shape(inputs[0]), inputs[0].dtype).op
