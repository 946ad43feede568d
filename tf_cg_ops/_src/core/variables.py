"""Variables of TensorFlow and Keras: which ones a function gets, reads or must not read."""

import functools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf


def as_variable(value: Any) -> tf.Variable | None:
    """The tf.Variable behind a Variable of TensorFlow or Keras."""
    if isinstance(value, tf.Variable):
        return value
    inner = getattr(value, "_value", None) if type(value).__module__.startswith("keras") else None
    return inner if isinstance(inner, tf.Variable) else None


# Enough for a variable in a list of an object in the closure of a wrapped method.
_DEPTH, _MOST = 6, 2000


def variables_behind(function: Callable[..., Any]) -> list[tf.Variable]:
    """The variables that a function can reach by closures, globals, arguments and attributes: maybe more than it reads.

    In eager mode TensorFlow tells of no read of a variable that is not trainable.
    """
    found: dict[int, tf.Variable] = {}
    seen: set[int] = set()
    waiting: list[tuple[Any, int]] = [(function, 0)]
    while waiting and len(seen) < _MOST:
        value, depth = waiting.pop(0)
        if id(value) in seen or depth > _DEPTH or isinstance(value, (tf.Tensor, types.ModuleType, type)):
            continue
        seen.add(id(value))
        variable = as_variable(value)
        if variable is not None:
            found[id(variable)] = variable
        else:
            waiting += [(inner, depth + 1) for inner in _inside(value)]
    return list(found.values())


def _inside(value: Any) -> Iterable[Any]:
    """The objects that an object refers to."""
    if isinstance(value, types.FunctionType):
        cells = [part for cell in value.__closure__ or () for part in _contents(cell)]
        return [*cells, *(value.__defaults__ or ()), *_globals_of(value.__code__, value.__globals__)]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if isinstance(value, tf.Module) or hasattr(value, "add_weight"):  # A layer has more attributes than variables.
        return list(value.variables)
    return list(getattr(value, "__dict__", {}).values())


def _contents(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # It is empty until the function around has assigned it.
        return []


def _globals_of(code: types.CodeType, names: dict[str, Any]) -> list[Any]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return [names[n] for n in code.co_names if n in names] + [v for c in inner for v in _globals_of(c, names)]


def captured_variables(watched: Sequence[tf.Variable], arguments: Sequence[Any]) -> list[tf.Variable]:
    """The variables that were read but not passed, told apart by their handles, in the order of their creation."""
    if not watched:
        return []
    passed = {i for variable in map(as_variable, arguments) if variable is not None for i in _identities(variable)}
    return [variable for variable in watched if not passed & _identities(variable)]


def _identities(variable: tf.Variable) -> set[int]:
    identities = {id(variable)}
    try:
        identities.add(id(variable.handle))
    except AttributeError:
        pass  # A reference variable.
    except ValueError:
        # A distributed variable has no handle outside of a replica; inside, its components are read.
        identities.update(map(id, tf.distribute.get_strategy().experimental_local_results(variable)))
    return identities


def handles_of(variable: tf.Variable) -> list[Any]:
    """The handles of a variable: outside of a replica a distributed variable has one for each component."""
    try:
        return [variable.handle]
    except ValueError:
        return [component.handle for component in tf.distribute.get_strategy().experimental_local_results(variable)]


def reference_variables(operations: Sequence[tf.Operation], arguments: Sequence[Any]) -> list[str]:
    """The names of TensorFlow 1's reference variables that the operations make or read, but for the arguments."""
    passed = {variable.op.name for variable in map(as_variable, arguments) if variable is not None}
    tensors = [tensor for op in operations for tensor in (*op.inputs, *op.outputs)]
    # A reference variable is read through an Identity, made when the variable was: perhaps before these operations.
    tensors += [source for tensor in tensors if tensor.op.type == "Identity" for source in tensor.op.inputs]
    found = {tensor.op.name for tensor in tensors if tensor.dtype != tensor.dtype.base_dtype}
    return sorted(found - passed)
