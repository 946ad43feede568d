"""Opens the op libraries: the only module that does, and only after it has checked that they fit TensorFlow."""

import importlib.util
import pathlib
from types import ModuleType

import tensorflow as tf

from tf_cg_ops._src import errors

PATH = pathlib.Path(__file__).parents[2] / "_ops.so"
# XLA kernels, and gradients for TF_AddGradients: they need libtensorflow_cc, which TensorFlow's Python package has.
PATH_WITH_CC = PATH.with_name("_ops_with_cc.so")


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _check_version() -> None:
    """Raises ImportError unless TensorFlow's minor version is the one that the library was compiled against."""
    # A library opened under another minor version may fail with an undefined symbol, or worse, not fail at once.
    if not PATH.exists() or importlib.util.find_spec("tf_cg_ops._build_info") is None:
        in_sources = (PATH.parents[1] / "pyproject.toml").exists()
        message = errors.IMPORT_FROM_SOURCES if in_sources else errors.IMPORT_NOT_BUILT
        raise ImportError(message.format(path=PATH))
    from tf_cg_ops import _build_info

    if _minor(tf.__version__) != _minor(_build_info.TENSORFLOW_VERSION):
        raise ImportError(
            "tf_cg_ops: the op library does not fit this TensorFlow; expected TensorFlow "
            f"{_minor(_build_info.TENSORFLOW_VERSION)} (what it was compiled against, "
            f"{_build_info.TENSORFLOW_DISTRIBUTION} {_build_info.TENSORFLOW_VERSION}), got TensorFlow "
            f"{tf.__version__}. Install {_build_info.TENSORFLOW_DISTRIBUTION} "
            f"{_minor(_build_info.TENSORFLOW_VERSION)}, or build tf_cg_ops against another one of 2.18 to "
            "2.21, in its source folder, with: pip install --no-build-isolation --force-reinstall --no-deps "
            "."
        )


def _open() -> ModuleType:
    _check_version()
    ops = tf.load_op_library(str(PATH))
    tf.load_library(str(PATH_WITH_CC))
    return ops


_ops = _open()
custom_gradient_barrier = _ops.custom_gradient_barrier
custom_gradient_check_shape = _ops.custom_gradient_check_shape
custom_gradient_embed = _ops.custom_gradient_embed
custom_gradient_embed_grad = _ops.custom_gradient_embed_grad
custom_gradient_rule = _ops.custom_gradient_rule
