"""Converts arguments to what the ops take, with messages that name the arguments."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import text
from tf_cg_ops._src.core.variables import as_variable

# The element types of every op of the library, in the order of the ops' attribute T.
DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128)

# Built once: this code runs in every eager call, and a call takes microseconds.
_SUPPORTED = frozenset(DTYPES)
_LISTS = (list, tuple)
_BOOLS = (bool, np.bool_)
_NUMPY = (np.ndarray, np.generic)


def is_inexact_array(value: Any) -> bool:
    """Whether a value is a NumPy array or number that can have a gradient; the kind of bfloat16 is "V"."""
    return isinstance(value, _NUMPY) and value.dtype.kind not in "OSUmMbiu"


def to_pairs(api: str, gx: Any, x: Any) -> tuple[list[Any], list[Any], list[str]]:
    """Lists of gx and x, and for each pair a suffix for messages: `[0]`, or nothing if there is a single pair."""
    for name, value in (("gx", gx), ("x", x)):
        if isinstance(value, Mapping):
            raise TypeError(
                f"{api}: {name} must be a Tensor or a list of Tensors, got {text.describe_type(value)}. Pass the "
                "values in two lists, gx and x, in the same order."
            )
    gx_is_list, x_is_list = isinstance(gx, _LISTS), isinstance(x, _LISTS)
    if not gx_is_list and not x_is_list:
        return [gx], [x], [""]
    if gx_is_list != x_is_list or len(gx) != len(x):
        raise ValueError(
            f"{api}: gx must have one entry for each x, got {_describe_length(gx)} for gx and {_describe_length(x)} "
            "for x. Pass two lists of the same length, or a single gx with a single x."
        )
    if not x:
        raise ValueError(
            f"{api}: x must hold at least one Tensor, got an empty {type(x).__name__}. Without an x, use fx itself."
        )
    return list(gx), list(x), [f"[{i}]" for i in range(len(x))]


def _describe_length(value: Any) -> str:
    if isinstance(value, _LISTS):
        return f"a {type(value).__name__} of {len(value)}"
    return "a single value"


def to_tensors(api: str, names: Sequence[str], values: Sequence[Any]) -> list[tf.Tensor]:
    """Converts values to Tensors of one dtype, the one of the Tensors and Variables, or of the first value.

    Python numbers and NumPy arrays take the dtype of the Tensors, as they do in TensorFlow's own operators.
    """
    # Only reading a Variable tells its dtype, because mixed precision can change it.
    values = [
        _to_tensor(api, name, value, None) if hasattr(value, "dtype") and not isinstance(value, _NUMPY) else value
        for name, value in zip(names, values, strict=True)
    ]
    first, dtype = _common_dtype(api, names, values)
    if dtype not in _SUPPORTED:
        supported = ", ".join(d.name for d in DTYPES)
        remedy = "Pass numbers" if dtype == tf.string else f"Cast it, for example with tf.cast({first}, tf.float32)"
        raise TypeError(f"{api}: {first} must have one of the dtypes {supported}, got {dtype.name}. {remedy}.")
    for name, value in zip(names, values, strict=True):
        # NumPy would drop the imaginary part, with just a warning.
        if isinstance(value, (*_NUMPY, complex)) and np.iscomplexobj(value) and not dtype.is_complex:
            raise _dtypes_differ(api, first, dtype, name, tf.as_dtype(np.asarray(value).dtype))
    return [_to_tensor(api, name, value, dtype) for name, value in zip(names, values, strict=True)]


def to_tensor_pairs(
    api: str, fx: Any, gx: Any, x: Any
) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor], list[str]]:
    """`fx` and the lists of `gx` and `x` as Tensors of one dtype, and the suffixes of `to_pairs`."""
    gx, x, suffixes = to_pairs(api, gx, x)
    names = ["fx", *("gx" + suffix for suffix in suffixes), *("x" + suffix for suffix in suffixes)]
    fx, *rest = to_tensors(api, names, [fx, *gx, *x])
    return fx, rest[: len(gx)], rest[len(gx) :], suffixes


def _common_dtype(api: str, names: Sequence[str], values: Sequence[Any]) -> tuple[str, tf.DType]:
    """The name of the first Tensor and the dtype of all of them; without Tensors, of the first argument."""
    first = None
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, tf.Tensor):
            continue
        value_dtype = value.dtype.base_dtype  # Without the mark of TensorFlow 1's ref variables.
        if first is None:
            first, dtype = name, value_dtype
        elif value_dtype is not dtype and value_dtype != dtype:
            raise _dtypes_differ(api, first, dtype, name, value_dtype)
    if first is None:
        return names[0], _to_tensor(api, names[0], values[0], None).dtype
    return first, dtype


def leaves_to_tensors(api: str, x: Any, purpose: str) -> list[tf.Tensor]:
    """The leaves of `x` as Tensors of any supported dtypes; ValueError, which names the purpose, if there are none."""
    leaves = tf.nest.flatten(x)
    if not leaves:
        raise ValueError(
            f"{api}: x must hold at least one Tensor, got {text.describe(x)}. Pass the values whose gradients you want "
            f"to {purpose}."
        )
    names = [f"x[{i}]" for i in range(len(leaves))] if tf.nest.is_nested(x) else ["x"]
    return [to_tensors(api, [name], [leaf])[0] for name, leaf in zip(names, leaves, strict=True)]


def _to_tensor(api: str, name: str, value: Any, dtype: tf.DType | None) -> tf.Tensor:
    if isinstance(value, tf.Tensor):
        return value
    try:
        return tf.convert_to_tensor(value, dtype=dtype)
    except refusals(value) as error:
        raise not_convertible(api, name, value) from error


def refusals(value: Any) -> tuple[type[Exception], ...]:
    """The exceptions by which TensorFlow refuses to convert a value.

    Empty if the conversion runs a method of the user's class: its exceptions are the user's, and pass unchanged.
    """
    is_users = any(hasattr(type(value), method) for method in ("__tf_tensor__", "__array__"))
    return () if is_users and not isinstance(value, _NUMPY) else (TypeError, ValueError, tf.errors.InvalidArgumentError)


def not_convertible(api: str, name: str, value: Any) -> TypeError:
    """The error for a value that does not convert to a dense Tensor."""
    hint = "Convert it before the call."
    if callable(value):
        hint = "Pass the value of the function, not the function itself."
    elif isinstance(value, (list, tuple)) and any(map(tf.is_tensor, value)):
        hint = "Call it for each Tensor."
    elif value is None:
        hint = "A function without a return statement returns None."
    return TypeError(
        f"{api}: {name} must be a dense Tensor or a value that converts to one, got {text.describe(value)}. {hint}"
    )


def _dtypes_differ(api: str, first: str, dtype: tf.DType, name: str, other: tf.DType) -> TypeError:
    return TypeError(
        f"{api}: {name} must have the dtype of {first}, {dtype.name}, got {other.name}. Cast one of the two with "
        "tf.cast."
    )


def to_real(api: str, name: str, value: Any, dtype: tf.DType) -> tf.Tensor:
    """Casts a real number, Variable or Tensor to `dtype`; raises TypeError for anything else."""
    if isinstance(value, (bool, str, bytes)) or value is None:
        raise _not_real(api, name, value)
    # The tf.Variable itself: inside a Keras layer, reading a Keras variable can round it to 16 bits.
    variable = as_variable(value)
    value = value if variable is None else variable
    # Round a number only once, to the dtype of the result.
    number_dtype = dtype.real_dtype if isinstance(value, (int, float)) else None
    tensor = _to_tensor(api, name, value, number_dtype)
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        raise _not_real(api, name, value)
    return tf.cast(tensor, dtype)


def _not_real(api: str, name: str, value: Any) -> TypeError:
    return TypeError(
        f"{api}: {name} must be a real number, or a Variable or Tensor of real numbers, got {text.describe(value)}. "
        "Convert it before the call."
    )


def to_bool(api: str, name: str, value: Any) -> bool:
    """Returns a flag as a bool; raises TypeError for anything else."""
    if not isinstance(value, _BOOLS):
        raise TypeError(f"{api}: {name} must be True or False, got {text.describe(value)}. Pass a Python bool.")
    return bool(value)


def to_axis(api: str, axis: Any) -> list[int] | tf.Tensor | None:
    """Returns None, a list of ints, or a Tensor of rank 0 or 1 if the value is not known while tracing."""
    if axis is None:
        return None
    if tf.is_tensor(axis):
        return _tensor_to_axis(api, axis)
    if isinstance(axis, np.ndarray):
        if axis.ndim > 1:
            raise _axis_rank_error(api, axis.shape)
        # NumPy turns an empty list into floats.
        entries = list(np.ravel(axis)) if axis.size else []
    else:
        entries = list(axis) if isinstance(axis, (*_LISTS, range)) else [axis]
    if any(isinstance(entry, _BOOLS) for entry in entries):
        raise _axis_type_error(api, axis, is_bool=True)
    try:
        if any(tf.is_tensor(entry) and tf.get_static_value(entry) is None for entry in entries):
            return tf.stack([_to_int64(entry) for entry in entries])
        dimensions = [operator.index(entry) for entry in entries]
    except TypeError as error:
        raise _axis_type_error(api, axis) from error
    return _check_int64(api, dimensions)


def _to_int64(entry: Any) -> tf.Tensor:
    """Converts one entry of an axis that holds Tensors, or raises TypeError."""
    if isinstance(entry, tf.Tensor) and entry.dtype.is_integer and entry.dtype != tf.uint64:
        return tf.cast(entry, tf.int64)
    return tf.constant(operator.index(entry), tf.int64)


def _tensor_to_axis(api: str, axis: Any) -> list[int] | tf.Tensor:
    if not (isinstance(axis, (tf.Tensor, tf.Variable)) and axis.dtype.is_integer):
        raise _axis_type_error(api, axis, is_bool=axis.dtype.is_bool)
    axis = tf.convert_to_tensor(axis)
    if axis.shape.rank is not None and axis.shape.rank > 1:
        raise _axis_rank_error(api, axis.shape)
    value = tf.get_static_value(axis)
    return axis if value is None else _check_int64(api, np.ravel(value).tolist())


def _check_int64(api: str, dimensions: list[int]) -> list[int]:
    """Returns the dimensions if they fit the op's attribute; the op checks the rest."""
    if not all(-(2**63) <= dimension < 2**63 for dimension in dimensions):
        raise ValueError(invalid_axis(api, "x", f"axis {dimensions}"))
    return dimensions


def invalid_axis(api: str, x_name: str, got: str) -> str:
    """The message for an axis that names a dimension twice, or one that `x` does not have."""
    return f"{api}: axis must name dimensions of {x_name}, each at most once, with values in [-rank, rank), got {got}."


def _axis_type_error(api: str, axis: Any, is_bool: bool = False) -> TypeError:
    remedy = "Name the dimensions of x that one element of fx depends on."
    if is_bool:
        remedy = "If you mean fx_gx_manually_stopped, pass it by name."
    expected, got = "None, an int, a sequence of ints or an integer Tensor", text.describe(axis)
    return TypeError(f"{api}: axis must be {expected}, got {got}. {remedy}")


def _axis_rank_error(api: str, shape: Any) -> ValueError:
    return ValueError(f"{api}: axis must be a scalar or a vector, got a Tensor of shape {shape}. Flatten it.")
