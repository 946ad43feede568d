"""Keeps the residuals of Python functions as long as a tape or a graph holds the token of their call.

Python's garbage collector cannot know when a graph no longer needs them: a run can end without a gradient, with an
error, or between two steps of a loop. A token is a tensor, and TensorFlow frees it in all these cases.
"""

import atexit
import ctypes
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import library, tf_internal

# PyDLL does not release the interpreter lock, and these functions are too quick to need that.
_library = ctypes.PyDLL(str(library.PATH))
_library.tf_cg_ops_take_released_token.restype = ctypes.c_int64
_library.tf_cg_ops_token_is_live.argtypes = [ctypes.c_int64]

# Without a lock: each access is one operation of the dictionary, and `_release` can interrupt it in the same thread.
_kept: dict[int, Any] = {}


def new_token() -> tuple[tf.Tensor, tf.Tensor]:
    """A token for one call, and its number."""
    with tf_internal.stop_recording():
        token, number = library.custom_gradient_token(tf.constant([], tf.int64))
    return token, number


def keep(number: int, residuals: Any) -> None:
    """Keeps residuals until the token of this number is gone. Without a gradient, it can be gone already."""
    _release()
    _kept[number] = residuals
    if not _library.tf_cg_ops_token_is_live(number):
        _kept.pop(number, None)


def find(number: int) -> Any:
    """The residuals under this number, whose token must be alive."""
    return _kept[number]


# A token can die in any thread, even in one that must not wait for Python. So a pending call releases the residuals
# soon after, in the main thread; if that is busy, the next call of `keep` does it.
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
# Tokens can outlive the interpreter, which then takes no more pending calls.
atexit.register(_library.tf_cg_ops_on_released_token, None, None)
