"""Checks custom gradients: one function in several modes, or all in a model."""

from ._audit import audit as audit
from ._audit_nonfinite import FirstNonfinite as FirstNonfinite
from ._audit_report import AuditedGradient as AuditedGradient
from ._audit_report import AuditReport as AuditReport
from ._check import check_gradient as check_gradient
from ._report import GradientComparison as GradientComparison
from ._report import GradientReport as GradientReport
from ._residuals import Residual as Residual
from ._residuals import Residuals as Residuals
from ._residuals import residuals as residuals

__all__ = [
    "AuditReport",
    "AuditedGradient",
    "FirstNonfinite",
    "GradientComparison",
    "GradientReport",
    "Residual",
    "Residuals",
    "audit",
    "check_gradient",
    "residuals",
]
