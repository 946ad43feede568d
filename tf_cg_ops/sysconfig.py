"""Where the op library is, for programs that load it without Python."""

from . import _library, _tf_internal


@_tf_internal.autograph_artifact
def get_lib() -> str:
    """Returns the path of the op library.

    A program without Python loads it before it opens a SavedModel that holds the ops: with `TF_LoadLibrary` from C,
    with `tensorflow::Env::LoadDynamicLibrary` from C++.

    Relation to TensorFlow: `tf.sysconfig.get_lib()` gives the folder of TensorFlow's own libraries; this gives the
    one file of `tf_cg_ops`.

    >>> import tf_cg_ops as cg
    >>> cg.sysconfig.get_lib().endswith("_ops.so")
    True

    Returns:
      The absolute path of the shared library, a str.
    """
    return str(_library.PATH)
