"""Rules for `tf_cg_ops.override_gradients`: gradients that many people need in the place of those of an op.

Each is a function `rule(op, *dy)` that returns the gradients of `op.inputs`, or makes one. Several of them change the
gradient for the whole model, to show which parts of an input an output depends on; such a gradient is the
vector-Jacobian product of no function.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, slices, text, tf_internal
from tf_cg_ops._src.ready_made.clip import clip as clip_gradients
from tf_cg_ops._src.ready_made.clip import only_limit, to_limit
from tf_cg_ops._src.rewrite import control_flow

__all__ = ["built_in", "clip", "deconvnet", "guided", "pass_through", "zero"]

_CLIP = "rules.clip"

_Function = TypeVar("_Function", bound=Callable[..., list[Any]])


def _rule(function: _Function) -> _Function:
    """Decorates a rule: it says how to pass it where somebody calls it without an op."""
    api = f"rules.{function.__name__}"
    advice = f"Pass the rule itself, as in tf_cg_ops.override_gradients(f, {{'Relu': tf_cg_ops.{api}}})."

    @tf_internal.autograph_artifact
    @misplaced_calls.explains(api, advice)
    @functools.wraps(function)
    def rule(op: Any, *dy: Any) -> list[Any]:
        if not hasattr(op, "node_def"):
            raise TypeError(f"{api}: op must be a tf.Operation, got {text.describe(op)}. {advice}")
        return function(op, *dy)

    return rule  # type: ignore[return-value]


@_rule
def built_in(op: Any, *dy: Any) -> list[Any]:
    """The gradients that the op has without a rule: `dx = dy @ J(x)` with its Jacobian `J`.

    For rules that change something about them.

    Compared with TensorFlow: `tf.gradients` and tapes call the same gradient functions.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> doubled = cg.override_gradients(tf.sin, {"Sin": lambda op, dy: 2 * cg.rules.built_in(op, dy)[0]})
    >>> x = tf.constant([0.0, 1.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = doubled(x)
    >>> dx = tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0]))
    >>> bool(tf.reduce_all(tf.abs(dx - [2.0, 10.806046]) < 1e-5))
    True

    Args:
      op: The op, as `tf_cg_ops.override_gradients` passes it to a rule.
      *dy: The upstream gradient of each output.

    Returns:
      A list with the gradient of each input, or None for an input that has none.

    Raises:
      NotImplementedError: The op has no gradient function, or is a call, a loop or a conditional, whose gradient is
        more than a function of the op.
    """
    gradient_function = None
    has_rule = op.type == "CustomGradientRule" or "_gradient_op_type" in op.node_def.attr
    if op.type not in control_flow.TYPES and not has_rule:
        gradient_function = tf_internal.find_gradient_function(op)
    if gradient_function is None:
        raise NotImplementedError(
            f"rules.built_in: the op '{op.name}' has no gradient function that a rule can call; expected an op such as "
            f"Relu or MatMul with a gradient of TensorFlow's, got one of type {op.type}. Write a rule that computes "
            "the gradients of its inputs."
        )
    gradients = gradient_function(op, *dy)
    return list(gradients) if isinstance(gradients, (list, tuple)) else [gradients]


@_rule
def guided(op: Any, *dy: Any) -> list[Any]:
    """Guided backpropagation: the gradients of the op for the positive part of the upstream gradient.

        dx = maximum(dy, 0) @ J(x)

    For a `Relu` that is `dy` where both `dy` and `x` are positive, and 0 elsewhere: the picture of a gradient then
    shows only what raises the output.

    Compared with others: a `gradient_override_map` of TensorFlow 1 for a "Relu", hooks on the ReLUs in PyTorch.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> relu = cg.override_gradients(tf.nn.relu, {"Relu": cg.rules.guided})
    >>> x = tf.constant([-1.0, 2.0, 3.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = relu(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0, -100.0])).numpy().tolist()
    [0.0, 10.0, 0.0]

    Args:
      op: An op with a gradient function, such as Relu, Relu6, LeakyRelu, Elu or Selu.
      *dy: The upstream gradient of each output.

    Returns:
      A list with the gradient of each input.

    Raises:
      NotImplementedError: As `built_in`.

    Source: Springenberg, Dosovitskiy, Brox and Riedmiller, "Striving for simplicity: the all convolutional net"
    (2015), arXiv:1412.6806, section 3.4.
    """
    return built_in(op, *map(_positive_part, dy))


@_rule
def deconvnet(op: Any, *dy: Any) -> list[Any]:
    """A deconvolutional net: the positive part of the upstream gradient, for any input.

        dx = maximum(dy, 0)

    of the first input; the others have no gradient.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> relu = cg.override_gradients(tf.nn.relu, {"Relu": cg.rules.deconvnet})
    >>> x = tf.constant([-1.0, 2.0, 3.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = relu(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0, -100.0])).numpy().tolist()
    [1.0, 10.0, 0.0]

    Args:
      op: An op with one output, of the shape of its first input.
      *dy: The upstream gradient of the output.

    Returns:
      A list with the gradient of each input.

    Source: Zeiler and Fergus, "Visualizing and understanding convolutional networks" (2014), arXiv:1311.2901, section
    2.1.
    """
    return pass_through(op, *map(_positive_part, dy))


@_rule
def pass_through(op: Any, *dy: Any) -> list[Any]:
    """The upstream gradient as it is, such as the straight-through estimator for `Round` and `Sign`.

        dx = dy

    of the first input; the others have no gradient.

    Compared with `tf_cg_ops.grad_pass_through`: the same for an op inside of a function.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> f = cg.override_gradients(lambda x: 3 * tf.round(x), {"Round": cg.rules.pass_through})
    >>> x = tf.constant([0.2, 0.7])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = f(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    [3.0, 30.0]

    Args:
      op: An op with one output, of the shape of its first input.
      *dy: The upstream gradient of the output.

    Returns:
      A list with the gradient of each input.

    Source: Bengio, Leonard and Courville, "Estimating or propagating gradients through stochastic neurons for
    conditional computation" (2013), arXiv:1308.3432.
    """
    return [*dy, *[None] * (len(op.inputs) - len(dy))]


@_rule
def zero(op: Any, *dy: Any) -> list[Any]:
    """No gradient passes: `dx = 0`.

    Compared with `tf.stop_gradient`: the gradient is 0 and not None.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> f = cg.override_gradients(lambda x: x + tf.exp(x), {"Exp": cg.rules.zero})
    >>> x = tf.constant([0.0, 1.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = f(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    [1.0, 10.0]

    Args:
      op: Any op.
      *dy: The upstream gradient of each output.

    Returns:
      A list with zeros for each input that may have a gradient, and None for the others.
    """
    has_zeros = [tf_internal.is_trainable(x) and x.dtype not in (tf.resource, tf.variant) for x in op.inputs]
    return [tf.zeros_like(x) if zeros else None for x, zeros in zip(op.inputs, has_zeros, strict=True)]


@tf_internal.autograph_artifact
@misplaced_calls.explains(_CLIP, "Name the limit, as in tf_cg_ops.rules.clip(value=1.0), which returns the rule.")
def clip(
    *, value: Any = None, norm: Any = None, global_norm: Any = None, axis: int | Sequence[int] | None = None
) -> Callable[..., list[Any]]:
    """Makes a rule that clips the gradients of an op, as `tf_cg_ops.clip_gradient` does for the upstream gradient.

    With `dz = dy @ J(x)`, the gradients that the op has without a rule, those of its inputs are one of

        dx = minimum(maximum(dz, -value), value)              elementwise
        dx = dz * minimum(1, norm / sqrt(sum(|dz|**2, axis)))        each input by itself; by default over all of it
        dx = dz * minimum(1, global_norm / sqrt(sum over all inputs of |dz|**2))

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> f = cg.override_gradients(tf.math.reciprocal, {"Reciprocal": cg.rules.clip(value=5.0)})
    >>> x = tf.constant([0.01, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = f(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    [-5.0, -2.5]

    Args:
      value: The limit of each element: a number that is at least 0, or a scalar Variable or Tensor, which is read when
        the gradient is computed.
      norm: The limit of the Euclidean norm of each gradient.
      global_norm: The limit of the Euclidean norm of the gradients of all inputs of an op together.
      axis: With `norm`: the dimensions that one norm is taken over.

    Returns:
      A rule for ops that have a gradient function.

    Raises:
      TypeError: A limit is not a real number, or `axis` not an int or a sequence of ints.
      ValueError: The call passes not exactly one limit, or `axis` without `norm`; a limit is negative, nan or not a
        scalar. When the rule is called: `axis` is out of range or names a dimension twice.
      NotImplementedError: When the rule is called: as `built_in`.

    Source: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks" (2013),
    arXiv:1211.5063, section 3.2, for the norm.
    """
    mode, limit = only_limit(_CLIP, value, norm, global_norm, axis)
    to_limit(_CLIP, mode, limit)

    def clipped(op: Any, *dy: Any) -> list[Any]:
        gradients = built_in(op, *dy)
        found = [gradient for gradient in gradients if gradient is not None]
        within = iter(clip_gradients(_CLIP, mode, found, to_limit(_CLIP, mode, limit), axis))
        return [None if gradient is None else next(within) for gradient in gradients]

    return clipped


def _positive_part(dy: Any) -> Any:
    return tf.nn.relu(slices.to_dense(dy)) if dy.dtype.is_floating else dy
