"""The Tensors that a function closes over: reads from outside its arguments."""

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.core.tf_internal import EagerTensor

# Limits of the search, in objects and in items of one list or dictionary: it must not cost more than the call.
_MAX_OBJECTS = 1000
_MAX_ITEMS = 100
# Modules whose globals hold no Tensors of users.
_LIBRARIES = frozenset(["tensorflow", "keras", "tf_keras", "numpy"])
_CALL_METHODS = frozenset(["__call__", "call"])
# The attributes in which decorated functions and tf.function keep the Python function.
_FUNCTION_ATTRIBUTES = frozenset(["__wrapped__", "_function", "_python_function"])


def _has_gradient(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def find_watched_captures(function: Callable[..., Any]) -> list[tf.Tensor]:
    """The eager Tensors that a function closes over and that a tape or accumulator watches.

    Found without running the function: in its closure, its defaults, the arguments of a functools.partial, the globals
    and attributes that its code names, lists and dictionaries of those, and functions among them.
    """
    return [t for t in _reachable_tensors(function) if _has_gradient(t) and tf_internal.possible_gradient_types([t])]


def _reachable_tensors(function: Callable[..., Any]) -> Iterator[tf.Tensor]:
    # A stack of objects, each with the attribute names that the code around it uses.
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
            names, module = _names(value.__code__), value.__globals__
            if module.get("__name__", "").partition(".")[0] not in _LIBRARIES:
                waiting += [(module[name], names) for name in names if _may_lead_to_tensors(module.get(name), module)]
            waiting += [(content, names) for content in _contents(value.__closure__ or ())]
            waiting += [(default, names) for default in value.__defaults__ or ()]
            waiting += [(default, names) for default in (value.__kwdefaults__ or {}).values()]
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
            waiting += [(attributes[name], names) for name in names | _FUNCTION_ATTRIBUTES if name in attributes]


def _may_lead_to_tensors(value: Any, module: dict[str, Any]) -> bool:
    """Whether to search this global of a module. Not modules, nor functions of other modules, which are libraries."""
    if value is None or isinstance(value, (type, types.ModuleType)):
        return False
    return not isinstance(value, types.FunctionType) or value.__globals__ is module


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> frozenset[str]:
    """The globals and attributes that a function and the functions inside it name."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(code.co_names).union(*map(_names, inner))


def _with_names_in_methods(cls: type, names: frozenset[str]) -> frozenset[str]:
    """These names, with those in the methods that they name, and in `__call__` and `call`."""
    methods = (getattr(cls, name, None) for name in names | _CALL_METHODS)
    return names.union(*map(_names_in, methods))


def _names_in(function: Any) -> frozenset[str]:
    return _names(function.__code__) if isinstance(function, types.FunctionType) else frozenset()


def _contents(cells: tuple[Any, ...]) -> Iterator[Any]:
    for cell in cells:
        try:
            yield cell.cell_contents
        except ValueError:  # An empty cell: the variable is assigned later.
            continue


class GraphCaptureWatcher:
    """Finds the Tensors that a function closes over, after it ran in the current graph.

    Make one before the function runs: the captures are the inputs of the new ops that no new op computes.
    """

    def __init__(self) -> None:
        self._graph: Any = tf.compat.v1.get_default_graph()
        self._num_operations = len(self._graph.get_operations())

    def captures(self) -> list[tf.Tensor]:
        """The Tensors that were read since this watcher was made and can have a gradient."""
        new_operations = self._graph.get_operations()[self._num_operations :]
        computed = {id(output) for op in new_operations for output in op.outputs}
        read = {id(tensor): tensor for op in new_operations for tensor in op.inputs if id(tensor) not in computed}
        # A tensor of an outer graph instead of its placeholder in this one.
        for outside, inside in getattr(self._graph, "captures", ()):
            if id(inside) in computed or id(inside) in read:
                read.pop(id(inside), None)
                read[id(outside)] = outside
        return [tensor for tensor in read.values() if _has_gradient(tensor)]
