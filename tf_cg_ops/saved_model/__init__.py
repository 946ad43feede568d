"""Works on SavedModels: `inspect` and `compare` look at them, the other functions write changed copies.

`add_gradients` adds signatures with gradients, `override` and `adopt` change gradients, `strip` removes this library's
ops.
"""

from ._add_gradients import AddGradientsReport as AddGradientsReport
from ._add_gradients import SignatureTensor as SignatureTensor
from ._add_gradients import add_gradients as add_gradients
from ._adopt import AdoptedGradient as AdoptedGradient
from ._adopt import AdoptReport as AdoptReport
from ._adopt import adopt as adopt
from ._compare import Comparison as Comparison
from ._compare import compare as compare
from ._inspect import EmbeddedGradient as EmbeddedGradient
from ._inspect import inspect as inspect
from ._override import OverrideReport as OverrideReport
from ._override import override as override
from ._strip import StripReport as StripReport
from ._strip import strip as strip

__all__ = [
    "AddGradientsReport",
    "AdoptReport",
    "AdoptedGradient",
    "Comparison",
    "EmbeddedGradient",
    "OverrideReport",
    "SignatureTensor",
    "StripReport",
    "add_gradients",
    "adopt",
    "compare",
    "inspect",
    "override",
    "strip",
]
