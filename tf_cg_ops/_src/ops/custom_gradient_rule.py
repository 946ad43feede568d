"""CustomGradientRule: its gradient and its batching rule."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.custom_gradient import graph_rule


@tf.RegisterGradient("CustomGradientRule")
def _custom_gradient_rule(op: Any, *dys: Any) -> Sequence[Any]:
    """Calls the rule, the function that the op names."""
    if type(op.outputs[0]) is tf_internal.EagerTensor:
        raise ValueError(
            "CustomGradientRule: the op was called in eager mode, but only a graph holds its rule. Use "
            "tf_cg_ops.custom_gradient."
        )
    return graph_rule.gradients(op.outputs[0].op, dys)  # A tape passes an imitation of the op, without its graph.


@tf_internal.RegisterPFor("CustomGradientRule")
def _convert_rule(pfor_input: Any) -> Sequence[Any]:
    """The results of all members, with a rule that vectorizes the rule."""
    # Not the others: a loop goes on, for all examples, as long as an unstacked number says so.
    num_results = len(pfor_input.op.outputs)
    # A malformed op names others; the gradient refuses them.
    pfor_input.stack_inputs([i for i in pfor_input.get_attr("differentiated_results") if 0 <= i < num_results])
    wrapped = [pfor_input.input(i) for i in range(pfor_input.num_inputs)]
    outputs = graph_rule.vectorize(pfor_input.op, [w.t for w in wrapped], [w.is_stacked for w in wrapped])
    return [tf_internal.wrap_for_pfor(output, w.is_stacked) for output, w in zip(outputs, wrapped, strict=False)]
