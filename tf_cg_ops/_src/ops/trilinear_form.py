"""The gradients of the form L(fx, gx, x) = sum(conj(fx) * gx * x) over the aligned broadcast of its three operands.

CustomGradientEmbedGrad computes the gradient of L with respect to one operand from the other two. The gradient of that
op is again a gradient of L, with the upstream gradient instead of the missing operand.
"""

from typing import Any

from tf_cg_ops._src.core import library
from tf_cg_ops._src.embed_gradient.vjp import shape_tensor_of

ROLES = ("fx", "gx", "x")


def roles_of_operands(wrt: str) -> list[str]:
    """The roles of `lhs` and `rhs` in the gradient with respect to `wrt`."""
    return [role for role in ROLES if role != wrt]


def is_skipped(op: Any, index: int) -> bool:
    """Whether the gradient of this input is not needed. Only eager tapes know; in a graph, pruning removes it."""
    skipped = getattr(op, "skip_input_indices", None)
    return skipped is not None and index in skipped


def alignment_attributes(op: Any) -> dict[str, Any]:
    """The attributes of both ops that decide how the operands are aligned."""
    return {name: op.get_attr(name) for name in ("axis", "all_axes", "fx_gx_manually_stopped")}


def gradient(wrt: str, operands: dict[str, Any], like: Any, zero_x: bool, attributes: dict[str, Any]) -> Any:
    """The gradient of L with respect to `wrt`, in the shape of `like`. Only the shape of `like` is read."""
    lhs, rhs = (operands[role] for role in roles_of_operands(wrt))
    shape = shape_tensor_of(like)
    return library.custom_gradient_embed_grad(lhs, rhs, shape, wrt=wrt, zero_x=zero_x, **attributes)
