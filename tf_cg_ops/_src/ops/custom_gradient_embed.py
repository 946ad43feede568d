"""CustomGradientEmbed: its gradient, and the op for a batch."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src import errors
from tf_cg_ops._src.core import library, slices, tf_internal
from tf_cg_ops._src.ops import batching, bilinear_form


@tf.RegisterGradient("CustomGradientEmbed")
def _custom_gradient_embed(op: Any, dy: Any) -> Sequence[Any]:
    """The embedded form is fx + sum over pairs of gx * (x - stop(x)), of which the value is fx alone."""
    inputs = list(op.inputs)
    upstream, dy = dy, tf.convert_to_tensor(slices.to_dense(dy))
    if not dy.shape.is_compatible_with(inputs[0].shape):
        raise ValueError(errors.UPSTREAM_SHAPE.format(api="embed_gradient", value=inputs[0].shape, upstream=dy.shape))
    pairs = (len(inputs) - 1) // 2
    attributes = bilinear_form.alignment_attributes(op)
    manually_stopped = attributes["fx_gx_manually_stopped"]
    is_dense = manually_stopped or attributes["axis"] or attributes["all_axes"]
    dgx: list[Any] = [None] * pairs
    dx: list[Any] = [None] * pairs
    for i in range(pairs):
        gx_index, x_index = 1 + i, 1 + pairs + i
        gx, x = inputs[gx_index], inputs[x_index]
        if manually_stopped and not bilinear_form.is_skipped(op, gx_index):
            # Zero, but not without a derivative: mixed second derivatives go through it.
            dgx[i] = bilinear_form.gradient("gx", {"fx": dy, "x": x}, like=gx, zero_x=True, attributes=attributes)
        if not bilinear_form.is_skipped(op, x_index):
            dx[i] = None if is_dense else slices.of_embedded(upstream, inputs[0].shape, gx, x.shape)
            if dx[i] is None:
                dx[i] = bilinear_form.gradient("x", {"fx": dy, "gx": gx}, like=x, zero_x=False, attributes=attributes)
    return [dy if manually_stopped else None, *dgx, *dx]


@tf_internal.RegisterPFor("CustomGradientEmbed")
def _convert_embed(pfor_input: Any) -> Any:
    pfor_input.stack_inputs([0])  # The value is one for each member of the batch, since its derivative is.
    pairs = (pfor_input.num_inputs - 1) // 2
    fx, *others = [pfor_input.input(i) for i in range(pfor_input.num_inputs)]
    aligned = [
        batching.Aligned.of(pfor_input, batching.sizes_of(fx), batching.sizes_of(gx), batching.sizes_of(x))
        for gx, x in zip(others[:pairs], others[pairs:], strict=True)
    ]
    new_gx = [a.lay_out(gx, a.gx) for a, gx in zip(aligned, others[:pairs], strict=True)]
    new_x = [a.lay_out(x, a.x) for a, x in zip(aligned, others[pairs:], strict=True)]
    axes = [a.axis() for a in aligned]
    if any(axis != axes[0] for axis in axes):  # One op has one axis: the domains are moved to the end.
        size = max(len(axis) for axis in axes)
        new_gx = [a.move_domain_last(gx, size) for a, gx in zip(aligned, new_gx, strict=True)]
        new_x = [a.move_domain_last(x, size) for a, x in zip(aligned, new_x, strict=True)]
        axes = [list(range(-size, 0))]
    stopped = pfor_input.get_attr("fx_gx_manually_stopped")
    h = library.custom_gradient_embed(fx.t, new_gx, new_x, axis=axes[0], fx_gx_manually_stopped=stopped)
    return tf_internal.wrap_for_pfor(h, True)
