"""What the graphs of gradient functions capture.

A gradient function reads tensors of the value's computation, which lie in another graph, and captures them. TensorFlow
keeps each of them whole for the backward pass, in a loop once for each step; it refuses some; and it does not find
others. So `RuleGraph` captures a shape where only the shape is read, and `capture_substitutes` has a graph capture
another tensor, with the same value, that it can reach.
"""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.core.tf_internal import EagerTensor

# For each graph, the substitutes of the scopes that are entered: rules call other rules, and the replicas of a strategy
# take turns in one graph.
_substitutes: weakref.WeakKeyDictionary[Any, list[dict[int, Any]]] = weakref.WeakKeyDictionary()


# The gradient of a conditional may capture tensors of the branch and of the graph around the gradient, but none from
# further outside; that of a loop may capture no large EagerTensor (tensorflow/python/ops/cond_v2.py and while_v2.py).
@contextlib.contextmanager
def capture_substitutes(substitutes: dict[int, Any], forward: Any) -> Iterator[None]:
    """Makes the default graph capture, for the tensors with these ids, their substitutes in the graph `forward`."""
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


# TensorFlow's gradient of a loop stores only the shape, too (tensorflow/python/ops/while_v2.py), if the gradient
# function is in Python.
class RuleGraph(tf_internal.FuncGraphWithMakeOp):
    """The graph of a function; if it reads only the shape of an outer tensor, it captures the shape."""

    def make_op(self, op_type: str, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Makes an op that reads a shape in the outer graph."""
        reads_shapes = op_type in ("Shape", "Size", "Rank", "TensorListElementShape", "TensorListLength")
        is_filled = op_type in ("ZerosLike", "OnesLike") and inputs[0].dtype != tf.variant
        if not (reads_shapes or is_filled) or any(isinstance(t, EagerTensor) or t.graph is self for t in inputs):
            return super().make_op(op_type, inputs, *args, **kwargs)
        if reads_shapes:
            kwargs["name"] = op_type  # The name in kwargs is unique in this graph, but maybe not in the outer one.
            with self.outer_graph.as_default():
                return tf_internal.create_op(self.outer_graph, op_type, inputs, kwargs.pop("attrs", None), **kwargs)
        fill = tf.zeros if op_type == "ZerosLike" else tf.ones
        return fill(tf.shape(inputs[0]), inputs[0].dtype).op
