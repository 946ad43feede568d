"""A `gx` that is a function without arguments: it runs at the call, in eager mode only if a gradient can need it."""

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, tapes, text, tf_internal
from tf_cg_ops._src.keras import dispatch

_LISTS = (list, tuple)


def called(api: str, fx: Any, gx: Any, x: Any, fx_gx_manually_stopped: Any) -> Any:
    """`gx` with the results of the functions in it.

    In eager mode, `x` stands for what no tape or accumulator needs: it has the dtype and the shape of a `gx`.
    """
    items = gx if isinstance(gx, _LISTS) else [gx]
    if not any(map(callable, items)):
        return gx
    for function in filter(callable, items):
        if not _takes_no_arguments(function):
            raise TypeError(
                f"{api}: gx must be a Tensor or a function without arguments, got {text.describe(function)}, which "
                "takes arguments. Bind them, as in lambda: f(x)."
            )
    is_differentiated = convert.to_stopped(api, fx_gx_manually_stopped) and tf_internal.could_possibly_record()
    if not tf.executing_eagerly() or is_differentiated or dispatch.package_of_keras_tensors((fx, gx, x)):
        return [_call(api, g) if callable(g) else g for g in gx] if isinstance(gx, _LISTS) else _call(api, gx)
    if not isinstance(gx, _LISTS):
        is_needed = any(map(_may_have_gradient, x if isinstance(x, _LISTS) else [x]))
        return _unrecorded(_call(api, gx)) if is_needed else x
    gx, x, _ = convert.to_pairs(api, gx, x)
    pairs = zip(gx, x, strict=True)
    return [(_unrecorded(_call(api, g)) if _may_have_gradient(t) else t) if callable(g) else g for g, t in pairs]


def _call(api: str, function: Callable[[], Any]) -> Any:
    value = function()
    for item in value if isinstance(value, _LISTS) else [value]:
        if callable(item):
            raise convert.not_convertible(api, "gx", item)
    return value


def _unrecorded(gx: Any) -> Any:
    """A copy that shares the buffer: tapes would keep what a result was computed from as long as the result."""
    if isinstance(gx, _LISTS):
        return [_unrecorded(item) for item in gx]
    return tapes.unrecorded_identity(gx) if isinstance(gx, tf.Tensor) else gx


def _may_have_gradient(x: Any) -> bool:
    if isinstance(x, tf.Tensor):
        return bool(tf_internal.possible_gradient_types([x]))
    return hasattr(x, "dtype") and tf_internal.could_possibly_record()  # A tape can watch a variable when it is read.


def _takes_no_arguments(function: Callable[..., Any]) -> bool:
    code = getattr(function, "__code__", None)
    if code is not None and not code.co_argcount + code.co_kwonlyargcount:
        return True
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # Some callables written in C have no signature.
        pass
    return True
