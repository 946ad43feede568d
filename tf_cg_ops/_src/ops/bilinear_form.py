"""The gradients of the form L(fx, gx, x) = sum(conj(fx) * gx * x) over the aligned broadcast of its three operands.

CustomGradientEmbedGrad computes the gradient of L with respect to one of them. The gradient of that op is again a
gradient of L, with the upstream gradient in the place of the operand that was left out.
"""

from typing import Any

from tf_cg_ops._src.core import library
from tf_cg_ops._src.embed_gradient import eager

ROLES = ("fx", "gx", "x")


def is_skipped(op: Any, index: int) -> bool:
    """Whether nobody asks for the gradient of this input. The eager tape knows; in a graph, pruning sees to it."""
    skipped = getattr(op, "skip_input_indices", None)
    return skipped is not None and index in skipped


def alignment_attributes(op: Any) -> dict[str, Any]:
    """The attributes that decide how the operands are aligned, which both ops have."""
    names = ("axis", "all_axes", "fx_gx_manually_stopped")
    return {name: op.get_attr(name) for name in names}


def gradient(wrt: str, operands: dict[str, Any], like: Any, zero_x: bool, attributes: dict[str, Any]) -> Any:
    """The gradient of L with respect to `wrt`, which has the shape of `like`. Only that shape is used of `like`."""
    lhs, rhs = (operands[role] for role in ROLES if role != wrt)
    shape = eager.shape_tensor_of(like)
    return library.custom_gradient_embed_grad(lhs, rhs, shape, wrt=wrt, zero_x=zero_x, **attributes)
