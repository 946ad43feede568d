"""CustomGradientEmbedGrad: its gradient and its batching."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import library, tf_internal
from tf_cg_ops._src.embed_gradient import dynamic_axis
from tf_cg_ops._src.ops import batching, trilinear_form
from tf_cg_ops._src.ops.batching import AlignedSizes, reshape_members


@tf.RegisterGradient("CustomGradientEmbedGrad")
def _custom_gradient_embed_grad(op: Any, dy: Any) -> Sequence[Any]:
    """Differentiates the gradient of L: the same op with other roles."""
    attributes = trilinear_form.alignment_attributes(op)
    wrt = tf.compat.as_str(op.get_attr("wrt"))
    roles = trilinear_form.roles_of_operands(wrt)
    operands = dict(zip(roles, op.inputs, strict=False)) | {wrt: tf.convert_to_tensor(dy)}
    gradients: list[Any] = [None, None, None]  # For lhs, rhs and shape.
    for index, role in enumerate(roles):
        is_constant = role == "gx" and not attributes["fx_gx_manually_stopped"]
        if not is_constant and not trilinear_form.is_skipped(op, index):
            # d(x - stop(x)) = dx, so with respect to x itself the form is not zero.
            zero_x = op.get_attr("zero_x") and role != "x"
            gradients[index] = trilinear_form.gradient(role, operands, op.inputs[index], zero_x, attributes)
    return gradients


@tf_internal.RegisterPFor("CustomGradientEmbedGrad")
def _convert_embed_grad(pfor_input: Any) -> Any:
    wrt = tf.compat.as_str(pfor_input.get_attr("wrt"))
    roles = trilinear_form.roles_of_operands(wrt)
    if "fx" in roles:
        pfor_input.stack_inputs([0])
    operands = {role: pfor_input.input(i) for i, role in enumerate(roles)}
    shape = batching.shape_of_member(pfor_input, 2)
    attributes = {name: pfor_input.get_attr(name) for name in ("zero_x", "fx_gx_manually_stopped")} | {"wrt": wrt}
    if not any(operand.is_stacked for operand in operands.values()):  # All members are equal.
        attributes |= {name: pfor_input.get_attr(name) for name in ("axis", "all_axes")}
        lhs, rhs = (operand.t for operand in operands.values())
        return tf_internal.wrap_for_pfor(library.custom_gradient_embed_grad(lhs, rhs, shape, **attributes), False)
    sizes = {role: batching.sizes_of(operand) for role, operand in operands.items()}
    sizes[wrt] = None if shape.shape[0] is None else tf.unstack(shape)
    aligned = AlignedSizes.of(pfor_input, sizes["fx"], sizes["gx"], sizes["x"])
    shape = _check_scalar_fx(aligned, shape, pfor_input.get_attr("axis"))
    aligned_sizes = {"fx": aligned.fx, "gx": aligned.gx, "x": aligned.x}
    lhs, rhs = (reshape_members(operands[role], aligned_sizes[role]) for role in roles)
    num_members = next(tf.shape(o.t, out_type=shape.dtype)[:1] for o in operands.values() if o.is_stacked)
    wrt_sizes = aligned_sizes[wrt]
    aligned_shape = tf.cast(tf.stack(wrt_sizes), shape.dtype) if wrt_sizes else shape[:0]
    gradient = library.custom_gradient_embed_grad(
        lhs, rhs, tf.concat([num_members, aligned_shape], 0), axis=aligned.axis(), **attributes
    )
    return tf_internal.wrap_for_pfor(tf.reshape(gradient, tf.concat([num_members, shape], 0)), True)


def _check_scalar_fx(aligned: AlignedSizes, shape: tf.Tensor, axis: list[int]) -> tf.Tensor:
    """Returns the shape; using it fails at run time if a scalar fx does not fit."""
    if aligned.scalar_fx_fits is True:
        return shape
    message = dynamic_axis.scalar_fx_does_not_fit("CustomGradientEmbedGrad", "gx", "x")
    data = [message, batching.to_vector(aligned.gx), batching.to_vector(aligned.x), axis]
    with tf.control_dependencies([tf.debugging.Assert(aligned.scalar_fx_fits, data)]):
        return tf.identity(shape)
