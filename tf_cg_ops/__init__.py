"""Custom gradients for TensorFlow that are data in the graph.

Importing the package registers its ops and their gradients: a SavedModel that holds them then loads.
"""

from . import _gradients as _gradients
from . import _vectorize as _vectorize
from . import compat as compat
from . import sysconfig as sysconfig
from ._decorator import custom_gradient as custom_gradient
from ._embed import embed_gradient as embed_gradient
from ._variants import custom_vjp as custom_vjp
from ._variants import grad_pass_through as grad_pass_through
from ._variants import recompute_grad as recompute_grad
from ._version import __version__ as __version__

__all__ = [
    "__version__",
    "compat",
    "custom_gradient",
    "custom_vjp",
    "embed_gradient",
    "grad_pass_through",
    "recompute_grad",
    "sysconfig",
]
