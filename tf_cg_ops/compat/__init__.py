"""The upstream functions' own signatures, over the same op: change one import and keep the calls."""

from . import bayesflow as bayesflow
from . import tfp_math as tfp_math

__all__ = ["bayesflow", "tfp_math"]
