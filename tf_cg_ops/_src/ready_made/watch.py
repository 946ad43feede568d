"""`watch_gradient`: an identity that prints, checks or records the gradient."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, python_op, slices, text, tf_internal
from tf_cg_ops._src.core.signature import check_takes
from tf_cg_ops._src.core.types import Structure
from tf_cg_ops._src.custom_gradient.call import call_with_gradient
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.keras import dispatch
from tf_cg_ops._src.ready_made import loss_scale as loss_scales

_API = "watch_gradient"
# The number of elements printed from each end of a dimension.
_PRINTED = 3


@dispatch.takes_keras_tensors(_API)
def watch_gradient(
    x: Structure,
    name: str,
    *,
    log: bool = False,
    check_numerics: bool = False,
    callback: Callable[[np.ndarray], None] | None = None,
    loss_scale: Any = None,
) -> Structure:
    """Returns `x`, and prints, checks or records its gradient.

    Use it to find out where a gradient vanishes, explodes or becomes nan.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> seen = []
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = tf.reduce_sum(cg.watch_gradient(tf.square(x), "squares", callback=seen.append) * [3.0, 4.0])
    >>> tape.gradient(y, x).numpy().tolist(), seen[0].tolist()
    ([6.0, 16.0], [3.0, 4.0])

    The gradient passes through bit for bit: `dx = dy`. Choose one or more options, which act when it is computed:

    - `log` prints its shape, norm, smallest and largest element, and some elements to standard error;
    - `check_numerics` raises an error with the name in it if an element is infinite or nan;
    - `callback` gets it as a NumPy array: `callback=history.append` keeps every gradient.

    They work in eager mode, `tf.function`, TensorFlow 1 graphs, loops and Keras. Under XLA each is an error, and in a
    SavedModel `callback` is. Gradients you don't use aren't computed, so they show nothing. If you use `x` several
    times, you see the sum of its gradients; to see one part, watch that use alone. A `tf.IndexedSlices`, as after
    `tf.gather`, is shown dense, and passes through sparse.

    In mixed precision with float16, as Keras's `mixed_float16`, the loss is multiplied by a loss scale. With
    `loss_scale`, `log` and `callback` show the gradient divided by it, in float32 instead of 16 bits. `check_numerics`
    then lets an infinity or nan pass while the scale is above 1 and can shrink, because the optimizer skips the step
    and tries a smaller scale. (A Python or NumPy number cannot shrink.)

    Under `tf.vectorized_map`, and so in Jacobians, `log` and `check_numerics` see all members at once, and `callback`
    one after the other; TensorFlow also runs the first member alone. In forward mode you also see a gradient for an
    upstream that TensorFlow makes up.

    Args:
      x: A Tensor or Variable of dtype float16, bfloat16, float32, float64, complex64 or complex128, or a nested
        structure of them.
      name: The name of the gradient in messages. In a structure it is followed by the position: `name[0]`.
      log: Whether to print the gradient.
      check_numerics: Whether to check that all elements are finite.
      callback: A Python function of a NumPy array that returns None. In a structure it is called for each tensor's
        gradient.
      loss_scale: What the loss is multiplied by: a number, a scalar Variable or Tensor, a
        `keras.mixed_precision.LossScaleOptimizer` of Keras 3 or tf_keras, or a function without arguments that returns
        one of them. The forward pass reads it.

    Returns:
      The values of `x`, in its structure.

    Raises:
      TypeError: An argument has the wrong type or dtype; in eager mode, `callback` returned something.
      ValueError: `name` or `x` is empty; you chose no option; or `loss_scale` is not a single finite number above 0.
      NotImplementedError: XLA would compile it.
      tf.errors.InvalidArgumentError: `check_numerics` found an element that is not finite.
      tf.errors.OpError: In a graph: `callback` raised an exception or returned something.

    Differs from `tf.debugging.enable_check_numerics`, which checks all ops, and `tf.debugging.check_numerics`, which
    checks a value. It cannot change the gradient, as a hook in PyTorch can; use `tf_cg_ops.custom_gradient` for that.
    """
    return watched(_API, x, name, log, check_numerics, callback, loss_scale)


@tf_internal.autograph_artifact
def watched(
    api: str,
    x: Any,
    name: str,
    log: bool,
    check_numerics: bool,
    callback: Callable[..., Any] | None,
    loss_scale: Any,
) -> Any:
    """`watch_gradient`, with the name `api` in messages."""
    check_arguments(api, name, log, check_numerics, callback)
    scaling = loss_scales.read(api, loss_scale)
    tensors = convert.leaves_to_tensors(api, x, "watch")
    names = [f"{name}[{i}]" for i in range(len(tensors))] if tf.nest.is_nested(x) else [name]
    wording = without_gradient_function(api)

    def identity(*tensors: tf.Tensor) -> Any:
        def grad_fn(*dys: Any) -> list[Any]:
            rows = zip(names, dys, strict=True)
            return [_watch(api, *row, log, check_numerics, callback, scaling) for row in rows]

        return list(tensors), grad_fn

    return tf.nest.pack_sequence_as(x, call_with_gradient(identity, tensors, {}, wording=wording))


def check_arguments(api: str, name: Any, log: Any, check_numerics: Any, callback: Any) -> None:
    """TypeError or ValueError unless `watch_gradient` takes these arguments."""
    if not isinstance(name, str):
        raise TypeError(f"{api}: name must be a string such as 'logits', got {text.describe(name)}. It follows x.")
    if not name:
        raise ValueError(f"{api}: name must not be empty. Pass the name to show in messages, such as 'logits'.")
    for argument, value in (("log", log), ("check_numerics", check_numerics)):
        if not isinstance(value, bool):
            raise TypeError(f"{api}: {argument} must be True or False, got {text.describe(value)}. Pass a Python bool.")
    if callback is not None and not callable(callback):
        raise TypeError(
            f"{api}: callback must be a function of an array, or None, got {text.describe(callback)}. Write for "
            "example callback=history.append, with a list."
        )
    if callback is not None:
        check_takes(callback, [np.zeros([])], {}, f"{api}: callback must take one array, the gradient")
    if callback is None and not (log or check_numerics):
        raise ValueError(
            f"{api}: choose what to do with the gradient of {name!r}: pass log=True, check_numerics=True, or a "
            "function as callback."
        )


def _watch(
    api: str,
    name: str,
    dy: Any,
    log: bool,
    check_numerics: bool,
    callback: Callable[..., Any] | None,
    scaling: loss_scales.LossScale | None,
) -> Any:
    """Prints, checks and passes on the gradient, as the options say, and returns it."""
    passed = slices.kept(dy)
    effects: list[Any] = []  # They run before the gradient is passed on.
    with tf.name_scope(re.sub(r"\W", "_", f"{_API}_{name}", flags=re.ASCII)), tf_internal.stop_recording():
        # Slices can name one position twice, and only their sum is the gradient there.
        dense = tf.convert_to_tensor(dy) if log or check_numerics or callback is not None else None
        if log or check_numerics:
            _refuse_xla(api, name, "log" if log else "check_numerics")
        if log:
            effects += _print(name, _unscaled(dense, scaling))
        if callback is not None:
            effects += _call_callback(api, name, _unscaled(dense, scaling), callback)
        # Last, so that the other options still show a gradient that fails the check.
        if check_numerics:
            with tf.control_dependencies(effects):
                effects += _check_numerics(api, name, _where_checked(dense, scaling))
    with tf.control_dependencies(effects):
        if isinstance(passed, tf.IndexedSlices):
            return tf.IndexedSlices(tf.identity(passed.values), passed.indices, passed.dense_shape)
        return tf.identity(passed)


def _unscaled(dy: tf.Tensor, scaling: loss_scales.LossScale | None) -> tf.Tensor:
    """The gradient of the loss itself, in at least 32 bits: 16 bits may not hold numbers that are so small."""
    if scaling is None:
        return dy
    dy = tf.cast(dy, tf.float32) if dy.dtype.size == 2 else dy
    return dy / tf.cast(scaling.scale, dy.dtype)


def _where_checked(dy: tf.Tensor, scaling: loss_scales.LossScale | None) -> tf.Tensor:
    """The gradient to check: zeros while the loss scale can still shrink."""
    if scaling is None or not scaling.can_shrink:
        return dy
    return tf.where(scaling.scale > 1, tf.zeros_like(dy), dy)


def _check_numerics(api: str, name: str, dy: tf.Tensor) -> list[Any]:
    """Raises InvalidArgumentError if an element is not finite, in a graph by ops that it returns."""
    message = f"{api}: the gradient of `{name}` must be finite, got "  # An assertion would escape quotes.
    if not tf.executing_eagerly():
        # tf.vectorized_map takes no check_numerics of a tensor that is the same for all members.
        checks = [tf.reduce_all(tf.math.is_finite(part)) for part in _real_parts(dy)]
        return [tf.debugging.Assert(is_finite, [f"{message}nan or infinity."]) for is_finite in checks]
    for part in _real_parts(dy):
        if not tf.reduce_all(tf.math.is_finite(part)):
            got = "nan" if tf.reduce_any(tf.math.is_nan(part)) else "infinity"
            raise tf.errors.InvalidArgumentError(None, None, f"{message}{got}.")
    return []


def _real_parts(values: tf.Tensor) -> list[tf.Tensor]:
    return [tf.math.real(values), tf.math.imag(values)] if values.dtype.is_complex else [values]


def _refuse_xla(api: str, name: str, argument: str) -> None:
    """NotImplementedError under XLA, which cannot print and drops checks silently."""
    if not tf.executing_eagerly() and tf_internal.is_traced_for_xla(tf.compat.v1.get_default_graph()):
        raise NotImplementedError(
            f"{api}: XLA cannot compile {argument} for the gradient of {name!r}. Compile a Keras model with "
            "jit_compile=False, and leave jit_compile=True out of every tf.function around it."
        )


def _print(name: str, values: tf.Tensor) -> list[tf.Operation]:
    """Prints a summary of a gradient and some of its elements."""
    parts = [tf.cast(part, tf.float64) for part in _real_parts(values)]
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(part)) for part in parts]))
    shown = [f"gradient of {name!r}: shape", tf.shape(values), "norm", norm]
    if values.dtype.is_complex:
        values = tf.strings.as_string(values, shortest=True)  # tf.print cannot show complex numbers.
    else:
        shown += ["smallest", tf.reduce_min(values), "largest", tf.reduce_max(values)]
    printed = tf.print(*shown, "elements", values, summarize=_PRINTED)
    return [] if tf.executing_eagerly() else [printed]


def _call_callback(api: str, name: str, dy: tf.Tensor, callback: Callable[..., Any]) -> list[tf.Tensor]:
    """Calls the user's function with a copy, because the array can share memory with a Tensor."""

    def call_with_array(lead: tuple[int, ...], is_stacked: Sequence[bool], array: np.ndarray) -> list[np.ndarray]:
        for position in np.ndindex(lead):
            returned = callback(np.array(array[position] if is_stacked[0] else array))
            if returned is not None:
                raise TypeError(
                    f"{api}: {text.name_of(callback)!r} must return None for the gradient of {name!r}, got "
                    f"{text.describe_type(returned)}. To change a gradient, use tf_cg_ops.custom_gradient."
                )
        return [np.ones(lead, bool)]  # tf.vectorized_map needs a result.

    if tf.executing_eagerly():
        call_with_array((), [False], dy.numpy())
        return []
    subject = f"{api}: {text.name_of(callback)!r}"
    advice = "Leave callback out of a graph that runs in another process."
    specs = [tf.TensorSpec([], tf.bool)]
    return python_op.call_python(subject, advice, call_with_array, [dy], specs, takes_examples=True)
