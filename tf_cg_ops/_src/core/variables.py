"""Variables of TensorFlow and Keras: which ones a function gets, reads or must not read."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def as_variable(value: Any) -> tf.Variable | None:
    """The tf.Variable behind a Variable of TensorFlow or Keras."""
    if isinstance(value, tf.Variable):
        return value
    inner = getattr(value, "_value", None) if type(value).__module__.startswith("keras") else None
    return inner if isinstance(inner, tf.Variable) else None


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
