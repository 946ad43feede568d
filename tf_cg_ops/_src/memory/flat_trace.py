"""A traced graph without calls, which a plan can cut anywhere but in loops and branches."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tf_cg_ops._src.core import calls, tf_internal
from tf_cg_ops._src.custom_gradient.wording import Wording
from tf_cg_ops._src.rewrite import control_flow
from tf_cg_ops._src.rewrite.graph_copy import GraphCopy
from tf_cg_ops._src.rewrite.python_gradients import copy_with_python_gradient


class FlatTrace:
    """The ops of a graph and of the functions that it calls, except compiled ones.

    Attributes:
      graph: The graph itself if it calls nothing, or a copy.
      inside: The tensors that are inputs, in the order of `inside` of the traced graph.
    """

    def __init__(self, wording: Wording, graph: Any, inside: Sequence[Any]) -> None:
        self.graph, self.inside = graph, list(inside)
        if any(op.type in calls.CALLS and not control_flow.is_compiled(op) for op in graph.get_operations()):
            with graph.as_default():  # So that captures have what TensorFlow knows about handles.
                self.graph = tf_internal.FuncGraph("flat")
            with self.graph.as_default():
                self.inside = [self.graph.capture(tensor) for tensor in inside]
                replace = functools.partial(copy_with_python_gradient, wording)
                self.graph.outputs = GraphCopy(zip(inside, self.inside, strict=True), replace).outputs_of(graph)
            tf_internal.forget_captures(self.graph)
