"""Custom gradients for TensorFlow that are data in the graph.

Importing the package registers its ops and their gradients: a SavedModel that holds them then loads. A Keras that is
loaded already is told about the layers and functions: a model file that holds them then loads, too.
"""

import importlib as _importlib
import typing as _typing

# Before all that may not even be imported under a TensorFlow which the library was not built for.
from . import _library as _library  # isort: split

from . import _gradients as _gradients
from . import _keras as _keras
from . import _vectorize as _vectorize
from . import compat as compat
from . import saved_model as saved_model
from . import sysconfig as sysconfig
from . import testing as testing
from ._clipping import clip_gradient as clip_gradient
from ._decorator import custom_gradient as custom_gradient
from ._embed import embed_gradient as embed_gradient
from ._from_numpy import from_numpy as from_numpy
from ._implicit_root import implicit_root as implicit_root
from ._scaling import reverse_gradient as reverse_gradient
from ._scaling import scale_gradient as scale_gradient
from ._straight_through import straight_through as straight_through
from ._variants import custom_vjp as custom_vjp
from ._variants import grad_pass_through as grad_pass_through
from ._variants import recompute_grad as recompute_grad
from ._version import __version__ as __version__

if _typing.TYPE_CHECKING:
    from . import layers as layers

__all__ = [
    "__version__",
    "clip_gradient",
    "compat",
    "custom_gradient",
    "custom_vjp",
    "embed_gradient",
    "from_numpy",
    "grad_pass_through",
    "implicit_root",
    "layers",
    "recompute_grad",
    "reverse_gradient",
    "saved_model",
    "scale_gradient",
    "straight_through",
    "sysconfig",
    "testing",
]

_keras.loaded()


def __getattr__(name: str) -> _typing.Any:
    """Imports `layers`, and with it Keras, where it is first used."""
    if name == "layers":
        return _importlib.import_module(".layers", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
