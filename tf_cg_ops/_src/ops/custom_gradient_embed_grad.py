"""CustomGradientEmbedGrad: its gradient, and the op for a batch."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src import errors
from tf_cg_ops._src.core import library, tf_internal
from tf_cg_ops._src.ops import batching, bilinear_form


@tf.RegisterGradient("CustomGradientEmbedGrad")
def _custom_gradient_embed_grad(op: Any, upstream: Any) -> Sequence[Any]:
    """Differentiates the gradient of L: the same op, with the roles exchanged."""
    attributes = bilinear_form.alignment_attributes(op)
    wrt = tf.compat.as_str(op.get_attr("wrt"))
    given = [role for role in bilinear_form.ROLES if role != wrt]
    operands = dict(zip(given, op.inputs, strict=False)) | {wrt: tf.convert_to_tensor(upstream)}
    gradients: list[Any] = [None, None, None]  # For lhs, rhs and shape.
    for index, role in enumerate(given):
        stopped = role == "gx" and not attributes["fx_gx_manually_stopped"]
        if not stopped and not bilinear_form.is_skipped(op, index):
            # d(x - stop(x)) = dx: with respect to x itself the form is no longer zero.
            zero_x = op.get_attr("zero_x") and role != "x"
            gradients[index] = bilinear_form.gradient(role, operands, op.inputs[index], zero_x, attributes)
    return gradients


@tf_internal.RegisterPFor("CustomGradientEmbedGrad")
def _convert_embed_grad(pfor_input: Any) -> Any:
    wrt = tf.compat.as_str(pfor_input.get_attr("wrt"))
    roles = [role for role in ("fx", "gx", "x") if role != wrt]
    if "fx" in roles:
        pfor_input.stack_inputs([0])
    operands = {role: pfor_input.input(i) for i, role in enumerate(roles)}
    shape = batching.shape_of_one(pfor_input, 2)
    if not any(operand.is_stacked for operand in operands.values()):  # Only the shape was; the members do not differ.
        names = ("zero_x", "fx_gx_manually_stopped", "axis", "all_axes")
        attributes = {name: pfor_input.get_attr(name) for name in names}
        lhs, rhs = (operand.t for operand in operands.values())
        same = library.custom_gradient_embed_grad(lhs, rhs, shape, wrt=wrt, **attributes)
        return tf_internal.wrap_for_pfor(same, False)
    dims = {role: batching.sizes_of(operand) for role, operand in operands.items()}
    dims[wrt] = None if shape.shape[0] is None else tf.unstack(shape)
    aligned = batching.Aligned.of(pfor_input, dims["fx"], dims["gx"], dims["x"])
    if aligned.scalar_fits is not True:
        message = errors.SCALAR_FX.format(api="CustomGradientEmbedGrad", gx="gx", x="x")
        data = [message, batching.to_vector(aligned.gx), batching.to_vector(aligned.x), pfor_input.get_attr("axis")]
        with tf.control_dependencies([tf.debugging.Assert(aligned.scalar_fits, data)]):
            shape = tf.identity(shape)
    new = {"fx": aligned.fx, "gx": aligned.gx, "x": aligned.x}
    lhs, rhs = (aligned.lay_out(operands[role], new[role]) for role in roles)
    batch = next(tf.shape(o.t, out_type=shape.dtype)[:1] for o in operands.values() if o.is_stacked)
    out = library.custom_gradient_embed_grad(
        lhs,
        rhs,
        tf.concat([batch, tf.cast(tf.stack(new[wrt]), shape.dtype) if new[wrt] else shape[:0]], 0),
        wrt=wrt,
        zero_x=pfor_input.get_attr("zero_x"),
        fx_gx_manually_stopped=pfor_input.get_attr("fx_gx_manually_stopped"),
        axis=aligned.axis(),
    )
    return tf_internal.wrap_for_pfor(tf.reshape(out, tf.concat([batch, shape], 0)), True)
