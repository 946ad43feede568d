"""SavedModels with embedded gradients: what is in them, and how to rid them of this library's ops."""

from ._compare import Comparison as Comparison
from ._inspect import EmbeddedGradient as EmbeddedGradient
from ._inspect import inspect as inspect
from ._strip import StripReport as StripReport
from ._strip import strip as strip

__all__ = ["Comparison", "EmbeddedGradient", "StripReport", "inspect", "strip"]
