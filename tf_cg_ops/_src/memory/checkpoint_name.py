"""Names for values in a recomputed function, and the choice of those that are kept."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import text, tf_internal
from tf_cg_ops._src.keras import dispatch

# Names given by `checkpoint_name`, or a predicate on an op.
Keep = Sequence[str] | Callable[[tf.Operation], bool]

# The attribute that holds the name; TensorFlow ignores attributes with an underscore.
_ATTRIBUTE = "_custom_gradient_checkpoint_name"


@dispatch.takes_keras_tensors("checkpoint_name")
def checkpoint_name(x: Any, name: str) -> tf.Tensor:
    """Names a value inside a function, so that `recompute_grad` can keep it.

    Returns `x`. `recompute_grad(f, keep=["scores"])` keeps what `checkpoint_name(x, "scores")` returned in `f` and does
    not compute it again. Everywhere else the name means nothing.

    Compared with TensorFlow: there is no such function. `jax.ad_checkpoint.checkpoint_name` is like it.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> @cg.recompute_grad(keep=["logarithm"])
    ... def f(x):
    ...     return tf.sin(cg.checkpoint_name(tf.math.log(x), "logarithm"))
    >>> float(f(tf.constant(1.0)))
    0.0

    Args:
      x: The value, a Tensor or convertible to one, of any shape and dtype.
      name: Its name. Several values may have the same.

    Returns:
      A Tensor with the value of `x`.

    Raises:
      TypeError: `name` is no string.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"checkpoint_name: name is no string; expected a name such as 'scores', got {text.describe_type(name)}. "
            "Pass the value first, and then its name."
        )
    named = tf.identity(x)
    if not tf.executing_eagerly():
        tf_internal.set_attribute(named.op, _ATTRIBUTE, tf.compat.v1.AttrValue(s=name.encode()))
    return named


def check_keep(keep: Any, api: str = "recompute_grad") -> Keep:
    """The argument `keep` of `recompute_grad`: TypeError unless it holds names, or is a function."""
    if callable(keep):
        return keep
    if isinstance(keep, (list, tuple, set, frozenset)) and all(isinstance(name, str) for name in keep):
        return tuple(sorted(set(keep)))
    raise TypeError(
        f"{api}: keep holds no names; expected a list of names given by checkpoint_name, or a function of a "
        f"tf.Operation, got {text.describe(keep)}. Write keep=['scores'], or keep=lambda op: op.type == 'MatMul'."
    )


def predicate(
    keep: Keep, function: str, graph: tf.Graph, api: str = "recompute_grad"
) -> Callable[[tf.Operation], bool]:
    """Whether an op of the graph is to be kept; ValueError if a name is missing there."""
    if callable(keep):
        return keep
    names = {name for op in graph.get_operations() if (name := _name_of(op)) is not None}
    missing = [name for name in keep if name not in names]
    if missing:
        raise ValueError(
            f"{api}: keep names {text.quoted(missing)}, but '{function}' has no such value; expected names "
            f"given by checkpoint_name outside of loops and branches, {text.quoted(sorted(names)) or 'none'}, got "
            f"{text.quoted(keep)}. Name the value in the function."
        )
    return lambda op: _name_of(op) in keep


def _name_of(op: tf.Operation) -> str | None:
    return op.get_attr(_ATTRIBUTE).decode() if op.type == "Identity" and _ATTRIBUTE in op.node_def.attr else None
