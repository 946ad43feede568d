"""Custom gradients for TensorFlow that are data in the graph.

>>> import tensorflow as tf
>>> import tf_cg_ops as cg
>>> @cg.custom_gradient
... def square(x):
...     return x**2, lambda dy: dy * x  # Wrong: the derivative is 2 * x.
>>> report = cg.testing.audit(square, [tf.constant([1.0, 2.0])])
>>> report.rows[0].detail
'The ratio is 0.5 everywhere, so a factor is wrong.'

Begin with one of these. `help` of each shows an example first.

- `custom_gradient`: a function that returns its value together with its gradient function.
- `straight_through`: a rounding, sign or spike that you can train through.
- `fake_quant`: weights and activations rounded as an int8 model rounds them.
- `embed_gradient`: a value and its derivative, both as Tensors.
- `recompute_grad` and `scan`: training in less memory.
- `numpy_function` and `implicit_root`: gradients of Python code and of what a solver finds.
- `override_gradients`: a model that exists, with other gradients for its ops; `saved_model` does it on disk.
- `testing.check_gradient` and `testing.audit`: whether a gradient is right, or all of them in a model.
- `layers`: the ready-made gradients and `Recompute` for Keras.

Importing the package registers its ops and their gradients, so that you can load a SavedModel that uses them. If Keras
is already imported, it also registers the layers and functions, so that you can load Keras files that use them.
"""

import importlib as _importlib
import typing as _typing

# First: under a TensorFlow that the library was not built for, other imports may fail before its message.
from tf_cg_ops._src.core import library as _library

# isort: split
from tf_cg_ops import compat as compat
from tf_cg_ops import linear as linear
from tf_cg_ops import rules as rules
from tf_cg_ops import sysconfig as sysconfig
from tf_cg_ops._src import layers as _layers
from tf_cg_ops._src import ops as _ops
from tf_cg_ops._src.custom_gradient.custom_jvp import custom_jvp as custom_jvp
from tf_cg_ops._src.custom_gradient.custom_vjp import custom_vjp as custom_vjp
from tf_cg_ops._src.custom_gradient.decorator import custom_gradient as custom_gradient
from tf_cg_ops._src.custom_gradient.pass_through import grad_pass_through as grad_pass_through
from tf_cg_ops._src.embed_gradient.api import embed_gradient as embed_gradient
from tf_cg_ops._src.external.numpy_function import numpy_function as numpy_function
from tf_cg_ops._src.memory.checkpoint_name import checkpoint_name as checkpoint_name
from tf_cg_ops._src.memory.recompute_grad import recompute_grad as recompute_grad
from tf_cg_ops._src.memory.scan import scan as scan
from tf_cg_ops._src.memory.while_loop import while_loop as while_loop
from tf_cg_ops._src.ready_made.clip import clip_gradient as clip_gradient
from tf_cg_ops._src.ready_made.fake_quant import fake_quant as fake_quant
from tf_cg_ops._src.ready_made.implicit_root import implicit_fixed_point as implicit_fixed_point
from tf_cg_ops._src.ready_made.implicit_root import implicit_minimum as implicit_minimum
from tf_cg_ops._src.ready_made.implicit_root import implicit_root as implicit_root
from tf_cg_ops._src.ready_made.scale import reverse_gradient as reverse_gradient
from tf_cg_ops._src.ready_made.scale import scale_gradient as scale_gradient
from tf_cg_ops._src.ready_made.straight_through import straight_through as straight_through
from tf_cg_ops._src.ready_made.watch import watch_gradient as watch_gradient
from tf_cg_ops._src.rewrite.capture import capture as capture
from tf_cg_ops._src.rewrite.override_gradients import override_gradients as override_gradients
from tf_cg_ops._version import __version__ as __version__

if _typing.TYPE_CHECKING:
    from tf_cg_ops import layers as layers
    from tf_cg_ops import saved_model as saved_model
    from tf_cg_ops import testing as testing
else:

    def __getattr__(name: str) -> _typing.Any:
        """Imports a subpackage at its first use. Type checkers would take any name for an attribute."""
        if name in _LAZY:
            return _importlib.import_module(f".{name}", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "__version__",
    "capture",
    "checkpoint_name",
    "clip_gradient",
    "compat",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "embed_gradient",
    "fake_quant",
    "grad_pass_through",
    "implicit_fixed_point",
    "implicit_minimum",
    "implicit_root",
    "layers",
    "linear",
    "numpy_function",
    "override_gradients",
    "recompute_grad",
    "reverse_gradient",
    "rules",
    "saved_model",
    "scale_gradient",
    "scan",
    "straight_through",
    "sysconfig",
    "testing",
    "watch_gradient",
    "while_loop",
]

# Imported at their first use: `layers` imports Keras, and most programs use none of the others. A function that a file
# of Keras may name must not be among them.
_LAZY = ("layers", "saved_model", "testing")

_layers.register_with_loaded_keras()
del _layers, _library, _ops  # `help` would list them.


def __dir__() -> list[str]:
    """The names, also of subpackages that are not imported yet."""
    return sorted({*globals(), *_LAZY})
