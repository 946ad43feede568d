"""Solvers of linear systems that need no matrix: for `linear_solve` of the implicit functions, and by themselves."""

from tf_cg_ops._src.linear.conjugate_gradient import cg as cg
from tf_cg_ops._src.linear.gmres import gmres as gmres

__all__ = ["cg", "gmres"]
