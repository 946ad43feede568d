"""Opens the op libraries, after checking that they fit this TensorFlow. No other module opens them."""

import importlib.util
import pathlib
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf

PATH = pathlib.Path(__file__).parents[2] / "_ops.so"
# The XLA kernels and the gradients for TF_AddGradients need libtensorflow_cc, which comes with the Python package.
PATH_WITH_CC = PATH.with_name("_ops_with_cc.so")
SUPPORTED_TENSORFLOW = "2.19 to 2.22"


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _check_version() -> None:
    """Raises ImportError unless TensorFlow's minor version is the one that the library was compiled against."""
    has_build_info = importlib.util.find_spec("tf_cg_ops._build_info") is not None
    if not (PATH.exists() and has_build_info):
        missing = PATH.with_name("_build_info.py") if PATH.exists() else PATH
        if (PATH.parents[1] / "pyproject.toml").exists():
            raise ImportError(
                f"tf_cg_ops: Python imports the source folder, which is not built ({missing} is missing), instead of "
                "the installed package. Run Python from another folder, or build in place with: pip install -e ."
            )
        raise ImportError(
            f"tf_cg_ops: the op library is missing ({missing}). Build it against the installed TensorFlow with: pip "
            "install ."
        )
    from tf_cg_ops import _build_info

    distribution, compiled_against = _build_info.TENSORFLOW_DISTRIBUTION, _build_info.TENSORFLOW_VERSION
    minor = _minor(compiled_against)
    # With another minor version the library can fail with an undefined symbol or, worse, later.
    if _minor(tf.__version__) != minor:
        raise ImportError(
            f"tf_cg_ops: the op library needs TensorFlow {minor} (it was compiled against {distribution} "
            f"{compiled_against}), got TensorFlow {tf.__version__}. Install {distribution} {minor}, or rebuild "
            f"tf_cg_ops against another version from {SUPPORTED_TENSORFLOW}, in its source folder, with: pip install "
            "--force-reinstall --no-deps ."
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
custom_gradient_token = _ops.custom_gradient_token

# What TensorFlow puts around the message of an op in eager mode.
_AROUND_A_MESSAGE = re.compile(r"^\{\{function_node \S+\}\} | \[Op:\w+\](?: name:.*)?$", re.DOTALL)


def run_op(op: Callable[..., tf.Tensor], *inputs: Any, **attributes: Any) -> tf.Tensor:
    """Runs an op of the library, and strips what TensorFlow adds to its error messages in eager mode."""
    try:
        return op(*inputs, **attributes)
    except tf.errors.OpError as error:
        message = _AROUND_A_MESSAGE.sub("", error.message)
        raise type(error)(error.node_def, error.op, message) from None
