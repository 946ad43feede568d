"""`numpy_function`: a TensorFlow function from a Python function that returns its value and its gradient."""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, python_op, pytree, text, tf_internal
from tf_cg_ops._src.core.signature import check_argument_names
from tf_cg_ops._src.core.variables import as_variable
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.embed_gradient.api import embed_tensors
from tf_cg_ops._src.external.python_call import Input, PythonCall

_API = "numpy_function"


@tf_internal.autograph_artifact
def numpy_function(
    f_and_grad: Callable[..., Any],
    output: tf.TensorSpec | None = None,
    *,
    batched: bool = False,
    nondiff_argnames: Collection[str] = (),
    name: str | None = None,
) -> Callable[..., tf.Tensor]:
    """Makes a differentiable TensorFlow function from a Python function that computes with NumPy arrays.

    `f_and_grad(*arrays)` returns `(value, gradients)`, from SciPy, a solver or a simulator. With the gradient `g` of
    the value with respect to the input `x`, and the upstream gradient `dy`,

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

    Limitations. It does not run under XLA: `jit_compile=True` is refused, so compile a Keras model with
    `jit_compile=False`, or set `supports_jit = False` in a layer of Keras 3. It does not run without this Python
    process: saving the graph as a SavedModel is refused, and a graph that is saved nevertheless, without custom
    gradients, raises an error when it is called. `model.save` of Keras 3 and checkpoints work, since they hold no
    graph. Second derivatives are `None`: the gradient is a constant to TensorFlow.

    Compared with `tf.numpy_function`: that has no gradient, and no shape. For values and gradients that are Tensors
    already, use `tf_cg_ops.embed_gradient`.

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

    Args:
      f_and_grad: The function: any callable.
      output: The shape and dtype of one value, without the batch. Dimensions may be `None`; the dtype is float16,
        bfloat16, float32, float64, complex64 or complex128. The inputs may have others of these dtypes.
      batched: Whether one call computes a batch. Without an `output` it changes nothing.
      nondiff_argnames: The names of arguments of `f_and_grad` that have no gradient.
      name: A name for the operations.

    Returns:
      A function with the signature of `f_and_grad` that returns the value as a Tensor.

    Raises:
      TypeError: `f_and_grad` is not callable; `output` is not a TensorSpec of known rank with one of the dtypes, or
        `batched` is not a bool. At the call: an argument does not convert to a Tensor, no argument is differentiable
        and there is no `output`, or `f_and_grad` does not return a pair.
      ValueError: `nondiff_argnames` names no arguments. At the call: there is a wrong number of gradients, or one is
        `None`; a result has the wrong shape, or is complex where the output is real.
      NotImplementedError: XLA compiles the function that is traced.
      tf.errors.OpError: In a graph: `f_and_grad` raised an exception, or its results have one of these errors.
    """
    output_spec = _check_output(output)
    if not isinstance(batched, bool):
        raise TypeError(
            f"{_API}: batched is not a bool; expected True or False, got {text.describe(batched)}. Pass a Python bool."
        )

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> tf.Tensor:
        tensors, inputs, leaves = _find_inputs(function, args, kwargs, nondiff_argnames, output_spec)
        x = [tensor for tensor, spec in zip(tensors, inputs, strict=True) if spec.differentiable]
        call = PythonCall(
            function=function,
            structure=tf.nest.map_structure(lambda _: None, (list(args), kwargs)),
            leaves=leaves,
            inputs=inputs,
            output=output_spec or _elementwise_output(function, inputs),
            elementwise=output_spec is None,
            batched=batched and output_spec is not None,
        )
        # The error of a graph that cannot be saved shows this name.
        with tf.name_scope(name or re.sub(r"\W", "_", f"{_API}_of_{text.name_of(function)}", flags=re.ASCII)):
            value, *gradients = (
                _compute_eagerly(call, tensors) if tf.executing_eagerly() else _compute_in_graph(call, tensors)
            )
            return _with_gradients(call, value, gradients, x)

    wrapped = CustomGradient(_API, f_and_grad, run)
    nondiff_argnames = check_argument_names(_API, f_and_grad, nondiff_argnames)
    return wrapped


def _check_output(output: Any) -> tf.TensorSpec | None:
    if output is None:
        return None
    is_valid = isinstance(output, tf.TensorSpec) and output.shape.rank is not None and output.dtype in convert.DTYPES
    if not is_valid:
        supported = ", ".join(dtype.name for dtype in convert.DTYPES)
        raise TypeError(
            f"{_API}: output does not describe the value; expected a tf.TensorSpec of known rank with a dtype of "
            f"{supported}, got {text.describe(output)}. Write for example output=tf.TensorSpec([3], "
            "tf.float64), or leave it out for a function of single elements."
        )
    return output


def _find_inputs(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    nondiff_argnames: Collection[str],
    output: tf.TensorSpec | None,
) -> tuple[list[tf.Tensor], list[Input], list[Any]]:
    """The Tensors in the order of the signature, their specs, and the leaves of the arguments without the Tensors."""
    structure = (list(args), kwargs)
    leaves = tf.nest.flatten(structure)
    # The arguments with the position of each leaf in its place: flattened by the signature, positions get names.
    position_args, position_kwargs = tf.nest.pack_sequence_as(structure, list(range(len(leaves))))
    named = pytree.flatten_arguments(_API, function, position_args, position_kwargs, nondiff_argnames)
    values = [leaves[position] for position in named.values]
    dtypes = [tf.as_dtype(value.dtype) for value in values if _is_tensor(value) or _is_array(value)]
    float_dtype = output.dtype if output else next((dtype for dtype in dtypes if dtype in convert.DTYPES), tf.float32)
    names = dict(zip(named.values, named.names, strict=True))
    tensors, inputs = [], []
    for position in [*named.values, *sorted(set(range(len(leaves))) - set(names))]:
        leaf, name = leaves[position], names.get(position)
        is_number = name is not None and (_is_array(leaf) or isinstance(leaf, (float, complex)))
        if _is_tensor(leaf) or is_number:
            tensor = _to_tensor(function, name or "", leaf, float_dtype)
            has_gradient = name is not None and tensor.dtype in convert.DTYPES
            tensors.append(tensor)
            inputs.append(Input(position, name or "", tensor.shape, tensor.dtype, has_gradient))
            leaves[position] = None
    return tensors, inputs, leaves


def _is_tensor(value: Any) -> bool:
    return tf.is_tensor(value) or as_variable(value) is not None


def _is_array(value: Any) -> bool:
    """Whether it is a NumPy array or number that can have a gradient."""
    return isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "OSUmMbiu"


def _to_tensor(function: Callable[..., Any], name: str, value: Any, float_dtype: tf.DType) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(value, dtype=float_dtype.real_dtype if type(value) is float else None)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{_API}: an argument of '{text.name_of(function)}' is not a dense tensor; expected a Tensor or an array "
            f"for {name!r}, got a {type(value).__name__}. Convert it before the call."
        ) from error


def _elementwise_output(function: Callable[..., Any], inputs: Sequence[Input]) -> tf.TensorSpec:
    """The shape to which the differentiable inputs broadcast, and the dtype of the first."""
    x = [spec for spec in inputs if spec.differentiable]
    if not x:
        raise TypeError(
            f"{_API}: '{text.name_of(function)}' has no differentiable input that gives its output a shape and a "
            "dtype; expected a floating-point or complex input or an output, got neither. Pass "
            "output=tf.TensorSpec(shape, dtype)."
        )
    shape = x[0].shape
    for spec in x[1:]:
        try:
            shape = tf.broadcast_static_shape(shape, spec.shape)
        except ValueError as error:
            raise ValueError(
                f"{_API}: the differentiable inputs of '{text.name_of(function)}' do not broadcast; expected shapes "
                f"that broadcast, since there is no output, got "
                f"{', '.join(f'{spec.shape} for {spec.name!r}' for spec in x)}. Pass output=tf.TensorSpec(shape, "
                "dtype) if it is not elementwise."
            ) from error
    return tf.TensorSpec(shape, x[0].dtype)


def _compute_eagerly(call: PythonCall, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.constant(array) for array in call(*[tensor.numpy() for tensor in tensors])]


def _compute_in_graph(call: PythonCall, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    advice = "Build the model from its Python code here, and load its weights."
    return python_op.call_python(f"{_API}: '{text.name_of(call.function)}'", advice, call, tensors, call.specs())


def _with_gradients(
    call: PythonCall, value: tf.Tensor, gradients: list[tf.Tensor], x: Sequence[tf.Tensor]
) -> tf.Tensor:
    """The value in the dtype of the output, with its gradients with respect to the differentiable inputs."""
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
