"""`embed_gradient`: a value with a derivative of your choice."""

from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, library, misplaced_calls, tf_internal
from tf_cg_ops._src.core.tf_internal import EagerTensor
from tf_cg_ops._src.embed_gradient import dynamic_axis, eager, lazy_gx
from tf_cg_ops._src.keras import dispatch, registration


@tf_internal.autograph_artifact
@misplaced_calls.notes_missing_arguments
def embed_gradient(
    fx: Any,
    gx: Any,
    x: Any,
    axis: Any = (),
    fx_gx_manually_stopped: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Returns `fx`, bit for bit, with `gx` as its derivative with respect to `x`.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x = tf.constant([1.0, 2.0, 3.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     h = cg.embed_gradient(fx=x**2, gx=2 * x, x=x)
    >>> tape.gradient(h, x, output_gradients=tf.constant([1.0, 10.0, 100.0])).numpy().tolist()
    [2.0, 40.0, 600.0]

    For an upstream gradient `dy`, which has the shape of `fx`, the gradient with respect to `x` is the vector-Jacobian
    product

        dx = sum_to_shape_of_x(dy * conj(gx))

    The forward pass moves no data: the result shares the buffer of `fx`, even if `x` or `gx` is not finite. `gx` is not
    read before a gradient is asked for.

    `axis` names the event dimensions of `x`: those that one element of `fx` depends on. The other dimensions of `x` are
    the batch. Shapes align from the right and broadcast, as in NumPy:

    - `fx` has the shape of the batch.
    - `gx` has the shape of `x`: one number for each element of `x`. With fewer dimensions than `x` it aligns with the
      batch, and every element of one event gets the same number.
    - `fx` and `gx` may have further dimensions in front: outputs that share one `x`. For a Jacobian, pass `axis=None`
      and a `gx` with the shape of `fx` followed by that of `x`.

    The guide "Shapes" has a table of these cases. Only shapes decide: if `x` is square, or a batch is as large as an
    event, a wrong `axis` looks like a right one.

    Args:
      fx: The value. A Tensor of dtype float16, bfloat16, float32, float64, complex64 or complex128, or a value that
        converts to one. Python numbers and NumPy arrays take the dtype of the Tensors among the arguments.
      gx: The derivative of `fx` with respect to `x`, in the dtype of `fx`. A list or tuple if `x` is one. Or a function
        without arguments that returns the derivative, or a list or tuple with such functions for single `x`: see below.
      x: The variable of the derivative, in the dtype of `fx`. A Tensor or Variable, or a list or tuple of them.
      axis: The event dimensions of each `x`: an int, a sequence of ints, or an integer Tensor of rank 0 or 1; negative
        values count from the end. `()`: none, `fx` is a function of single elements. `None`: all, each element of `fx`
        is a function of all of `x`. A Tensor whose value is not known while tracing costs a transposition of `x` and
        `gx`, and messages then show them with the event dimensions at the end.
      fx_gx_manually_stopped: If False, no gradient flows into the graph behind `fx` and `gx`: they get `None`, at every
        order. If True, both are differentiated, and the derivatives of every order are those of
        `fx + gx * (x - stop_gradient(x))`: `dy` flows into `fx`, zeros flow into `gx`, and mixed second derivatives
        exist for both orders of differentiation, one for each `gx` that carries them. If `gx` itself depends on an
        unstopped `x`, its second derivative counts twice (`2 * dgx/dx`); the guide "Shapes" shows how to get it right.
      name: A name for the operation.

    Returns:
      A Tensor with the value, shape and dtype of `fx`.

    Raises:
      ValueError: `gx` and `x` are lists of different lengths, or empty; or, while a graph is traced, the shapes do not
        fit (see InvalidArgumentError).
      TypeError: A dtype is not supported or they differ; `axis` is a bool or not an integer; `fx_gx_manually_stopped`
        is not a bool; an argument does not convert to a Tensor.
      tf.errors.InvalidArgumentError: The shapes do not broadcast, `fx` is not of their broadcast shape without `axis`
        (nor a scalar where that is the shape of `x`), or `axis` names a dimension that `x` does not have, or one twice.

    If `gx` is expensive, pass a function: inference does not call it.

    >>> cg.embed_gradient(x**2, lambda: print("called") or 2 * x, x).numpy().tolist()
    [1.0, 4.0, 9.0]
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     h = cg.embed_gradient(x**2, lambda: print("called") or 2 * x, x)
    >>> tape.gradient(h, x).numpy().tolist()
    called
    [2.0, 4.0, 6.0]

    In eager mode the function is called when a gradient is first asked for, once for each call of `embed_gradient`: a
    persistent tape, Jacobians and forward mode share the result. It is checked as a `gx` that is a Tensor. The function
    runs on no tape; a tape that it opens itself records, unless others do at that time or forward mode asks. It reads
    variables as they are then, and the tensors that it refers to live until no tape can ask for a gradient. With
    `fx_gx_manually_stopped` the function is differentiated, so it is called at once if a tape or accumulator records.
    In a graph, and for KerasTensors, it is called at once, while tracing.

    `embed_gradient` does not differentiate `gx` (unless `fx_gx_manually_stopped`) and does not verify it: use
    `tf_cg_ops.testing.check_gradient`.

    Compared with TensorFlow: `tf.custom_gradient` takes a function instead of values, as `tf_cg_ops.custom_gradient`
    does; its second derivative is that of `grad_fn`. TensorFlow Probability's `tfp.math.custom_gradient` and TensorFlow
    1's `tf.contrib.bayesflow.custom_grad.custom_gradient` take the same arguments as `embed_gradient` and compute
    `fx + gx * (x - stop_gradient(x))`, which is `nan` where `x` or `gx` is not finite. `tf_cg_ops.compat` has both with
    their own signatures. The formula is theirs.
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
    gx = lazy_gx.called_or_lazy("embed_gradient", fx, gx, x, fx_gx_manually_stopped)
    args = fx, gx, x, axis, fx_gx_manually_stopped, name
    package = dispatch.package_of_keras_tensors(args)
    if package:
        return dispatch.call_symbolically(package, embed_gradient, args, {})
    return embed("embed_gradient", *args)


@tf_internal.autograph_artifact
def embed(
    api: str, fx: Any, gx: Any, x: Any, axis: Any, fx_gx_manually_stopped: Any, name: str | None = None
) -> tf.Tensor:
    """`embed_gradient` of Tensors, or with a LazyGx, with the name `api` in messages."""
    stopped = convert.to_stopped(api, fx_gx_manually_stopped)
    axis = convert.to_axis(api, axis)
    if isinstance(gx, lazy_gx.LazyGx):
        return lazy_gx.embed(api, fx, gx, x, axis, name)
    fx, gx, x, suffixes = convert.to_tensor_pairs(api, fx, gx, x)
    if isinstance(axis, tf.Tensor):
        pairs = [
            dynamic_axis.flatten_event_last(api, suffix, fx, g, t, axis)
            for suffix, g, t in zip(suffixes, gx, x, strict=True)
        ]
        gx, x = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        axis = [-1]
    return embed_tensors(fx, gx, x, axis, stopped, name)


def embed_tensors(
    fx: tf.Tensor, gx: list[tf.Tensor], x: list[tf.Tensor], axis: list[int] | None, stopped: bool, name: str | None
) -> tf.Tensor:
    """`embed_gradient` for arguments that are converted already."""
    all_axes, axis = axis is None, axis or []
    if not stopped and tf_internal.could_possibly_record() and tf.executing_eagerly():
        return eager.embed(fx, gx, x, axis, all_axes, name)
    return library.run_op(
        library.custom_gradient_embed,
        *(fx, gx, x),
        fx_gx_manually_stopped=stopped,
        axis=axis,
        all_axes=all_axes,
        name=name,
    )


registration.functions["embed_gradient"] = embed_gradient
