"""Custom gradients for TensorFlow that are data in the graph.

Importing the package registers its ops and their gradients: a SavedModel that holds them then loads.
"""

from . import _gradients as _gradients
from . import compat as compat
from . import sysconfig as sysconfig
from ._embed import embed_gradient as embed_gradient
from ._version import __version__ as __version__

__all__ = ["__version__", "compat", "embed_gradient", "sysconfig"]
