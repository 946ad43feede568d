"""`numpy_function`: a TensorFlow function from Python functions that compute its value and its gradient."""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, python_op, text, tf_internal
from tf_cg_ops._src.core.signature import check_argument_names, has_parameter
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.embed_gradient.api import embed_tensors
from tf_cg_ops._src.external.adjoint import ADVICE, call_with_adjoint
from tf_cg_ops._src.external.arguments import API, elementwise_output, find_tensors
from tf_cg_ops._src.external.python_call import AdjointCall, ValueWithGradients


@tf_internal.autograph_artifact
def numpy_function(
    f: Callable[..., Any],
    output: Any = None,
    *,
    vjp: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    batched: bool = False,
    nondiff_argnames: Collection[str] = (),
    name: str | None = None,
) -> Callable[..., Any]:
    """Makes a differentiable TensorFlow function from a Python function that computes with NumPy arrays.

    `f(*arrays)` returns `(value, gradients)`, from SciPy, a solver or a simulator. With the gradient `g` of the value
    with respect to the input `x`, and the upstream gradient `dy`,

        dx = sum over the dimensions of the value of dy * conj(g)

    For a complex `x`, `g` is the derivative if the function is holomorphic. If the value is real, such as `abs(z)**2`,
    `g` is the complex conjugate of TensorFlow's gradient: `2 * conj(z)`.

    `gradients` is one array for one differentiable input, else a list or tuple with one for each, in the order of the
    signature. Floating-point and complex numbers are differentiable: Tensors, Variables, arrays and Python numbers.
    Tensors of other dtypes reach the function as arrays and have no gradient; other values (an int, a string, a
    callable) reach it unchanged. A list, tuple or dict is a structure of inputs.

    | `output`     | `batched` | value              | gradient with respect to `x`     |
    |--------------|-----------|--------------------|----------------------------------|
    | `None`       |           | `[...]`            | `[...]`: elementwise, as a ufunc |
    | a TensorSpec | `False`   | `output.shape`     | `output.shape + x.shape`         |
    | a TensorSpec | `True`    | `[B] + output.shape` | `[B] + output.shape + x.shape[1:]` |

    Without an `output`, the differentiable inputs broadcast to the shape of the value, and the first has its dtype.
    With `batched`, all of these inputs have the leading dimension `B`, and one call gets the whole batch. For a
    function of a single example use `tf.map_fn`, which calls it once for each.

    One call computes value and gradient together. The function gets copies, which it may overwrite. Its results are
    copied and cast; they may be complex if the output or the input is. In eager mode it is called directly. In a graph
    it is a stateful operation, as with `tf.numpy_function`, since a simulator may draw random numbers: TensorFlow does
    not merge it with another call, drop it or run it ahead of time. There TensorFlow turns an exception of the function
    into one of its own, with the same text.

    Adjoints. With `vjp`, no Jacobian is made, and nothing is computed for a gradient before somebody asks for it.
    `f(*arrays)` then returns `(value, residuals)`, with any Python object as residuals. `output` is a TensorSpec or a
    structure of them, which the value has; integers and bools among them have no gradient. For the upstream gradients
    `dy`, one array for each leaf of the value (zeros for an integer),

        dx = vjp(residuals, *dy, **nondiff)

    as `backward` of `tf_cg_ops.custom_vjp`: `nondiff` holds the arguments that `nondiff_argnames` names. It returns
    one array for each differentiable input, of its shape. If `vjp` has a parameter `needed`, it gets a tuple of bools,
    one for each entry, and may return `None` where it is False; see `tf_cg_ops.custom_vjp` for its value. The residuals
    live as long as the tape, the loop or the run of the graph that may ask for the gradient.

    `jvp(residuals, *tangents, **nondiff)`, with one tangent for each differentiable input, returns the tangents of the
    value, in its structure, for `tf.autodiff.ForwardAccumulator`; without it forward mode is an error.

    Second derivatives need a `vjp` of Tensors: one that `numpy_function` or another function of this library made, or
    a `tf.function`. It gets a tuple of the arguments of `f` instead of the residuals. With a `vjp` of arrays they
    are an error in eager mode; in a graph, the residuals count as constants if there is a `jvp`.

    Limitations. It does not run under XLA: `jit_compile=True` is refused, so compile a Keras model with
    `jit_compile=False`, or set `supports_jit = False` in a layer of Keras 3. It does not run without this Python
    process: `tf.saved_model.save` and the `export` of Keras raise an error, and a graph that is saved nevertheless,
    without custom gradients, raises one when it is called. `model.save` of Keras 3 and checkpoints work, since they
    hold no graph. Without `vjp`, second derivatives are `None`: the gradient is a constant to TensorFlow.

    Compared with others: `tf.numpy_function` has no gradient, and no shape. `jax.pure_callback` inside a
    `jax.custom_vjp` is the nearest in JAX, `torch.autograd.Function` in PyTorch. For values and gradients that are
    Tensors already, use `tf_cg_ops.embed_gradient`.

    >>> import numpy as np
    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> square_root = cg.numpy_function(lambda x: (np.sqrt(x), 0.5 / np.sqrt(x)))
    >>> x = tf.constant([1.0, 4.0, 16.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = square_root(x)
    >>> y.numpy().tolist()
    [1.0, 2.0, 4.0]
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0, 100.0])).numpy().tolist()
    [0.5, 2.5, 12.5]

    The solution of a linear system, with its adjoint, a system with the transposed matrix:

    >>> def solve(matrix, right):
    ...     value = np.linalg.solve(matrix, right)
    ...     return value, (matrix, value)
    >>> def adjoint(residuals, dy):
    ...     matrix, value = residuals
    ...     by_right = np.linalg.solve(matrix.T, dy)
    ...     return -np.outer(by_right, value), by_right
    >>> linear = cg.numpy_function(solve, output=tf.TensorSpec([2]), vjp=adjoint)
    >>> matrix, right = tf.constant([[2.0, 0.0], [1.0, 4.0]]), tf.constant([2.0, 5.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(right)
    ...     y = linear(matrix, right)
    >>> tape.gradient(y, right, output_gradients=tf.constant([1.0, 8.0])).numpy().tolist()
    [-0.5, 2.0]

    Args:
      f: The function: any callable.
      output: The shape and dtype of one value, without the batch. Dimensions may be `None`; the dtype is float16,
        bfloat16, float32, float64, complex64 or complex128. The inputs may have others of these dtypes. With `vjp`,
        also a structure, and integers and bools.
      vjp: The vector-Jacobian product, from the residuals and the upstream gradients.
      jvp: The Jacobian-vector product, from the residuals and the tangents.
      batched: Whether one call computes a batch. Without an `output` it changes nothing.
      nondiff_argnames: The names of arguments of `f` that have no gradient; `vjp` and `jvp` get them by keyword.
      name: A name for the operations.

    Returns:
      A function with the signature of `f` that returns the value as a Tensor, or as Tensors in the structure of
      `output`.

    Raises:
      TypeError: `f` is not callable; `output` does not hold TensorSpecs of one of the dtypes, `batched` is not a bool,
        or `vjp` or `jvp` is not a function. At the call: an argument does not convert to a Tensor, no argument is
        differentiable and there is no `output`, `f` does not return a pair, or a result is not an array of numbers, or
        complex where the output is real.
      ValueError: `nondiff_argnames` names no arguments, the rank of `output` is unknown, or there is a `jvp` without a
        `vjp`. At the call: there is a wrong number of gradients, or one is `None`, or a result has the wrong shape or
        structure.
      NotImplementedError: XLA compiles the function that is traced. Forward mode has no `jvp`, or a second derivative
        a `vjp` of arrays.
      tf.errors.OpError: In a graph: `f` raised an exception, or its results have one of these errors.
    """
    _check_options(output, vjp, jvp, batched)
    dtypes = [spec.dtype for spec in tf.nest.flatten(output)] if output is not None else []
    float_dtype = next((dtype for dtype in dtypes if dtype in convert.DTYPES), None)

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        tensors, arguments = find_tensors(function, args, kwargs, nondiff_argnames, float_dtype)
        # The error of a graph that cannot be saved shows this name.
        with tf.name_scope(name or re.sub(r"\W", "_", f"{API}_of_{text.name_of(function)}", flags=re.ASCII)):
            options = {
                "output": elementwise_output(arguments) if output is None else output,
                "elementwise": output is None,
                "batched": batched and output is not None,
            }
            if vjp is not None:
                options |= {"vjp": vjp, "jvp": jvp, "takes_needed": takes_needed}
                return call_with_adjoint(AdjointCall(arguments, **options), tensors)
            call = ValueWithGradients(arguments, **options)
            if tf.executing_eagerly():
                computed = [tf.constant(array) for array in call(*[tensor.numpy() for tensor in tensors])]
            else:
                computed = python_op.call_python(arguments.subject, ADVICE, call, tensors, call.value_specs())
            return _with_gradients(call, computed[0], computed[1:], tensors)

    wrapped = CustomGradient(API, f, run)
    nondiff_argnames = check_argument_names(API, f, nondiff_argnames)
    takes_needed = vjp is not None and "needed" not in nondiff_argnames and has_parameter(vjp, "needed")
    return wrapped


def _check_options(output: Any, vjp: Callable[..., Any] | None, jvp: Callable[..., Any] | None, batched: bool) -> None:
    """Raises TypeError for options that are not of the right type."""
    specs = [output] if vjp is None else tf.nest.flatten(output) or [None]
    for spec in [] if output is None else specs:
        is_known = isinstance(spec, tf.TensorSpec)
        is_constant = vjp is not None and is_known and (spec.dtype.is_integer or spec.dtype.is_bool)
        if not is_known or not (is_constant or spec.dtype in convert.DTYPES):
            supported = ", ".join(dtype.name for dtype in convert.DTYPES)
            others = ", an integer or bool" if vjp is not None else ""
            raise TypeError(
                f"{API}: output must be a tf.TensorSpec with a dtype of {supported}{others}, got "
                f"{spec!r}. Write for example output=tf.TensorSpec([3], tf.float64), or leave it out for a "
                "function of single elements."
            )
        if spec.shape.rank is None:
            raise ValueError(
                f"{API}: output must have a known rank, got {spec!r}. Write None for a dimension of unknown "
                "size: tf.TensorSpec([None], tf.float64)."
            )
    for option, function in (("vjp", vjp), ("jvp", jvp)):
        if function is not None and not callable(function):
            raise TypeError(
                f"{API}: {option} is not a function; expected a function or another callable, got "
                f"{text.describe_type(function)}. Pass the function itself: {option}(residuals, *vectors)."
            )
    if jvp is not None and vjp is None:
        raise ValueError(
            f"{API}: there is a jvp without a vjp; expected both, or a vjp alone, got jvp={text.name_of(jvp)}. A "
            "function that returns its gradients has its tangents by them."
        )
    if not isinstance(batched, bool):
        raise TypeError(
            f"{API}: batched is not a bool; expected True or False, got {text.describe(batched)}. Pass a Python bool."
        )


def _with_gradients(
    call: ValueWithGradients, value: tf.Tensor, gradients: list[tf.Tensor], tensors: Sequence[tf.Tensor]
) -> tf.Tensor:
    """The value in the dtype of the output, with its gradients with respect to the differentiable inputs."""
    x = [tensor for tensor, spec in zip(tensors, call.arguments.inputs, strict=True) if spec.differentiable]
    if gradients:
        rows = [tf.cast(tensor, call.dtype) for tensor in x]
        axis: list[int] | None = [] if call.elementwise else None
        if call.batched:
            rows, axis = [_to_rows(tensor, call.output.shape.rank) for tensor in rows], [-1]
        value = embed_tensors(value, gradients, rows, axis, stopped=False, name=None)
    return value if value.dtype == call.output.dtype else tf.cast(tf.math.real(value), call.output.dtype)


def _to_rows(x: tf.Tensor, rank: int) -> tf.Tensor:
    """Each example as one row, after a dimension of size 1 for each dimension of the value."""
    if x.shape.is_fully_defined():
        return tf.reshape(x, [x.shape[0], *[1] * rank, x.shape[1:].num_elements()])
    shape = tf.shape(x)
    return tf.reshape(x, tf.concat([shape[:1], [1] * rank, [tf.reduce_prod(shape[1:])]], 0))
