"""The paths of the op libraries, for programs without Python, and whether the GPU kernels run."""

import ctypes

from tf_cg_ops._src.core import library, tf_internal


@tf_internal.autograph_artifact
def get_lib() -> str:
    """Returns the path of the op library.

    >>> import tf_cg_ops as cg
    >>> cg.sysconfig.get_lib().endswith("_ops.so")
    True

    A program without Python loads the library before it opens a SavedModel with the ops: with `TF_LoadLibrary` in C,
    with `tensorflow::Env::LoadDynamicLibrary` in C++. Of TensorFlow the library needs only
    `libtensorflow_framework.so.2`.

    Returns:
      The absolute path of the shared library, a str.

    Compared with TensorFlow: `tf.sysconfig.get_lib()` returns the folder of TensorFlow's own libraries; this returns a
    file of `tf_cg_ops`.
    """
    return str(library.PATH)


def get_lib_with_cc() -> str:
    """Returns the path of the library with the parts that need `libtensorflow_cc.so.2`.

    >>> import tf_cg_ops as cg
    >>> cg.sysconfig.get_lib_with_cc().endswith("_ops_with_cc.so")
    True

    These parts are the kernels for XLA, and the gradients of `TF_AddGradients` for ops in the graph itself. For ops
    inside functions, as in the signatures of a SavedModel, `TF_AddGradients` needs only the op library (`get_lib`). A
    program without Python loads this library after the op library. TensorFlow's packages for Python have
    `libtensorflow_cc`; its packages for C do not.

    Returns:
      The absolute path of the shared library, a str.
    """
    return str(library.PATH_WITH_CC)


def gpu_kernels() -> str:
    """Returns whether the CUDA kernels of the op library run in this process, or why not.

    >>> import tf_cg_ops as cg
    >>> isinstance(cg.sysconfig.gpu_kernels(), str)
    True

    If they do not, the ops still run on GPUs, with built-in ops: gradients are equal, with more passes over memory. The
    log says so once in a process, when a GPU computes the first gradient.

    Returns:
      "built and usable", or the reason why the kernels cannot run, a str: the library was built without nvcc, there is
      no driver or it is too old, there is no GPU, or the library has no code for one of the GPUs.

    Compared with TensorFlow: `tf.sysconfig.get_build_info()` tells how TensorFlow was built; this also asks the driver.
    """
    why_no_gpu_kernels = ctypes.CDLL(get_lib()).tf_cg_ops_why_no_gpu_kernels
    why_no_gpu_kernels.restype = ctypes.c_char_p
    reason: str = why_no_gpu_kernels().decode()
    return reason or "built and usable"
