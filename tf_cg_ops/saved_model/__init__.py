"""SavedModels with embedded gradients: `inspect` lists them, `strip` removes this library's ops."""

from ._compare_models import Comparison as Comparison
from ._inspect import EmbeddedGradient as EmbeddedGradient
from ._inspect import inspect as inspect
from ._strip import StripReport as StripReport
from ._strip import strip as strip

__all__ = ["Comparison", "EmbeddedGradient", "StripReport", "inspect", "strip"]
