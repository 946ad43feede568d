"""The `custom_gradient` of TensorFlow Probability and of TensorFlow 1: change the import and keep your calls."""

from . import bayesflow as bayesflow
from . import tfp_math as tfp_math

__all__ = ["bayesflow", "tfp_math"]
