"""Solvers for linear systems `A(x) = b` that need no matrix. They also fit `linear_solve` of the implicit functions."""

from tf_cg_ops._src.linear.conjugate_gradient import cg as cg
from tf_cg_ops._src.linear.gmres import gmres as gmres

__all__ = ["cg", "gmres"]
