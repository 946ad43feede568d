"""A `gx` that is a function without arguments: eager mode calls it when you first compute a gradient."""

import contextlib
import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, library, text, tf_internal
from tf_cg_ops._src.embed_gradient import eager
from tf_cg_ops._src.embed_gradient.vjp import Shape
from tf_cg_ops._src.keras import dispatch

_LISTS = (list, tuple)
_Shapes = tuple[Shape, ...]


@dataclasses.dataclass(frozen=True)
class LazyGx:
    """A `gx` whose functions were not called yet: one function, or a list of functions and Tensors."""

    gx: Any


def called_or_lazy(api: str, fx: Any, gx: Any, x: Any, fx_gx_manually_stopped: Any) -> Any:
    """Calls the functions in `gx`, or returns a LazyGx if they can be called later.

    Every function of the library that takes a `gx` passes it through here first, so that later code only sees values
    and LazyGx.
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
    # If gx is differentiated, it has to be recorded now.
    is_differentiated = convert.to_stopped(api, fx_gx_manually_stopped) and tf_internal.could_possibly_record()
    if tf.executing_eagerly() and not is_differentiated and not dispatch.package_of_keras_tensors((fx, gx, x)):
        return LazyGx(gx)
    value = [g() if callable(g) else g for g in gx] if isinstance(gx, _LISTS) else gx()
    for item in value if isinstance(value, _LISTS) else [value]:
        if callable(item):
            raise convert.not_convertible(api, "gx", item)
    return value


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


def embed(api: str, fx: Any, lazy: LazyGx, x: Any, axis: list[int] | None, name: str | None) -> tf.Tensor:
    """`embed_gradient` in eager mode for a `gx` with functions."""
    gx, placeholders = lazy.gx, [None] * len(x) if isinstance(x, _LISTS) else None
    items, x, suffixes = convert.to_pairs(api, x if callable(gx) else gx, x)
    known = [] if callable(gx) else [i for i, item in enumerate(items) if not callable(item)]
    names = ["fx", *("x" + suffix for suffix in suffixes), *("gx" + suffixes[i] for i in known)]
    fx, *tensors = convert.to_tensors(api, names, [fx, *x, *(items[i] for i in known)])
    x, known_gx = tensors[: len(x)], dict(zip(known, tensors[len(x) :], strict=True))
    calls = _CheckedCalls(api, fx, x, axis)
    if callable(gx):
        all_gx = _call_once(lambda: calls.call_for_all(gx, placeholders))
        later: dict[int, Any] = {i: lambda i=i: all_gx()[i] for i in range(len(x))}
    else:
        functions = [(i, item) for i, item in enumerate(items) if i not in known_gx]
        later = {i: _call_once(functools.partial(calls.call_for_one, function, i)) for i, function in functions}
    # The shape of a function's result is not known yet. The shape of x instead finds errors that any gx would have.
    values = [known_gx.get(i, t) for i, t in enumerate(x)]
    return eager.embed(fx, values, x, axis or [], axis is None, name, later)


def _call_once(function: Callable[[], Any]) -> Callable[[], Any]:
    """Wraps a function: it is called once, in whichever thread comes first, and its result is kept."""
    lock, cached = threading.RLock(), functools.cache(function)

    def locked() -> Any:
        with lock:
            return cached()

    return locked


@contextlib.contextmanager
def _outside_of_graphs_and_tapes() -> Iterator[None]:
    """Leaves the current graph and tapes: a Jacobian computes a gradient in a graph, but later ones use the value, too.

    If other tapes don't record, a tape that the function opens does.
    """
    with tf_internal.recording_init_scope():
        if tf_internal.could_possibly_record():
            with tf_internal.stop_recording():
                yield
        else:
            yield


class _CheckedCalls:
    """Calls functions for `gx` and checks their results; keeps shapes and a dtype, but not Tensors."""

    def __init__(self, api: str, fx: tf.Tensor, x: list[tf.Tensor], axis: list[int] | None) -> None:
        self._api = api
        self._dtype = fx.dtype
        self._fx_shape = tf_internal.shape_of(fx)
        self._x_shapes = tuple(map(tf_internal.shape_of, x))
        self._axis = None if axis is None else tuple(axis)

    def call_for_all(self, function: Callable[[], Any], placeholders: list[None] | None) -> list[tf.Tensor]:
        """The `gx` for all `x`, from one function; `placeholders` is a list if `x` is one, otherwise None."""
        with _outside_of_graphs_and_tapes():
            gx, _, suffixes = convert.to_pairs(self._api, function(), placeholders)
            tensors = self._to_tensors(["gx" + suffix for suffix in suffixes], gx)
        self._check_shapes(tuple(map(tf_internal.shape_of, tensors)))
        return tensors

    def call_for_one(self, function: Callable[[], Any], i: int) -> tf.Tensor:
        """The `gx` for the `x` with this index."""
        with _outside_of_graphs_and_tapes():
            [tensor] = self._to_tensors([f"gx[{i}]"], [function()])
        self._check_shapes((*self._x_shapes[:i], tf_internal.shape_of(tensor), *self._x_shapes[i + 1 :]))
        return tensor

    def _to_tensors(self, names: list[str], values: list[Any]) -> list[tf.Tensor]:
        return convert.to_tensors(self._api, ["fx", *names], [tf.zeros([], self._dtype), *values])[1:]

    def _check_shapes(self, gx_shapes: _Shapes) -> None:
        if gx_shapes == self._x_shapes:  # The op has checked these.
            return
        error = _shape_error(self._fx_shape, gx_shapes, self._x_shapes, self._axis)
        if error:
            raise tf.errors.InvalidArgumentError(None, None, error)


@functools.lru_cache(maxsize=256)
def _shape_error(fx: Shape, gx: _Shapes, x: _Shapes, axis: tuple[int, ...] | None) -> str:
    """The op's message about these shapes; empty if they fit. A graph gives it without any numbers."""
    with tf.Graph().as_default():
        fx, *rest = (tf.compat.v1.placeholder(tf.float32, shape) for shape in (fx, *gx, *x))
        try:
            library.custom_gradient_embed(
                fx, rest[: len(gx)], rest[len(gx) :], axis=list(axis or ()), all_axes=axis is None
            )
        except ValueError as error:
            return str(error).partition(" for '{{node")[0]
    return ""
