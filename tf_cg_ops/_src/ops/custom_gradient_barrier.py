"""CustomGradientBarrier: its gradient and its batching rule."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import library, tf_internal


@tf.RegisterGradient("CustomGradientBarrier")
def _custom_gradient_barrier(op: Any, *dys: Any) -> Sequence[Any]:
    """The gradients of the values; the tensors that they wait for have none."""
    return [*dys, *[None] * (len(op.inputs) - len(dys))]


@tf_internal.RegisterPFor("CustomGradientBarrier")
def _convert_barrier(pfor_input: Any) -> Sequence[Any]:
    wrapped = [pfor_input.input(i) for i in range(pfor_input.num_inputs)]
    count = len(pfor_input.op.outputs)
    outputs = library.custom_gradient_barrier([w.t for w in wrapped[:count]], [w.t for w in wrapped[count:]])
    return [tf_internal.wrap_for_pfor(o, w.is_stacked) for o, w in zip(outputs, wrapped, strict=False)]
