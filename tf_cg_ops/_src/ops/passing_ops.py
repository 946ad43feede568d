"""Gradients and batching of the ops that return their inputs, and of the token, which has no gradient."""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import library, tf_internal
from tf_cg_ops._src.custom_gradient import attaching, backward_order, unused_outputs
from tf_cg_ops._src.ops import batching


@tf.RegisterGradient("CustomGradientRule")
def _custom_gradient_rule(op: Any, *dys: Any) -> Sequence[Any]:
    """Calls the gradient rule of the op."""
    if type(op.outputs[0]) is tf_internal.EagerTensor:
        raise ValueError(
            "CustomGradientRule: in eager mode this op has no gradient, because its rule is a function of a graph. Use "
            "tf_cg_ops.custom_gradient."
        )
    return attaching.gradients_of_op(op.outputs[0].op, dys)  # A tape passes an imitation of the op without its graph.


@tf_internal.RegisterPFor("CustomGradientRule")
def _convert_rule(pfor_input: Any) -> Sequence[Any]:
    """The results of all members, with a vectorized rule."""
    # Other results are not stacked: the condition of a loop can need an unstacked number.
    num_results = len(pfor_input.op.outputs)
    # A malformed op can have other positions, which the gradient rejects.
    pfor_input.stack_inputs([i for i in pfor_input.get_attr("differentiated_results") if 0 <= i < num_results])
    wrapped = [pfor_input.input(i) for i in range(pfor_input.num_inputs)]
    convert = functools.partial(tf_internal.converted_for_pfor, pfor_input)
    outputs = attaching.vectorize(pfor_input.op, [w.t for w in wrapped], [w.is_stacked for w in wrapped], convert)
    return [tf_internal.wrap_for_pfor(output, w.is_stacked) for output, w in zip(outputs, wrapped, strict=False)]


@tf.RegisterGradient("CustomGradientBarrier")
def _custom_gradient_barrier(op: Any, *dys: Any) -> Sequence[Any]:
    """The gradients of the values; the tensors that they wait for do not get one."""
    is_gate = backward_order.is_gate(op)
    gradients = backward_order.gradients_of_gate(dys) if is_gate else map(unused_outputs.with_mark, dys)
    return [*gradients, *[None] * (len(op.inputs) - len(dys))]


@tf_internal.RegisterPFor("CustomGradientBarrier")
def _convert_barrier(pfor_input: Any) -> Sequence[Any]:
    wrapped = [pfor_input.input(i) for i in range(pfor_input.num_inputs)]
    count = len(pfor_input.op.outputs)
    outputs = library.custom_gradient_barrier([w.t for w in wrapped[:count]], [w.t for w in wrapped[count:]])
    return [tf_internal.wrap_for_pfor(o, w.is_stacked) for o, w in zip(outputs, wrapped, strict=False)]


@tf.RegisterGradient("CustomGradientCheckShape")
def _custom_gradient_check_shape(op: Any, dy: Any) -> Sequence[Any]:
    """Passes the gradient on; the shape does not get one."""
    return [dy, None]


@tf_internal.RegisterPFor("CustomGradientCheckShape")
def _convert_check_shape(pfor_input: Any) -> Any:
    gradient, shape = pfor_input.input(0), batching.shape_of_member(pfor_input, 1)
    if gradient.is_stacked:
        shape = tf.concat([tf.shape(gradient.t, out_type=shape.dtype)[:1], shape], 0)
    checked = library.custom_gradient_check_shape(gradient.t, shape, message=pfor_input.get_attr("message"))
    return tf_internal.wrap_for_pfor(checked, gradient.is_stacked)


tf.no_gradient("CustomGradientToken")


@tf_internal.RegisterPFor("CustomGradientToken")
def _convert_token(pfor_input: Any) -> Any:
    """One token for the whole batch, with a number for each member."""
    count = tf.cast(pfor_input.pfor.loop_len_vector, tf.int64)
    token, ids = library.custom_gradient_token(tf.concat([count, pfor_input.unstacked_input(0)], 0))
    return [tf_internal.wrap_for_pfor(token, False), tf_internal.wrap_for_pfor(ids, True)]
