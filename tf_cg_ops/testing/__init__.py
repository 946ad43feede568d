"""Checks custom gradients against numeric differentiation, in every mode in which TensorFlow can run a function."""

from ._check import check_gradient as check_gradient
from ._report import Comparison as Comparison
from ._report import GradientReport as GradientReport

__all__ = ["Comparison", "GradientReport", "check_gradient"]
