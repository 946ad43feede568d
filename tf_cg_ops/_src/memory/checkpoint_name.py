"""Names for values in a recomputed function, and the choice which of them are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import calls, text, tf_internal
from tf_cg_ops._src.core.types import TensorLike
from tf_cg_ops._src.graphs import control_flow
from tf_cg_ops._src.keras import dispatch

# Names given by `checkpoint_name`, or a function that chooses ops.
Keep = Sequence[str] | Callable[[tf.Operation], bool]

# The attribute that holds the name; TensorFlow ignores attributes with an underscore.
_ATTRIBUTE = "_custom_gradient_checkpoint_name"


@dispatch.takes_keras_tensors("checkpoint_name")
def checkpoint_name(x: TensorLike, name: str) -> tf.Tensor:
    """Names a value inside a function, so that `recompute_grad` can keep it.

    Use it for a value that takes long to compute but little memory.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> @cg.recompute_grad(keep=["logarithm"])
    ... def f(x):
    ...     return tf.sin(cg.checkpoint_name(tf.math.log(x), "logarithm"))
    >>> float(f(tf.constant(1.0)))
    0.0

    It returns `x`. Where `recompute_grad` does not keep the name, the name has no effect.

    Args:
      x: A Tensor, or something convertible to one, of any shape and dtype.
      name: The name. Several values can share it.

    Returns:
      A Tensor with the value of `x`.

    Raises:
      TypeError: `name` is not a string.

    TensorFlow has nothing like it; JAX has `jax.ad_checkpoint.checkpoint_name`.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"checkpoint_name: name must be a string such as 'scores', got {text.describe_type(name)}. Pass the value "
            "first, then its name."
        )
    named = tf.identity(x)
    if not tf.executing_eagerly():
        tf_internal.set_attribute(named.op, _ATTRIBUTE, tf.compat.v1.AttrValue(s=name.encode()))
    return named


def check_keep(keep: Any, api: str = "recompute_grad") -> Keep:
    """The argument `keep`, checked: TypeError unless it is a list of names or a function."""
    if callable(keep):
        return keep
    if isinstance(keep, (list, tuple, set, frozenset)) and all(isinstance(name, str) for name in keep):
        return tuple(sorted(set(keep)))
    raise TypeError(
        f"{api}: keep must be a list of names or a function of a tf.Operation, got {text.describe(keep)}. Write "
        "keep=['scores'], or keep=lambda op: op.type == 'MatMul'."
    )


def predicate(
    keep: Keep, function: str, operations: Sequence[tf.Operation], api: str = "recompute_grad"
) -> Callable[[tf.Operation], bool]:
    """The function that tells whether to keep the result of an op; ValueError if no op has a name."""
    if callable(keep):
        return keep
    names = {name for op in operations if (name := _name_of(op)) is not None}
    missing = [name for name in keep if name not in names]
    if missing:
        raise ValueError(
            f"{api}: the names in keep must be given by checkpoint_name in '{function}', outside of loops and "
            f"branches, got {text.quoted(missing)}. The names given there: {text.quoted(sorted(names)) or 'none'}."
        )
    return lambda op: _name_of(op) in keep


def operations_of(graph: Any) -> list[tf.Operation]:
    """The ops of a graph and of the functions that it calls."""
    found: list[tf.Operation] = []
    for op in graph.get_operations():
        found.append(op)
        for function in control_flow.functions_of(op) if op.type in calls.CALLS else []:
            found.extend(operations_of(function))
    return found


def chosen(keep: Keep, graph: Any) -> tuple[Any, ...]:
    """What `keep` chooses in a graph: names, or the answers of a function for the ops, also in called functions."""
    if not callable(keep):
        return tuple(keep)
    answers: list[Any] = []
    for op in graph.get_operations():
        called = control_flow.functions_of(op) if op.type in calls.CALLS else []
        answers.append((bool(keep(op)), *(chosen(keep, function) for function in called)))
    return tuple(answers)


def _name_of(op: tf.Operation) -> str | None:
    return op.get_attr(_ATTRIBUTE).decode() if op.type == "Identity" and _ATTRIBUTE in op.node_def.attr else None
