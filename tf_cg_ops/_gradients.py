"""The gradient rules of the library's ops for Python: one block an op.

The mathematics stands on one form, L(fx, gx, x) = sum(conj(fx) * gx * x) over the aligned broadcast of its three
operands. CustomGradientEmbedGrad is its gradient with respect to one of them, and the gradient of that is again the
gradient of L, with the upstream gradient in the place of the operand that was left out.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _eager, _errors, _library, _rule, _slices, _tf_internal

_ROLES = ("fx", "gx", "x")


def _is_skipped(op: Any, index: int) -> bool:
    """Whether nobody asks for the gradient of this input. The eager tape knows; in a graph, pruning sees to it."""
    skipped = getattr(op, "skip_input_indices", None)
    return skipped is not None and index in skipped


def _alignment_attributes(op: Any) -> dict[str, Any]:
    names = ("axis", "all_axes", "fx_gx_manually_stopped")
    return {name: op.get_attr(name) for name in names}


def _gradient_of_form(wrt: str, operands: dict[str, Any], like: Any, zero_x: bool, attributes: dict[str, Any]) -> Any:
    """The gradient of L with respect to `wrt`, which has the shape of `like`. Only that shape is used of `like`."""
    lhs, rhs = (operands[role] for role in _ROLES if role != wrt)
    shape = _eager.shape_tensor_of(like)
    return _library.custom_gradient_embed_grad(lhs, rhs, shape, wrt=wrt, zero_x=zero_x, **attributes)


@tf.RegisterGradient("CustomGradientEmbed")
def _custom_gradient_embed(op: Any, dy: Any) -> Sequence[Any]:
    """The embedded form is fx + sum over pairs of gx * (x - stop(x)), of which the value is fx alone."""
    inputs = list(op.inputs)
    upstream, dy = dy, tf.convert_to_tensor(_slices.to_dense(dy))
    if not dy.shape.is_compatible_with(inputs[0].shape):
        raise ValueError(_errors.UPSTREAM_SHAPE.format(api="embed_gradient", value=inputs[0].shape, upstream=dy.shape))
    pairs = (len(inputs) - 1) // 2
    attributes = _alignment_attributes(op)
    manually_stopped = attributes["fx_gx_manually_stopped"]
    is_dense = manually_stopped or attributes["axis"] or attributes["all_axes"]
    dgx: list[Any] = [None] * pairs
    dx: list[Any] = [None] * pairs
    for i in range(pairs):
        gx_index, x_index = 1 + i, 1 + pairs + i
        gx, x = inputs[gx_index], inputs[x_index]
        if manually_stopped and not _is_skipped(op, gx_index):
            # Zero, but not without a derivative: mixed second derivatives go through it.
            dgx[i] = _gradient_of_form("gx", {"fx": dy, "x": x}, like=gx, zero_x=True, attributes=attributes)
        if not _is_skipped(op, x_index):
            dx[i] = None if is_dense else _slices.of_embedded(upstream, inputs[0].shape, gx, x.shape)
            if dx[i] is None:
                dx[i] = _gradient_of_form("x", {"fx": dy, "gx": gx}, like=x, zero_x=False, attributes=attributes)
    return [dy if manually_stopped else None, *dgx, *dx]


@tf.RegisterGradient("CustomGradientEmbedGrad")
def _custom_gradient_embed_grad(op: Any, upstream: Any) -> Sequence[Any]:
    """Differentiates the gradient of L: the same op, with the roles exchanged."""
    attributes = _alignment_attributes(op)
    wrt = tf.compat.as_str(op.get_attr("wrt"))
    given = [role for role in _ROLES if role != wrt]
    operands = dict(zip(given, op.inputs, strict=False)) | {wrt: tf.convert_to_tensor(upstream)}
    gradients: list[Any] = [None, None, None]  # For lhs, rhs and shape.
    for index, role in enumerate(given):
        stopped = role == "gx" and not attributes["fx_gx_manually_stopped"]
        if not stopped and not _is_skipped(op, index):
            # d(x - stop(x)) = dx: with respect to x itself the form is no longer zero.
            zero_x = op.get_attr("zero_x") and role != "x"
            gradients[index] = _gradient_of_form(role, operands, op.inputs[index], zero_x, attributes)
    return gradients


@tf.RegisterGradient("CustomGradientRule")
def _custom_gradient_rule(op: Any, *dys: Any) -> Sequence[Any]:
    """What the function that the op names returns."""
    if type(op.outputs[0]) is _tf_internal.EagerTensor:
        raise ValueError(_errors.RULE_OUTSIDE_OF_A_GRAPH)
    return _rule.gradients(op.outputs[0].op, dys)  # The op itself: a tape passes an imitation without its graph.


@tf.RegisterGradient("CustomGradientBarrier")
def _custom_gradient_barrier(op: Any, *dys: Any) -> Sequence[Any]:
    """Those of the values; what they wait for has none."""
    return [*dys, *[None] * (len(op.inputs) - len(dys))]


@tf.RegisterGradient("CustomGradientCheckShape")
def _custom_gradient_check_shape(op: Any, dy: Any) -> Sequence[Any]:
    """It hands the gradient on; the shape has none."""
    return [dy, None]
