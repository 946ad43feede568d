"""The paths of the op libraries, for programs without Python, and whether the GPU kernels run."""

import ctypes

from tf_cg_ops._src.core import library, tf_internal

__all__ = ["get_library", "get_library_with_cc", "gpu_kernels"]


@tf_internal.autograph_artifact
def get_library() -> str:
    """Returns the path of the op library.

    >>> import tf_cg_ops as cg
    >>> cg.sysconfig.get_library().endswith("_ops.so")
    True

    A program without Python must load the library before it opens a SavedModel with the ops: with `TF_LoadLibrary` in
    C, or `tensorflow::Env::LoadDynamicLibrary` in C++. Of TensorFlow's libraries it only needs
    `libtensorflow_framework.so.2`.

    Returns:
      The absolute path of the shared library, a str. (`tf.sysconfig.get_lib()` returns a folder instead.)
    """
    return str(library.PATH)


@tf_internal.autograph_artifact
def get_library_with_cc() -> str:
    """Returns the path of the second library, with the parts that need `libtensorflow_cc.so.2`.

    >>> import tf_cg_ops as cg
    >>> cg.sysconfig.get_library_with_cc().endswith("_ops_with_cc.so")
    True

    It contains the kernels for XLA, and the gradients that `TF_AddGradients` uses for ops in the graph itself. For ops
    inside functions, as in the signatures of a SavedModel, `TF_AddGradients` only needs the op library
    (`get_library`). A program without Python loads this library after the op library. TensorFlow's packages for Python
    include `libtensorflow_cc`, but its packages for C do not.

    Returns:
      The absolute path of the shared library, a str.
    """
    return str(library.PATH_WITH_CC)


@tf_internal.autograph_artifact
def gpu_kernels() -> str:
    """Says whether the CUDA kernels of the op library run in this process, and if not, why.

    >>> import tf_cg_ops as cg
    >>> isinstance(cg.sysconfig.gpu_kernels(), str)
    True

    If they do not, GPUs run built-in ops instead. Gradients are equal up to rounding, and take more passes over memory.
    The log says so once per process, when a GPU computes the first gradient.

    Returns:
      "built and usable", or a str with the reason: the library was built without nvcc, the driver is missing or too
        old, no GPU was found, or the library has no code for one of the GPUs.

    Unlike `tf.sysconfig.get_build_info()`, it also asks the driver.
    """
    why_no_gpu_kernels = ctypes.CDLL(get_library()).tf_cg_ops_why_no_gpu_kernels
    why_no_gpu_kernels.restype = ctypes.c_char_p
    reason: str = why_no_gpu_kernels().decode()
    return reason or "built and usable"
