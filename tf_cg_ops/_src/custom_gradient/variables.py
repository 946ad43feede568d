"""Finds the variables that a function gets and reads."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.core.variables import as_variable


def call_and_note_reads(
    compute: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], is_eager: bool
) -> tuple[Any, list[tf.Variable]]:
    """Calls a function; returns the result and the variables that it read, in the order of their creation.

    In eager mode these are the variables that TensorFlow reports to its tapes, the trainable ones. A graph reports all,
    and the ones that a tape or accumulator watches count, too.
    """
    if is_eager or not tf_internal.could_possibly_record():
        return tf_internal.call_and_watch_variables(compute, args, kwargs)
    accessed: list[tf.Variable] = []
    with tf_internal.variable_accesses(accessed):
        result, read = tf_internal.call_and_watch_variables(compute, args, kwargs)
    return result, merged(read, [v for v in accessed if _is_only_watched(v)])


def _is_only_watched(variable: tf.Variable) -> bool:
    return not variable.trainable and bool(tf_internal.possible_gradient_types(handles_of(variable)))


def can_have_gradient(variable: tf.Variable) -> bool:
    """Whether a variable is trainable, or a tape or an accumulator watches it."""
    return variable.trainable or _is_only_watched(variable)


def merged(variables: Sequence[tf.Variable], others: Sequence[tf.Variable]) -> list[tf.Variable]:
    """Both lists of variables in one, without repetition, in the order of creation, which the first list has."""
    if not others:
        return list(variables)
    known: set[int] = set()
    unique = []
    for variable in (*variables, *others):
        identities = _identities(variable)
        if not identities & known:
            unique.append(variable)
        known |= identities
    return sorted(unique, key=tf_internal.creation_order)


def captured_variables(watched: Sequence[tf.Variable], arguments: Sequence[Any]) -> list[tf.Variable]:
    """The variables that were read but not passed as arguments, compared by their handles, in the order of creation."""
    if not watched:
        return []
    passed = {i for argument in arguments for variable in variables_in(argument) for i in _identities(variable)}
    return [variable for variable in watched if not passed & _identities(variable)]


def variables_in(leaf: Any) -> list[tf.Variable]:
    """The leaf if it is a variable, or the variables in a composite such as a `tfp.util.TransformedVariable`."""
    variable = as_variable(leaf)
    if variable is not None:
        return [variable]
    if isinstance(leaf, tf.Tensor) or not (tf.is_tensor(leaf) or isinstance(leaf, tf.experimental.ExtensionType)):
        return []
    return [part for part in tf.nest.flatten(leaf, expand_composites=True) if isinstance(part, tf.Variable)]


def _identities(variable: tf.Variable) -> set[int]:
    return {id(variable), *map(id, handles_of(variable))}


def handles_of(variable: tf.Variable) -> list[Any]:
    """The handles of a variable; a distributed one has several outside of a replica, a reference variable none."""
    try:
        return [variable.handle]
    except AttributeError:
        return []
    except ValueError:
        return [component.handle for component in tf.distribute.get_strategy().experimental_local_results(variable)]


def reference_variables(operations: Sequence[tf.Operation], arguments: Sequence[Any]) -> list[str]:
    """The names of TensorFlow 1's reference variables that the operations make or read, except the arguments."""
    passed = {variable.op.name for variable in map(as_variable, arguments) if variable is not None}
    tensors = [tensor for op in operations for tensor in (*op.inputs, *op.outputs)]
    # A reference variable is read through an Identity that was made with it, perhaps before these operations.
    tensors += [source for tensor in tensors if tensor.op.type == "Identity" for source in tensor.op.inputs]
    found = {tensor.op.name for tensor in tensors if tensor.dtype != tensor.dtype.base_dtype}
    return sorted(found - passed)
