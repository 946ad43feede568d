"""A `gx` that is a function without arguments: it is called where a gradient is first asked for."""

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, library, tf_internal
from tf_cg_ops._src.embed_gradient import eager
from tf_cg_ops._src.keras import dispatch

_Shapes = tuple[tuple[int, ...], ...]


def is_deferred(gx: Any) -> bool:
    """Whether `gx`, or one in a list of them, is a function."""
    return any(map(callable, gx)) if isinstance(gx, (list, tuple)) else callable(gx)


def call_if_due(api: str, fx: Any, gx: Any, x: Any, stopped: Any) -> Any:
    """The value of `gx`, or `gx` itself where calling it can wait."""
    for function in gx if isinstance(gx, (list, tuple)) else [gx]:
        if callable(function) and not _takes_nothing(function):
            raise TypeError(
                f"{api}: gx is a function that takes arguments; expected a Tensor or a function without "
                f"arguments, got {convert.describe(function)}. Bind them, as in lambda: f(x)."
            )
    # What is differentiated itself has to be there when it is recorded.
    is_differentiated = convert.to_bool(api, stopped) and tf_internal.could_possibly_record()
    if tf.executing_eagerly() and not is_differentiated and not dispatch.package_of_keras_tensors((fx, x)):
        return gx
    value = [g() if callable(g) else g for g in gx] if isinstance(gx, (list, tuple)) else gx()
    for one in value if isinstance(value, (list, tuple)) else [value]:
        if callable(one):
            raise convert.not_convertible(api, "gx", one)
    return value


def _takes_nothing(function: Callable[..., Any]) -> bool:
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


def embed(api: str, fx: Any, gx: Any, x: Any, axis: list[int] | None, name: str | None) -> tf.Tensor:
    """embed_gradient in eager mode, where calling `gx` can wait."""
    alone = callable(gx)
    gx_list, x_list, suffixes = convert.to_pairs(api, x if alone else gx, x)
    pairs = range(len(x_list))
    now = [] if alone else [i for i in pairs if not callable(gx_list[i])]
    names = ["fx", *("x" + suffix for suffix in suffixes), *("gx" + suffixes[i] for i in now)]
    fx, *tensors = convert.to_tensors(api, names, [fx, *x_list, *(gx_list[i] for i in now)])
    x_list = tensors[: len(pairs)]
    for i, tensor in zip(now, tensors[len(pairs) :], strict=True):
        gx_list[i] = tensor
    check = _Check(api, fx, x_list, axis)
    if alone:
        kind = [None] * len(pairs) if isinstance(x, (list, tuple)) else None
        answer = _once(lambda: check.values(gx, kind))
        functions: list[Any] = [lambda i=i: answer()[i] for i in pairs]
    else:
        functions = [_once(functools.partial(check.value, g, i)) if callable(g) else g for i, g in enumerate(gx_list)]
    return eager.embed(fx, functions, x_list, axis or [], axis is None, name)


def _once(function: Callable[[], Any]) -> Callable[[], Any]:
    """The function, called but once, however many threads ask."""
    lock, cached = threading.RLock(), functools.cache(function)

    def locked() -> Any:
        with lock:
            return cached()

    return locked


@contextlib.contextmanager
def _outside() -> Iterator[None]:
    """On no tape, and in no graph: a Jacobian asks for a gradient in one, and it is for every later gradient, too.

    Where no other tape records, one that the function opens does.
    """
    with tf_internal.recording_init_scope():
        if tf_internal.could_possibly_record():
            with tf_internal.stop_recording():
                yield
        else:
            yield


class _Check:
    """Calls functions and checks what they return; keeps shapes and a dtype, but no Tensor."""

    def __init__(self, api: str, fx: tf.Tensor, x: list[tf.Tensor], axis: list[int] | None) -> None:
        self._api = api
        self._dtype = fx.dtype
        self._fx_shape = tf_internal.shape_of(fx)
        self._x_shapes = tuple(map(tf_internal.shape_of, x))
        self._axis = None if axis is None else tuple(axis)

    def values(self, function: Callable[[], Any], kind: list[None] | None) -> list[tf.Tensor]:
        """What one function for all x returns; `kind` is a list if they are one."""
        with _outside():
            answer, _, suffixes = convert.to_pairs(self._api, function(), kind)
            tensors = self._to_tensors(["gx" + suffix for suffix in suffixes], answer)
        self._shapes_fit(tuple(map(tf_internal.shape_of, tensors)))
        return tensors

    def value(self, function: Callable[[], Any], i: int) -> tf.Tensor:
        """What the function for the x of this index returns."""
        with _outside():
            [tensor] = self._to_tensors([f"gx[{i}]"], [function()])
        self._shapes_fit((*self._x_shapes[:i], tf_internal.shape_of(tensor), *self._x_shapes[i + 1 :]))
        return tensor

    def _to_tensors(self, names: list[str], values: list[Any]) -> list[tf.Tensor]:
        return convert.to_tensors(self._api, ["fx", *names], [tf.zeros([], self._dtype), *values])[1:]

    def _shapes_fit(self, gx_shapes: _Shapes) -> None:
        if gx_shapes == self._x_shapes:  # With these, the op was called.
            return
        error = _shape_error(self._fx_shape, gx_shapes, self._x_shapes, self._axis)
        if error:
            raise tf.errors.InvalidArgumentError(None, None, error)


@functools.lru_cache(maxsize=256)
def _shape_error(fx: tuple[int, ...], gx: _Shapes, x: _Shapes, axis: tuple[int, ...] | None) -> str:
    """What the op says about these shapes; empty if they fit. In a graph, where it needs no numbers."""
    with tf.Graph().as_default():
        fx, *rest = (tf.compat.v1.placeholder(tf.float32, shape) for shape in (fx, *gx, *x))
        try:
            library.custom_gradient_embed(
                fx, rest[: len(gx)], rest[len(gx) :], axis=list(axis or ()), all_axes=axis is None
            )
        except ValueError as error:
            return str(error).partition(" for '{{node")[0]
    return ""
