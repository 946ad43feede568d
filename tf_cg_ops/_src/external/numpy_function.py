"""`numpy_function`: makes a TensorFlow function from Python functions that compute its value and its gradient."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, misplaced_calls, text, tf_internal
from tf_cg_ops._src.core.signature import check_argument_names, has_parameter
from tf_cg_ops._src.core.types import Structure
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.external.adjoint import call_in_python
from tf_cg_ops._src.external.arguments import API, find_tensors
from tf_cg_ops._src.external.python_call import Call, Options

# For calls that were written for tf.numpy_function(func, inp, Tout).
_ADVICE_FOR_CALLS = (
    "Unlike tf.numpy_function, it takes a function and returns one: write numpy_function(f, output_signature)(x), "
    "and name the options, as in batched=True."
)


@tf_internal.autograph_artifact
@misplaced_calls.explains(API, _ADVICE_FOR_CALLS)
def numpy_function(
    f: Callable[..., tuple[Structure, Any]],
    output_signature: tf.TensorSpec | Structure | None = None,
    *,
    vjp: Callable[..., Structure] | None = None,
    jvp: Callable[..., Structure] | None = None,
    batched: bool = False,
    nondiff_argnames: Collection[str] = (),
    name: str | None = None,
) -> Callable[..., Structure]:
    """Makes a differentiable TensorFlow function from a Python function of NumPy arrays.

    Use it to train through SciPy, a simulator, or other code that TensorFlow cannot differentiate.

    >>> import numpy as np
    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> square_root = cg.numpy_function(lambda x: (np.sqrt(x), 0.5 / np.sqrt(x)))
    >>> x = tf.constant([1.0, 4.0, 16.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = square_root(x)
    >>> y.numpy().tolist(), tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0, 100.0])).numpy().tolist()
    ([1.0, 2.0, 4.0], [0.5, 2.5, 12.5])

    `f(*arrays)` returns `(value, gradients)`. With the gradient `g` of the value with respect to the input `x`, and the
    upstream gradient `dy`,

        dx = sum over the dimensions of the value of dy * conj(g)

    Inputs of floating-point or complex numbers are differentiable: Tensors, Variables, arrays and Python numbers, also
    in lists, tuples and dicts. For one such input, `gradients` is one array; for several, a list or tuple in the order
    of the signature, with the ones of `**kwargs` sorted by name. Tensors of other dtypes reach `f` as arrays, and other
    values, such as an int or a string, unchanged. Neither has a gradient.

    | `output_signature`     | `batched` | value         | gradient with respect to `x`     |
    |------------------------|-----------|---------------|----------------------------------|
    | `None`                 |           | `[...]`       | `[...]`: elementwise, as a ufunc |
    | `tf.TensorSpec(shape)` | `False`   | `shape`       | `shape + x.shape`                |
    | `tf.TensorSpec(shape)` | `True`    | `[B] + shape` | `[B] + shape + x.shape[1:]`      |

    Without an `output_signature`, the value has the shape to which the differentiable inputs broadcast, and the dtype
    of the first. With `batched`, all differentiable inputs have the leading dimension `B`, and one call computes the
    whole batch.

    With a `vjp`, you need no Jacobian, and the gradient is only computed if you use it. `f(*arrays)` then returns
    `(value, residuals)`, with any Python object as residuals. With one upstream gradient `dy` for each leaf of the
    value,

        dx = vjp(residuals, *dy)

    It runs in this Python process only: not under XLA, and not in a SavedModel. A graph does not call `f` if it uses
    neither its value nor its gradient. The guide "Solvers and black boxes" has examples with `vjp` and `jvp`, second
    derivatives, complex numbers and the limits.

    Args:
      f: Any callable. It gets copies of the inputs, which it can overwrite.
      output_signature: The shape and dtype of one value, without the batch, as a `tf.TensorSpec`. Dimensions can be
        `None`. The dtype is float16, bfloat16, float32, float64, complex64 or complex128; the inputs can have others
        of these. With `vjp` it can be a structure of TensorSpecs, also of integers and bools, which have no gradient.
      vjp: `vjp(residuals, *dy, **nondiff)` returns one array for each differentiable input, of its shape. `nondiff` are
        the arguments in `nondiff_argnames`. For an integer or bool in the value, its `dy` is zeros. If it has a
        parameter `needed`, it gets a tuple of bools, one for each input, and can return `None` where that is False.
      jvp: `jvp(residuals, *tangents, **nondiff)` returns the tangents of the value, in its structure, from one tangent
        for each differentiable input. Forward mode needs it if there is a `vjp`.
      batched: Whether one call computes a batch. In `tf.vectorized_map`, one call then gets all members: without an
        `output_signature` with one more dimension in front, otherwise as one longer batch. A Tensor without a gradient
        that differs between the members needs a call for each, and so does `tf.map_fn`.
      nondiff_argnames: The names of arguments of `f` that have no gradient.
      name: A name for the operations.

    Returns:
      A function with the signature of `f` that returns Tensors, in the structure of `output_signature`.

    Raises:
      TypeError: An argument has the wrong type; `f` does not return a pair; there is neither a differentiable
        input nor an `output_signature`.
      ValueError: `nondiff_argnames` or a result does not fit, or `jvp` lacks a `vjp`.
      NotImplementedError: Under XLA, in forward mode without a `jvp`, or for second derivatives.
      tf.errors.OpError: In a graph: one of these, or an exception of `f`.

    Differs from `tf.numpy_function`, which calls a function and returns values without gradients and static shapes.
    """
    misplaced_calls.check_function(API, "the argument", f, _ADVICE_FOR_CALLS)
    _check_options(output_signature, vjp, jvp, batched)
    dtypes = [spec.dtype for spec in tf.nest.flatten(output_signature)] if output_signature is not None else []
    float_dtype = next((dtype for dtype in dtypes if dtype in convert.DTYPES), None)

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        tensors, arguments = find_tensors(function, args, kwargs, nondiff_argnames, float_dtype)
        call = Call(options, arguments)
        if tf.executing_eagerly():
            outputs = call_in_python(call, tensors)
        else:
            # The error of a graph that cannot be saved shows this name.
            with tf.name_scope(name or re.sub(r"\W", "_", f"{API}_of_{text.name_of(function)}", flags=re.ASCII)):
                outputs = call_in_python(call, tensors)
        return outputs[0] if options.is_single else tf.nest.pack_sequence_as(output_signature, outputs)

    wrapped = CustomGradient(API, f, run)
    nondiff_argnames = check_argument_names(API, f, nondiff_argnames)
    takes_needed = vjp is None or ("needed" not in nondiff_argnames and has_parameter(vjp, "needed"))
    options = Options(output_signature, vjp, jvp, batched, takes_needed)
    return wrapped


def _check_options(
    output_signature: Any, vjp: Callable[..., Any] | None, jvp: Callable[..., Any] | None, batched: bool
) -> None:
    """TypeError or ValueError for options that `numpy_function` does not take."""
    specs = [output_signature] if vjp is None else tf.nest.flatten(output_signature) or [None]
    for spec in [] if output_signature is None else specs:
        is_known = isinstance(spec, tf.TensorSpec)
        is_constant = vjp is not None and is_known and (spec.dtype.is_integer or spec.dtype.is_bool)
        if not is_known or not (is_constant or spec.dtype in convert.DTYPES):
            supported = ", ".join(dtype.name for dtype in convert.DTYPES)
            others = ", an integer or bool" if vjp is not None else ""
            raise TypeError(
                f"{API}: output_signature must be a tf.TensorSpec with a dtype of {supported}{others}, got "
                f"{spec!r}. Write for example output_signature=tf.TensorSpec([3], tf.float64), or leave it out for an "
                "elementwise function."
            )
        if spec.shape.rank is None:
            raise ValueError(
                f"{API}: output_signature must have a known rank, got {spec!r}. Write None for a dimension of unknown "
                "size: tf.TensorSpec([None], tf.float64)."
            )
    for option, function, vectors in (("vjp", vjp, "dy"), ("jvp", jvp, "tangents")):
        if function is not None:
            noun = f"a function {option}(residuals, *{vectors})"
            misplaced_calls.check_function(API, option, function, noun=noun)
    if jvp is not None and vjp is None:
        raise ValueError(
            f"{API}: jvp needs a vjp, got jvp={text.name_of(jvp)} alone. Pass both, or leave out jvp: the gradients "
            "that a function returns also give its tangents."
        )
    if not isinstance(batched, bool):
        raise TypeError(f"{API}: batched must be True or False, got {text.describe(batched)}. Pass a Python bool.")
