"""The residuals of Python functions, kept as long as a tape or a graph holds the token of the call that left them.

The garbage collector of Python cannot know when a graph needs them no more: a run may end without a gradient, by an
error, or between two steps of a loop. A token is a tensor, which TensorFlow frees in all these cases.
"""

import atexit
import ctypes
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import library, tf_internal

# Its functions are quick, and need not release the lock of the interpreter.
_library = ctypes.PyDLL(str(library.PATH))
_library.tf_cg_ops_take_released_token.restype = ctypes.c_int64
_library.tf_cg_ops_token_is_live.argtypes = [ctypes.c_int64]

# No lock: each access is one operation of the dictionary, and `_release` may interrupt any of them in this very thread.
_kept: dict[int, Any] = {}


def new_token() -> tuple[tf.Tensor, tf.Tensor]:
    """A token for one call, and its number."""
    with tf_internal.stop_recording():
        token, number = library.custom_gradient_token(tf.constant([], tf.int64))
    return token, number


def keep(number: int, residuals: Any) -> None:
    """Keeps residuals until the token of this number is gone, which it may be already: nobody asks for a gradient."""
    _release()
    _kept[number] = residuals
    if not _library.tf_cg_ops_token_is_live(number):
        _kept.pop(number, None)


def find(number: int) -> Any:
    """The residuals under this number, whose token lives."""
    return _kept[number]


# A token dies in any thread, also in one that must not wait for Python. A pending call runs soon after, in the main
# thread; if that is busy, the next call of a Python function releases as well.
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
def _release_pending(_: Any) -> int:
    _release()
    return 0


def _release() -> None:
    first = ctypes.c_int64()
    while count := _library.tf_cg_ops_take_released_token(ctypes.byref(first)):
        released = range(first.value, first.value + count)
        for number in released if count <= len(_kept) else [n for n in list(_kept) if n in released]:
            _kept.pop(number, None)


_library.tf_cg_ops_on_released_token(
    ctypes.cast(ctypes.pythonapi.Py_AddPendingCall, ctypes.c_void_p), ctypes.cast(_release_pending, ctypes.c_void_p)
)
# The interpreter takes no pending calls after its end, and tokens may outlive it.
atexit.register(_library.tf_cg_ops_on_released_token, None, None)
