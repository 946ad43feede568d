"""A `gx` that is a function without arguments: it runs at the call, in eager mode only if a gradient can need it."""

from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, tapes, tf_internal
from tf_cg_ops._src.core.signature import check_takes

_LISTS = (list, tuple)


def called(api: str, gx: Any, x: Any = None) -> Any:
    """`gx` with the results of the functions in it.

    In eager mode with an `x`, a function does not run if no tape or accumulator watches its `x`, which then stands for
    the result: it has the dtype and the shape of a `gx`.
    """
    if not callable(gx):
        if not isinstance(gx, _LISTS) or not any(map(callable, gx)):
            return gx
        xs = [None] * len(gx) if x is None else convert.to_pairs(api, gx, x)[1]
        return [called(api, *pair) for pair in zip(gx, xs, strict=True)]
    code = getattr(gx, "__code__", None)  # Nearly always there, and a signature takes longer.
    if code is None or code.co_argcount + code.co_kwonlyargcount:
        must_take = f"{api}: gx must be a Tensor or a function without arguments"
        check_takes(gx, [], {}, must_take, "Bind its arguments, as in lambda: f(x).")
    is_lazy = x is not None and tf.executing_eagerly()
    if is_lazy and not any(map(_may_have_gradient, x if isinstance(x, _LISTS) else [x])):
        return x
    value = gx()
    items = value if isinstance(value, _LISTS) else [value]
    for item in filter(callable, items):
        raise convert.not_convertible(api, "gx", item)
    if is_lazy:  # A tape would keep what a result was computed from as long as the result.
        items = [tapes.unrecorded_identity(item) if isinstance(item, tf.Tensor) else item for item in items]
    return items if isinstance(value, _LISTS) else items[0]


def _may_have_gradient(x: Any) -> bool:
    if isinstance(x, tf.Tensor):
        return bool(tf_internal.possible_gradient_types([x]))
    return hasattr(x, "dtype") and tf_internal.could_possibly_record()  # A tape can watch a variable when it is read.
