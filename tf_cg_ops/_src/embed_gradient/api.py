"""`embed_gradient`: a value with a derivative of your choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, library, misplaced_calls, tf_internal
from tf_cg_ops._src.core.tf_internal import EagerTensor
from tf_cg_ops._src.core.types import Axis, Structure, TensorLike
from tf_cg_ops._src.embed_gradient import dynamic_axis, eager, lazy_gx
from tf_cg_ops._src.keras import dispatch, registration


@tf_internal.autograph_artifact
@misplaced_calls.notes_missing_arguments
def embed_gradient(
    fx: TensorLike,
    gx: Structure | Callable[[], Structure],
    x: Structure,
    axis: Axis | tf.Tensor = (),
    fx_gx_manually_stopped: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Returns `fx`, bit for bit, with `gx` as its derivative with respect to `x`.

    Use it if you have the derivative as a Tensor, from a formula or a solver, instead of a gradient function.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x = tf.constant([1.0, 2.0, 3.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     h = cg.embed_gradient(fx=x**2, gx=2 * x, x=x)
    >>> tape.gradient(h, x, output_gradients=tf.constant([1.0, 10.0, 100.0])).numpy().tolist()
    [2.0, 40.0, 600.0]

    For an upstream gradient `dy`, which has the shape of `fx`, the gradient with respect to `x` is

        dx = sum_to_shape_of_x(dy * conj(gx))

    The result shares the buffer of `fx`, and `gx` is only read when you compute a gradient. To check that `gx` is
    right, use `tf_cg_ops.testing.check_gradient`.

    `axis` names the event dimensions of `x`: the ones that a single element of `fx` depends on. The other dimensions of
    `x` are the batch. Shapes align from the right and broadcast, as in NumPy:

    - `fx` has the shape of the batch.
    - `gx` has the shape of `x`. With fewer dimensions than `x` it has the shape of the batch, and all elements of one
      event share a number.
    - `fx` and `gx` can have more dimensions in front, for outputs that share one `x`. For a Jacobian, pass `axis=None`
      and a `gx` of shape `fx.shape + x.shape`.

    The guide "Shapes and second derivatives" has a table of cases, and more about a `gx` that is a function. Only
    shapes are checked, so if `x` is square, or a batch is as large as an event, a wrong `axis` goes unnoticed.

    Args:
      fx: The value, of dtype float16, bfloat16, float32, float64, complex64 or complex128. Python numbers and NumPy
        arrays take the dtype of the Tensors among the arguments.
      gx: The derivative of `fx` with respect to `x`, in the dtype of `fx`. A list or tuple if `x` is one. Or a function
        without arguments that returns it, or a list or tuple with such functions; inference does not run them.
      x: The variable of the derivative, in the dtype of `fx`: a Tensor or Variable, or a list or tuple of them.
      axis: The event dimensions of each `x`: an int, a sequence of ints, or an integer Tensor of rank 0 or 1; negative
        values count from the end. With `()`, `fx` is elementwise. With `None`, each element of `fx` depends on all of
        `x`.
      fx_gx_manually_stopped: If False, no gradient flows into the graph behind `fx` and `gx`: they get `None`. If True,
        both are differentiated as in the formula `fx + gx * (x - stop_gradient(x))`, so you have to stop `x` inside of
        `fx` yourself.
      name: A name for the operation.

    Returns:
      A Tensor with the value, shape and dtype of `fx`.

    Raises:
      TypeError: An argument has the wrong type, or an unsupported or different dtype.
      ValueError: `gx` and `x` are lists of different lengths, or empty; or, while a graph is traced, one of the next
        errors.
      tf.errors.InvalidArgumentError: The shapes do not fit, or `axis` names a dimension twice or one that `x` does not
        have.

    Differs from `tfp.math.custom_gradient` and TensorFlow 1's `tf.contrib.bayesflow.custom_grad.custom_gradient`, where
    the formula above comes from (`tf_cg_ops.compat` has both with their own signatures):

    - The value is `fx` where `x` or `gx` is not finite; theirs is `nan`.
    - The gradient is a vector-Jacobian product; TFP multiplies `gx` by the mean of `dy`.
    - `gx` can have the shape of `x` together with `axis`, or be a function.
    """
    if (
        type(fx) is type(gx) is type(x) is EagerTensor
        and type(axis) is tuple
        and not axis
        and fx_gx_manually_stopped is False
        and tf.executing_eagerly()
    ):
        h = eager.embed_elementwise(fx, gx, x)
        if h is not None:
            return h
    misplaced_calls.check_values("embed_gradient", fx=fx, gx=gx, x=x)
    package = dispatch.package_of_keras_tensors((fx, gx, x, axis, fx_gx_manually_stopped, name))
    if package:
        gx = lazy_gx.called("embed_gradient", gx)
        return dispatch.call_symbolically(package, embed_gradient, (fx, gx, x, axis, fx_gx_manually_stopped, name), {})
    return embed("embed_gradient", fx, gx, x, axis, fx_gx_manually_stopped, name)


@tf_internal.autograph_artifact
def embed(
    api: str, fx: Any, gx: Any, x: Any, axis: Any, fx_gx_manually_stopped: Any, name: str | None = None
) -> tf.Tensor:
    """Settles all arguments of `embed_gradient`; messages name `api`."""
    stopped = convert.to_bool(api, "fx_gx_manually_stopped", fx_gx_manually_stopped)
    axis = convert.to_axis(api, axis)
    gx = lazy_gx.called(api, gx, None if stopped and tf_internal.could_possibly_record() else x)
    fx, gx, x, suffixes = convert.to_tensor_pairs(api, fx, gx, x)
    if isinstance(axis, tf.Tensor):
        rows = zip(suffixes, gx, x, strict=True)
        pairs = [dynamic_axis.flatten_event_last(api, suffix, fx, g, t, axis) for suffix, g, t in rows]
        gx, x, axis = [g for g, _ in pairs], [t for _, t in pairs], [-1]
    return embed_tensors(fx, gx, x, axis, stopped, name)


def embed_tensors(
    fx: tf.Tensor, gx: list[tf.Tensor], x: list[tf.Tensor], axis: list[int] | None, stopped: bool, name: str | None
) -> tf.Tensor:
    """`embed_gradient` of Tensors, with an axis that is known, or None for all."""
    alignment = {"axis": axis or [], "all_axes": axis is None}
    if not stopped and tf_internal.could_possibly_record() and tf.executing_eagerly():
        return eager.embed_and_record(fx, gx, x, alignment, name)
    attributes = alignment | {"fx_gx_manually_stopped": stopped, "name": name}
    return library.run_op(library.custom_gradient_embed, fx, gx, x, **attributes)


registration.functions["embed_gradient"] = embed_gradient
