"""Ready-made rules for `tf_cg_ops.override_gradients`.

A rule is a function `rule(op, *dy)` that returns the gradients of `op.inputs`. `clip` makes one; the others are rules.
`guided` and `deconvnet` show which parts of an input an output depends on. With them a model's gradient is not a
vector-Jacobian product any more, so do not train with them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, slices, text, tf_internal
from tf_cg_ops._src.core.types import Axis, TensorLike
from tf_cg_ops._src.graphs import control_flow
from tf_cg_ops._src.ready_made.clip import clip as clip_gradients
from tf_cg_ops._src.ready_made.clip import only_limit, to_limit
from tf_cg_ops._src.rewrite import elementwise_ops
from tf_cg_ops._src.rewrite.op_rules import UNREACHED, YIELDS

__all__ = ["built_in", "clip", "deconvnet", "dynamic_slice", "elementwise", "guided", "masked", "pass_through", "zero"]

_CLIP = "rules.clip"

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _rule(function: _Function, key: str = "'Relu'", rule: str = "") -> _Function:
    """Decorates a rule or predicate. If it is called without an op, the error says how to pass it instead."""
    api = f"rules.{function.__name__}"
    example = f"{{{key}: tf_cg_ops.rules.{rule or function.__name__}}}"
    advice = f"Pass the {'predicate' if rule else 'rule'} itself, as in tf_cg_ops.override_gradients(f, {example})."

    @tf_internal.autograph_artifact
    @misplaced_calls.explains(api, advice)
    @functools.wraps(function)
    def call(op: Any, *dy: Any) -> Any:
        if not hasattr(op, "node_def"):
            raise TypeError(f"{api}: op must be a tf.Operation, got {text.describe(op)}. {advice}")
        if not dy and not rule:
            raise TypeError(f"{api}: the upstream gradients must follow op, got none for '{op.name}'. {advice}")
        return function(op, *dy)

    return call  # type: ignore[return-value]


@_rule
def built_in(op: tf.Operation, *dy: tf.Tensor) -> list[tf.Tensor | None]:
    """Returns the gradients that the op has without a rule. Use it in a rule that changes them.

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

    They are what TensorFlow's tapes and `tf.gradients` compute: `dx = J(x)^H dy` for an op with the Jacobian `J(x)`.

    Args:
      op: The op, as `tf_cg_ops.override_gradients` passes it to a rule.
      *dy: The upstream gradient of each output, of its shape and dtype.

    Returns:
      A list with a gradient, or None, for each input.

    Raises:
      NotImplementedError: The op has no gradient function, or is a call, loop or conditional, whose gradient a function
        of the op alone cannot compute.
    """
    gradient_function = None
    has_rule = op.type == "CustomGradientRule" or "_gradient_op_type" in op.node_def.attr
    if op.type not in control_flow.TYPES and not has_rule:
        gradient_function = tf_internal.find_gradient_function(op)
    if gradient_function is None:
        raise NotImplementedError(
            f"rules.built_in: op must have a gradient function that a rule can call, as Relu and MatMul have, got "
            f"'{op.name}' ({op.type}). Write a rule that computes the gradients of its inputs."
        )
    gradients = gradient_function(op, *dy)
    return list(gradients) if isinstance(gradients, (list, tuple)) else [gradients]


@_rule
def guided(op: tf.Operation, *dy: tf.Tensor) -> list[tf.Tensor | None]:
    """Guided backpropagation, for saliency maps: passes the positive part of the upstream gradient to the op's
    gradient.

        dx = maximum(dy, 0) @ J(x)

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> relu = cg.override_gradients(tf.nn.relu, {"Relu": cg.rules.guided})
    >>> x = tf.constant([-1.0, 2.0, 3.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = relu(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0, -100.0])).numpy().tolist()
    [0.0, 10.0, 0.0]

    `J` is the Jacobian of the op. For a `Relu`, `dx` is `dy` where both `dy` and `x` are positive, and 0 elsewhere. So
    the map shows only what raises the output. TensorFlow has nothing like it.

    Args:
      op: An op with a gradient function, such as Relu, Relu6, LeakyRelu, Elu or Selu.
      *dy: The upstream gradient of each output, of its shape and dtype.

    Returns:
      A list with a gradient, or None, for each input.

    Raises:
      NotImplementedError: See `built_in`.

    Source: Springenberg, Dosovitskiy, Brox and Riedmiller, "Striving for simplicity: the all convolutional net"
    (2015), arXiv:1412.6806, section 3.4.
    """
    return built_in(op, *map(_positive_part, dy))


@_rule
def deconvnet(op: tf.Operation, *dy: tf.Tensor) -> list[tf.Tensor | None]:
    """Deconvolutional net, for saliency maps: the gradient is the positive part of the upstream gradient.

        dx = maximum(dy, 0)

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
      op: An op with one output, which has the shape of its first input.
      *dy: The upstream gradient of the output, of its shape and dtype.

    Returns:
      A list with the gradient of the first input, and None for all others.

    Source: Zeiler and Fergus, "Visualizing and understanding convolutional networks" (2014), arXiv:1311.2901, section
    2.1.
    """
    return pass_through(op, *map(_positive_part, dy))


@_rule
def pass_through(op: tf.Operation, *dy: tf.Tensor) -> list[tf.Tensor | None]:
    """Passes the upstream gradient on unchanged: the straight-through estimator for `Round`, `Sign` and the like.

        dx = dy

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> f = cg.override_gradients(lambda x: 3 * tf.round(x), {"Round": cg.rules.pass_through})
    >>> x = tf.constant([0.2, 0.7])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = f(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    [3.0, 30.0]

    `tf_cg_ops.grad_pass_through` does the same for a function that you call yourself.

    Args:
      op: An op with one output, which has the shape of its first input.
      *dy: The upstream gradient of the output, of its shape and dtype.

    Returns:
      A list with the gradient of the first input, and None for all others.

    Source: Bengio, Leonard and Courville, "Estimating or propagating gradients through stochastic neurons for
    conditional computation" (2013), arXiv:1308.3432.
    """
    return [*dy, *[None] * (len(op.inputs) - len(dy))]


@_rule
def zero(op: tf.Operation, *dy: tf.Tensor) -> list[tf.Tensor | None]:
    """Passes no gradient through the op: `dx = 0`. (With `tf.stop_gradient` it would be None.)

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
      A list with zeros, of its shape and dtype, for each input that can have a gradient, and None for all others.
    """
    has_zeros = [tf_internal.is_trainable(x) and x.dtype not in (tf.resource, tf.variant) for x in op.inputs]
    return [tf.zeros_like(x) if zeros else None for x, zeros in zip(op.inputs, has_zeros, strict=True)]


@functools.partial(_rule, key="'Slice'")
def dynamic_slice(op: tf.Operation, *dy: tf.Tensor) -> list[tf.Tensor | None]:
    """Gives `tf.slice` all derivatives under XLA. TensorFlow has "no entry for: XlaDynamicUpdateSlice" in the second.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> f = cg.override_gradients(lambda x, i: tf.slice(x, [i], [2]) ** 3, {"Slice": cg.rules.dynamic_slice})
    >>> args = [tf.constant([1.0, 2.0, 3.0]), tf.constant(1)]
    >>> report = cg.testing.check_gradient(f, args, modes=["xla"], second_order=True)

    The gradients are TensorFlow's, computed by ops that have a gradient. `x[i : i + 2]` does not need the rule.

    Args:
      op: A Slice or an XlaDynamicUpdateSlice.
      *dy: The upstream gradient of the output, of its shape and dtype.

    Returns:
      A list with a gradient for the first input, and for the update if there is one, and None for the integers.

    Raises:
      ValueError: The op is of another type.
    """
    if op.type == "Slice":
        return [_place(dy[0], op.inputs[1], op.inputs[0]), None, None]
    if op.type != "XlaDynamicUpdateSlice":
        raise ValueError(
            f"rules.dynamic_slice: op must be a Slice or an XlaDynamicUpdateSlice, got '{op.name}' ({op.type})."
        )
    x, update, begin = op.inputs
    size = tf.shape(update, begin.dtype)
    begin = tf.clip_by_value(begin, 0, tf.shape(x, begin.dtype) - size)  # As the op does.
    replaced = _place(tf.ones(size), begin, x) > 0
    return [tf.where(replaced, tf.zeros_like(dy[0]), dy[0]), tf.strided_slice(dy[0], begin, begin + size), None]


@functools.partial(_rule, key="tf_cg_ops.rules.elementwise", rule="masked")
def elementwise(op: tf.Operation) -> bool:
    """Whether an op works element by element: a key for the rules of `tf_cg_ops.override_gradients`.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> f = cg.override_gradients(lambda x: tf.reduce_sum(tf.exp(x) + x), {cg.rules.elementwise: cg.rules.zero})
    >>> x = tf.constant([0.0, 1.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = f(x)
    >>> tape.gradient(y, x).numpy().tolist()
    [0.0, 0.0]

    These are unary ops, binary ops with broadcasting, and casts, such as Log, Mul, Pow, Maximum, Cast and Betainc, if
    their output is real or complex. Ops that only select or pass on numbers, such as SelectV2, Identity and BiasAdd,
    are not among them. A rule for a type such as "Exp", or for a name, comes before the one for `elementwise`.

    Args:
      op: A tf.Operation.

    Returns:
      A bool. It is False for an op with a gradient that was registered under another name.
    """
    return elementwise_ops.is_elementwise(op)


setattr(elementwise, YIELDS, True)


@functools.partial(_rule, key="tf_cg_ops.rules.elementwise")
def masked(op: tf.Operation, *dy: tf.Tensor) -> list[tf.Tensor | None]:
    """A zero upstream gradient stays zero, also where the derivative of the op is infinite or nan.

    Use it if `tf.where` hides an infinite number and your gradient is nan.

        dx = sum over broadcast dimensions of (dy * J(x) where dy != 0, else 0)

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> def f(x):
    ...     return tf.where(x > 0, tf.math.log(x), 0.0)  # At 0, its gradient is 0 * inf = nan.
    >>> safe = cg.override_gradients(f, {cg.rules.elementwise: cg.rules.masked})
    >>> x = tf.constant([0.0, 1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = safe(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([5.0, 1.0, 10.0])).numpy().tolist()
    [0.0, 1.0, 5.0]

    `J` is the derivative of the op, as TensorFlow computes it. The result is the gradient that `f` has with a second
    `tf.where`, as in `tf.where(x > 0, tf.math.log(tf.where(x > 0, x, 1.0)), 0.0)`. That holds for all orders: a
    derivative is zero where one of its upstream gradients is zero and it would be infinite or nan. By `dy`, it is
    `J(x)` also where `dy` is zero, if that is finite.

    A number that is selected stays as it is: the gradient of `log(0)` is infinite. The rule cannot reach ops that mix
    elements, such as MatMul, Softmax and Max, or functions with their own gradient. A warning names those that it met,
    and each op that it does not know to keep zeros.

    Args:
      op: An op for which `elementwise` is True.
      *dy: The upstream gradient of its output.

    Returns:
      A list with a gradient, or None, for each input. The graph has two orders of derivatives of it, and a third if it
      is traced under a `tf.autodiff.ForwardAccumulator`.

    Raises:
      ValueError: The op does not work element by element.

    TensorFlow has nothing like it: see https://github.com/tensorflow/tensorflow/issues/38349.

    Source: the second `tf.where` is in the note "discussion/where-nan.pdf" of TensorFlow Probability, and in JAX's
    frequently asked questions under "Gradients contain NaN where using where".
    """
    if op.type not in elementwise_ops.TYPES:
        raise ValueError(
            f"rules.masked: op must work element by element, as Log and Mul do, got '{op.name}' ({op.type}). Write "
            "{tf_cg_ops.rules.elementwise: tf_cg_ops.rules.masked}."
        )
    if op.type in elementwise_ops.KEEP_ZERO:
        return built_in(op, *dy)
    return elementwise_ops.masked_gradients(op, slices.to_dense(dy[0]), built_in)


setattr(masked, UNREACHED, elementwise_ops.may_multiply)


@tf_internal.autograph_artifact
@misplaced_calls.explains(_CLIP, "Name the limit, as in tf_cg_ops.rules.clip(value=1.0), which returns the rule.")
def clip(
    *,
    value: TensorLike | None = None,
    norm: TensorLike | None = None,
    global_norm: TensorLike | None = None,
    axis: Axis = None,
) -> Callable[..., list[tf.Tensor | None]]:
    """Makes a rule that clips the gradients of an op. Use it where they can get huge, as for `Exp` and `Reciprocal`.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> f = cg.override_gradients(tf.math.reciprocal, {"Reciprocal": cg.rules.clip(value=5.0)})
    >>> x = tf.constant([0.01, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = f(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    [-5.0, -2.5]

    With `dz = dy @ J(x)`, the op's own gradient, the clipped gradient is one of

        dx = minimum(maximum(dz, -value), value)              elementwise
        dx = dz * minimum(1, norm / sqrt(sum(|dz|**2, axis)))        each input by itself; by default over all of it
        dx = dz * minimum(1, global_norm / sqrt(sum over all inputs of |dz|**2))

    `tf_cg_ops.clip_gradient` clips the upstream gradient in the same ways. Under loss scaling, as in `mixed_float16`
    training, this rule clips the scaled gradient; only `clip_gradient` takes a `loss_scale`.

    Args:
      value: The limit for each element: a number that is at least 0, or a scalar Variable or Tensor, which is read when
        the gradient is computed.
      norm: The limit for the Euclidean norm of each gradient.
      global_norm: The limit for the Euclidean norm of the gradients of all inputs of an op together.
      axis: With `norm`: the dimensions that one norm is taken over.

    Returns:
      A rule for ops that have a gradient function.

    Raises:
      TypeError: A limit is not a real number, or `axis` is not made of ints.
      ValueError: You passed not exactly one limit, or `axis` without `norm`; a limit is negative, nan or not a scalar.
        When the rule is called: `axis` does not fit.
      NotImplementedError: When the rule is called: see `built_in`.

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


def _place(part: Any, begin: Any, whole: Any) -> Any:
    """Zeros of the shape of `whole`, with `part` at `begin`."""
    shape, size = (tf.shape(x, begin.dtype) for x in (whole, part))
    return tf.raw_ops.StridedSliceGrad(shape=shape, begin=begin, end=begin + size, strides=tf.ones_like(begin), dy=part)
