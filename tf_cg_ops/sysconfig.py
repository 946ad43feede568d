"""Where the op libraries are, for programs that load them without Python."""

from . import _library


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
    return str(_library.PATH)


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
    return str(_library.PATH_WITH_CC)
