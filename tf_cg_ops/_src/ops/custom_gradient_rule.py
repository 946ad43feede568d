"""CustomGradientRule: its gradient, and the op for a batch."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.custom_gradient import graph_rule


@tf.RegisterGradient("CustomGradientRule")
def _custom_gradient_rule(op: Any, *dys: Any) -> Sequence[Any]:
    """What the function that the op names returns."""
    if type(op.outputs[0]) is tf_internal.EagerTensor:
        raise ValueError(
            "CustomGradientRule: the op was called in eager mode; expected an op of a graph, which holds its "
            "rule, got one on a tape. Use tf_cg_ops.custom_gradient."
        )
    return graph_rule.gradients(op.outputs[0].op, dys)  # The op itself: a tape passes an imitation without its graph.


@tf_internal.RegisterPFor("CustomGradientRule")
def _convert_rule(pfor_input: Any) -> Sequence[Any]:
    """The same results, with a rule that maps the rule."""
    pfor_input.stack_inputs(range(len(pfor_input.op.outputs)))
    wrapped = [pfor_input.input(i) for i in range(pfor_input.num_inputs)]
    outputs = graph_rule.vectorize(pfor_input.op, [w.t for w in wrapped], [w.is_stacked for w in wrapped])
    return [tf_internal.wrap_for_pfor(output, True) for output in outputs]
