"""CustomGradientEmbed: its gradient and its batching."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import library, tf_internal
from tf_cg_ops._src.embed_gradient.vjp import dense_upstream, sliced_vjp
from tf_cg_ops._src.ops import batching, trilinear_form


@tf.RegisterGradient("CustomGradientEmbed")
def _custom_gradient_embed(op: Any, dy: Any) -> Sequence[Any]:
    """Differentiates fx + sum over pairs of gx * (x - stop(x)), whose value is fx."""
    fx, *pairs = op.inputs
    num_pairs = len(pairs) // 2
    dense_dy = dense_upstream(dy, fx.shape)
    attributes = trilinear_form.alignment_attributes(op)
    manually_stopped = attributes["fx_gx_manually_stopped"]
    is_elementwise = not (attributes["axis"] or attributes["all_axes"])
    dgx: list[Any] = [None] * num_pairs
    dx: list[Any] = [None] * num_pairs
    for i in range(num_pairs):
        gx, x = pairs[i], pairs[num_pairs + i]
        if manually_stopped and not trilinear_form.is_skipped(op, 1 + i):
            # This is zero, but mixed second derivatives go through it.
            dgx[i] = trilinear_form.gradient("gx", {"fx": dense_dy, "x": x}, gx, zero_x=True, attributes=attributes)
        if not trilinear_form.is_skipped(op, 1 + num_pairs + i):
            if is_elementwise and not manually_stopped:
                dx[i] = sliced_vjp(dy, fx.shape, gx, x.shape)
            if dx[i] is None:
                dx[i] = trilinear_form.gradient("x", {"fx": dense_dy, "gx": gx}, x, zero_x=False, attributes=attributes)
    return [dense_dy if manually_stopped else None, *dgx, *dx]


@tf_internal.RegisterPFor("CustomGradientEmbed")
def _convert_embed(pfor_input: Any) -> Any:
    pfor_input.stack_inputs([0])  # Each member has its own derivative, so it needs its own value.
    num_pairs = (pfor_input.num_inputs - 1) // 2
    fx, *others = [pfor_input.input(i) for i in range(pfor_input.num_inputs)]
    wrapped_gx, wrapped_x = others[:num_pairs], others[num_pairs:]
    aligned = [
        batching.AlignedSizes.of(pfor_input, batching.sizes_of(fx), batching.sizes_of(gx), batching.sizes_of(x))
        for gx, x in zip(wrapped_gx, wrapped_x, strict=True)
    ]
    new_gx = [batching.reshape_members(gx, a.gx) for a, gx in zip(aligned, wrapped_gx, strict=True)]
    new_x = [batching.reshape_members(x, a.x) for a, x in zip(aligned, wrapped_x, strict=True)]
    axes = [a.axis() for a in aligned]
    if any(axis != axes[0] for axis in axes):  # One op has one axis: the last dimensions.
        num_event = max(len(axis) for axis in axes)
        new_gx = [a.move_event_last(gx, num_event) for a, gx in zip(aligned, new_gx, strict=True)]
        new_x = [a.move_event_last(x, num_event) for a, x in zip(aligned, new_x, strict=True)]
        axes = [list(range(-num_event, 0))]
    stopped = pfor_input.get_attr("fx_gx_manually_stopped")
    h = library.custom_gradient_embed(fx.t, new_gx, new_x, axis=axes[0], fx_gx_manually_stopped=stopped)
    return tf_internal.wrap_for_pfor(h, True)
