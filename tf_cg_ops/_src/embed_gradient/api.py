"""`embed_gradient`: a value with its derivative."""

from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, library, tf_internal
from tf_cg_ops._src.core.tf_internal import EagerTensor
from tf_cg_ops._src.embed_gradient import dynamic_axis, eager, lazy_gx
from tf_cg_ops._src.keras import dispatch, registration


@tf_internal.autograph_artifact
def embed_gradient(
    fx: Any,
    gx: Any,
    x: Any,
    axis: Any = (),
    fx_gx_manually_stopped: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Returns `fx`, bit for bit, with `gx` as its derivative with respect to `x`.

    For an upstream gradient `dy` (the cotangent, of the shape of `fx`), the gradient with respect to `x` is the
    vector-Jacobian product

        dx = sum_to_shape_of_x(dy * conj(gx))

    The forward pass moves no data: the result shares the buffer of `fx`, whatever `x` and `gx` hold. `gx` is not read
    before a gradient is asked for.

    Shapes. `axis` names the dimensions of `x` that are the domain of one function; the other dimensions of `x` are the
    batch. Everything is aligned from the right and broadcasts, as in NumPy:

    - `fx` has the shape of the batch.
    - `gx` has the shape of `x`: one number for each element of `x`. With fewer dimensions than `x` it is aligned with
      the batch instead, and the same for every element of one domain.
    - `fx` and `gx` may have further dimensions in front, which are outputs that share one `x`: with `axis=None` a `gx`
      of the shape of `fx` followed by that of `x` is a Jacobian.

    | `fx`     | `x`          | `gx`        | `axis`       | `dx`                                                |
    |----------|--------------|-------------|--------------|-----------------------------------------------------|
    | `[n]`    | `[n]`        | `[n]`, `[]` | `()`         | `dy * gx`                                           |
    | `[n]`    | `[]`         | `[n]`       | `()`         | `sum(dy * gx)`                                      |
    | `[B, n]` | `[n]`        | `[B, n]`    | `()`         | `sum over B of dy * gx`                             |
    | `[]`     | `[n]`        | `[n]`, `[]` | `()`, `None` | `dy * gx`                                           |
    | `[B]`    | `[B, D]`     | `[B, D]`    | `-1`         | `dy[:, None] * gx`                                  |
    | `[B]`    | `[B, D]`     | `[B]`       | `-1`         | `(dy * gx)[:, None]`, the same along D              |
    | `[B]`    | `[B, D]`     | `[1, D]`    | `-1`         | `dy[:, None] * gx`, one row for all                 |
    | `[n]`    | `[m]`        | `[n, m]`    | `None`       | `dy @ gx`: a Jacobian                               |
    | `[B, n]` | `[B, 1, m]`  | `[B, n, m]` | `-1`         | a Jacobian for each example: pass `x[:, None, :]`   |

    Only shapes decide, so a square `x` or a batch as large as a domain cannot tell a wrong `axis` from a right one.

    Relation to upstream: `tfp.math.custom_gradient` and `tf.contrib.bayesflow.custom_grad.custom_gradient` take the
    same arguments and compute `fx + gx * (x - stop_gradient(x))`, which turns into `nan` where `x` or `gx` is not
    finite. `tf_cg_ops.compat` has both with their own signatures. `tf.custom_gradient` takes a function instead.

    `gx` may be a function without arguments that returns the derivative, for where it costs something to compute:

        dx = sum_to_shape_of_x(dy * conj(gx()))

    In eager mode it is called where a gradient is first asked for, once for each call of `embed_gradient`: never in
    inference, and once for all gradients of a persistent tape, Jacobians and forward mode included. It runs on no tape
    (one that it opens itself records, unless others do at that time or forward mode asks) and reads variables as they
    are then; what it refers to is kept until no tape may ask for a gradient any more. With
    `fx_gx_manually_stopped` it is differentiated, and so is called at once where a tape or accumulator records. In a
    graph, and for KerasTensors, it is called at once, while tracing.

    What it does not do: differentiate `gx` (unless `fx_gx_manually_stopped`), or check that `gx` is right.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x = tf.constant([1.0, 2.0, 3.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     h = cg.embed_gradient(fx=x**2, gx=2 * x, x=x)
    >>> tape.gradient(h, x, output_gradients=tf.constant([1.0, 10.0, 100.0])).numpy().tolist()
    [2.0, 40.0, 600.0]

    With a function, inference computes no derivative:

    >>> cg.embed_gradient(x**2, lambda: print("called") or 2 * x, x).numpy().tolist()
    [1.0, 4.0, 9.0]
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     h = cg.embed_gradient(x**2, lambda: print("called") or 2 * x, x)
    >>> tape.gradient(h, x).numpy().tolist()
    called
    [2.0, 4.0, 6.0]

    Args:
      fx: The value. A Tensor of dtype float16, bfloat16, float32, float64, complex64 or complex128, or what converts to
        one. Python numbers and NumPy arrays take the dtype of the Tensors among the arguments.
      gx: The derivative of `fx` with respect to `x`, in the dtype of `fx`. A list or tuple where `x` is one.
        Or a function without arguments that returns that, or a list or tuple with such functions for single `x`.
      x: What `gx` is the derivative with respect to, in the dtype of `fx`. A Tensor or Variable, or a list or tuple of
        them.
      axis: The dimensions of each `x` that are the domain of one function: an int, a sequence of ints, or an integer
        Tensor of rank 0 or 1; negative values count from the end. `()`: none, `fx` is a function of single elements.
        `None`: all, each element of `fx` is a function of all of `x`. A Tensor whose value is not known while tracing
        costs a transposition of `x` and `gx`, and messages then show them with the domain at the end.
      fx_gx_manually_stopped: If False, no gradient flows into the graph behind `fx` and `gx`: they get `None`, at every
        order. If True, they are used as given, and the derivatives of every order are those of
        `fx + gx * (x - stop_gradient(x))`: `dy` flows into `fx`, zeros flow into `gx`, and mixed second derivatives are
        there, for both orders of differentiation. As in the formula, a `gx` that itself depends on an unstopped `x`
        counts twice at second order (`2 * dgx/dx`), and a mixed second derivative counts once for each `gx` that
        carries it. `(gx + tf.stop_gradient(gx)) / 2` has the value `gx` and half its derivative, which makes the second
        derivative right (not the third); stopping `x` inside `gx` removes it. `tf_cg_ops.custom_gradient` has neither
        question: its second derivative is that of `grad_fn`.
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

    What a function `gx` returns is checked in the same way, once it was called.

    The formula with stop_gradient is that of TensorFlow Probability's and TensorFlow 1's `custom_gradient`.
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
    if lazy_gx.is_deferred(gx):
        gx = lazy_gx.call_if_due("embed_gradient", fx, gx, x, fx_gx_manually_stopped)
    return _embed_gradient(fx, gx, x, axis, fx_gx_manually_stopped, name)


@dispatch.takes_keras_tensors("embed_gradient")
def _embed_gradient(fx: Any, gx: Any, x: Any, axis: Any, fx_gx_manually_stopped: Any, name: str | None) -> tf.Tensor:
    api = "embed_gradient"
    stopped = convert.to_bool(api, fx_gx_manually_stopped)
    static_axis = convert.to_axis(api, axis)
    if not isinstance(static_axis, tf.Tensor) and lazy_gx.is_deferred(gx):
        return lazy_gx.embed(api, fx, gx, x, static_axis, name)
    fx, gx, x, suffixes = convert.to_tensor_pairs(api, fx, gx, x)
    if isinstance(static_axis, tf.Tensor):
        pairs = [
            dynamic_axis.move_domain_last(api, suffix, fx, g, t, static_axis)
            for suffix, g, t in zip(suffixes, gx, x, strict=True)
        ]
        gx, x = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        static_axis = [-1]
    return embed(fx, gx, x, static_axis, stopped, name)


def embed(
    fx: tf.Tensor, gx: list[tf.Tensor], x: list[tf.Tensor], axis: list[int] | None, stopped: bool, name: str | None
) -> tf.Tensor:
    """Calls the op with arguments that are converted already."""
    all_axes, axis = axis is None, axis or []
    if not stopped and tf_internal.could_possibly_record() and tf.executing_eagerly():
        return eager.embed(fx, gx, x, axis, all_axes, name)
    return eager.run_op(
        library.custom_gradient_embed,
        *(fx, gx, x),
        fx_gx_manually_stopped=stopped,
        axis=axis,
        all_axes=all_axes,
        name=name,
    )


registration.functions["embed_gradient"] = embed_gradient
