"""What the graphs of gradient functions capture.

A gradient function reads tensors of the forward pass, which are in another graph, so it captures them. TensorFlow keeps
each of them for the backward pass, in a loop once for each step, and cannot capture some of them. So `RuleGraph`
captures just the shape of a tensor if only the shape is read, and `capture_substitutes` makes a graph capture another
tensor with the same value.
"""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.core.tf_internal import EagerTensor

# The substitutes of all scopes that a graph is in: rules call other rules, and the replicas of a strategy take turns in
# one graph.
_substitutes: weakref.WeakKeyDictionary[Any, list[dict[int, Any]]] = weakref.WeakKeyDictionary()


# The gradient of a conditional can capture tensors from the branch and from the graph around the gradient, but not from
# further outside. The gradient of a loop cannot capture a large EagerTensor (see TensorFlow's cond_v2.py, while_v2.py).
@contextlib.contextmanager
def capture_substitutes(substitutes: dict[int, Any], forward: Any) -> Iterator[None]:
    """Makes the default graph capture substitutes from the graph `forward` for the tensors with these ids."""
    graph = tf.compat.v1.get_default_graph()
    if not substitutes or graph is forward or not isinstance(graph, tf_internal.FuncGraph):
        yield
        return
    entered = _substitutes.setdefault(graph, [])
    if not entered:
        capture = graph.capture

        def capture_substitute(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            for substitutes_by_id in reversed(entered):
                tensor = substitutes_by_id.get(id(tensor), tensor)
            return capture(tensor, *args, **kwargs)

        graph.capture = capture_substitute
    entered.append(substitutes)
    try:
        yield
    finally:
        entered[:] = [other for other in entered if other is not substitutes]
        if not entered:
            del graph.capture
            del _substitutes[graph]


# TensorFlow's while_v2.py does the same for gradient functions in Python.
class RuleGraph(tf_internal.FuncGraphWithMakeOp):
    """The graph of a function that captures only the shape of an outer tensor if it reads nothing else."""

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
