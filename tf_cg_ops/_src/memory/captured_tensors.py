"""The Tensors that a function reads beside its arguments."""

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.core.tf_internal import EagerTensor

# So many objects are looked at, and so many items of one: a search that takes longer would cost more than the call.
_MAX_OBJECTS = 1000
_MAX_ITEMS = 100
# Their globals hold no Tensors of users.
_LIBRARIES = frozenset(["tensorflow", "keras", "tf_keras", "numpy"])
_CALLS = frozenset(["__call__", "call"])
# Where decorated functions and tf.function keep the function.
_WRAPPED = frozenset(["__wrapped__", "_function", "_python_function"])


def _has_gradient(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def watched_in_eager_mode(function: Callable[..., Any]) -> list[tf.Tensor]:
    """The Tensors that a function refers to and that a tape or accumulator watches.

    Found without running it: in its closure, its defaults, the arguments of a functools.partial, the globals and
    attributes that its code names, lists and dictionaries of those, and functions among them.
    """
    return [t for t in _referred_to(function) if _has_gradient(t) and tf_internal.possible_gradient_types([t])]


def _referred_to(function: Callable[..., Any]) -> Iterator[tf.Tensor]:
    # Each object with the names of its attributes that the code around it uses.
    waiting: list[tuple[Any, frozenset[str]]] = [(function, frozenset())]
    if not isinstance(function, (types.FunctionType, types.MethodType, functools.partial)):
        call = inspect.getattr_static(type(function), "__call__", None)
        waiting = [(call, frozenset()), (function, _names_in(call))]
    seen: set[int] = set()
    while waiting and len(seen) < _MAX_OBJECTS:
        value, names = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) is EagerTensor:
            yield value
        elif isinstance(value, types.FunctionType):
            own, known = _names(value.__code__), value.__globals__
            if known.get("__name__", "").partition(".")[0] not in _LIBRARIES:
                waiting += [(known[name], own) for name in own if _may_lead_to_tensors(known.get(name), known)]
            waiting += [(cell, own) for cell in _contents(value.__closure__ or ())]
            waiting += [(default, own) for default in value.__defaults__ or ()]
            waiting += [(default, own) for default in (value.__kwdefaults__ or {}).values()]
        elif isinstance(value, types.MethodType):
            waiting += [(value.__func__, names), (value.__self__, _names_in(value.__func__))]
        elif isinstance(value, functools.partial):
            waiting += [(item, names) for item in (value.func, *value.args, *value.keywords.values())]
        elif isinstance(value, (list, tuple)):
            waiting += [(item, names) for item in value[:_MAX_ITEMS]]
        elif isinstance(value, dict):
            waiting += [(item, names) for item in list(value.values())[:_MAX_ITEMS]]
        elif not isinstance(value, (type, types.ModuleType, tf.Variable)):
            attributes = getattr(value, "__dict__", None)
            if not attributes:
                continue
            names = _with_names_in_methods(type(value), names)
            waiting += [(attributes[name], names) for name in names | _WRAPPED if name in attributes]


def _may_lead_to_tensors(value: Any, known: dict[str, Any]) -> bool:
    """Whether a global may: not modules, and not functions of other modules, which are libraries."""
    if value is None or isinstance(value, (type, types.ModuleType)):
        return False
    return not isinstance(value, types.FunctionType) or value.__globals__ is known


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> frozenset[str]:
    """The globals and attributes that a function names, with those of the functions in it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(code.co_names).union(*map(_names, inner))


def _with_names_in_methods(kind: type, names: frozenset[str]) -> frozenset[str]:
    """These names, with those in the methods that they name, and in those of a callable object or layer."""
    methods = (getattr(kind, name, None) for name in names | _CALLS)
    return names.union(*map(_names_in, methods))


def _names_in(function: Any) -> frozenset[str]:
    return _names(function.__code__) if isinstance(function, types.FunctionType) else frozenset()


def _contents(cells: tuple[Any, ...]) -> Iterator[Any]:
    for cell in cells:
        try:
            yield cell.cell_contents
        except ValueError:  # It is empty: the variable is assigned later.
            continue


class GraphReads:
    """The Tensors that functions read from outside of them while they run in a graph."""

    def __init__(self) -> None:
        self._graph: Any = tf.compat.v1.get_default_graph()
        self._num_known = len(self._graph.get_operations())

    def tensors(self) -> list[tf.Tensor]:
        """Those that were read since this object was made, without those that have no gradient."""
        new = self._graph.get_operations()[self._num_known :]
        made = {id(output) for op in new for output in op.outputs}
        found = {id(tensor): tensor for op in new for tensor in op.inputs if id(tensor) not in made}
        for outside, inside in getattr(self._graph, "captures", ()):
            if id(inside) in made or id(inside) in found:
                found.pop(id(inside), None)
                found[id(outside)] = outside
        return [tensor for tensor in found.values() if _has_gradient(tensor)]
