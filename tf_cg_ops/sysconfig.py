"""The op libraries: their paths, for programs that load them without Python, and whether the GPU kernels run."""

import ctypes

from tf_cg_ops._src.core import library, tf_internal


@tf_internal.autograph_artifact
def get_lib() -> str:
    """Returns the path of the op library.

    A program without Python loads it before it opens a SavedModel that holds the ops: with `TF_LoadLibrary` from C,
    with `tensorflow::Env::LoadDynamicLibrary` from C++. Of TensorFlow it needs `libtensorflow_framework.so.2` alone.

    Relation to TensorFlow: `tf.sysconfig.get_lib()` gives the folder of TensorFlow's own libraries; this gives a file
    of `tf_cg_ops`.

    >>> import tf_cg_ops as cg
    >>> cg.sysconfig.get_lib().endswith("_ops.so")
    True

    Returns:
      The absolute path of the shared library, a str.
    """
    return str(library.PATH)


def get_lib_with_cc() -> str:
    """Returns the path of the library that holds the parts which need `libtensorflow_cc.so.2`.

    These are the kernels for XLA, and the gradients that `TF_AddGradients` needs of ops that stand in the graph itself.
    Inside of functions, as in the signatures of a SavedModel, `TF_AddGradients` needs the op library alone. A program
    without Python loads it after the op library (`get_lib`). TensorFlow's packages for Python have `libtensorflow_cc`;
    its packages for C do not.

    >>> import tf_cg_ops as cg
    >>> cg.sysconfig.get_lib_with_cc().endswith("_ops_with_cc.so")
    True

    Returns:
      The absolute path of the shared library, a str.
    """
    return str(library.PATH_WITH_CC)


def gpu_kernels() -> str:
    """Returns whether the CUDA kernels of the op library run in this process, or why not.

    Where they do not, the ops run on GPUs all the same, from built-in ops: gradients are equal, with more passes over
    memory. The log says so, too, once in a process, when the first of them is computed on a GPU.

    Relation to TensorFlow: `tf.sysconfig.get_build_info()` tells how TensorFlow was built; this also asks the driver.

    >>> import tf_cg_ops as cg
    >>> isinstance(cg.sysconfig.gpu_kernels(), str)
    True

    Returns:
      "built and usable", or the reason why the kernels cannot run, a str: the library was built without nvcc, there is
      no driver or one that is too old, there is no GPU, or there is no code for one of them.
    """
    why = ctypes.CDLL(get_lib()).tf_cg_ops_why_no_gpu_kernels
    why.restype = ctypes.c_char_p
    reason: str = why().decode()
    return reason or "built and usable"
