"""Saves the arguments of a call in a functional model as JSON, with exact values, types and dtypes.

`keras.saving.serialize_keras_object` of Keras 3 and tf_keras is not exact: tuples come back as lists, DTypes as
strings, NumPy scalars as Python numbers, Variables as Tensors, and a string that is a registered name as its object. An
empty array loses its shape, and complex numbers raise a TypeError.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import text


@dataclasses.dataclass(frozen=True)
class Placeholder:
    """Replaces the KerasTensor with this index in the arguments."""

    index: int


class _EncodedVariable(dict):
    """The encoded value of a Variable, with the Variable itself for a clone, which is made without a file."""

    variable: Any


def map_leaves(structure: Any, function: Callable[[Any], Any]) -> Any:
    """Applies `function` to each leaf in lists, tuples and dicts."""
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(map_leaves(item, function) for item in structure))
    if isinstance(structure, tuple):
        return tuple(map_leaves(item, function) for item in structure)
    if isinstance(structure, list):
        return [map_leaves(item, function) for item in structure]
    if isinstance(structure, Mapping):
        return {key: map_leaves(item, function) for key, item in structure.items()}
    return function(structure)


def encode(function: str, arguments: Any) -> dict[str, Any]:
    """The positional and keyword arguments as JSON."""
    args, kwargs = arguments
    try:
        return {"args": [_encode(value) for value in args], "kwargs": {k: _encode(v) for k, v in kwargs.items()}}
    except _NotSerializableError as error:
        raise TypeError(
            f"tf_cg_ops: the arguments of '{function}' in a saved model must be numbers, strings, dense Tensors, "
            f"arrays, or lists, tuples and dicts of them, got {error}. Pass it in the call() of a keras.layers.Layer."
        ) from None


class _NotSerializableError(Exception):
    """Describes a value that cannot be saved exactly."""


def _encode(value: Any) -> dict[str, Any]:
    """A dict with one entry: the type of the value, and its content."""
    if isinstance(value, Placeholder):
        return {"keras_tensor": value.index}
    if value is None or type(value) in (bool, int, float, str):
        return {"value": value}
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    if type(value) in (tuple, list):
        return {type(value).__name__: [_encode(item) for item in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: _encode(item) for key, item in value.items()}}
    if isinstance(value, tf.DType):
        return {"dtype": value.name}
    if hasattr(value, "assign"):
        encoded = _EncodedVariable(_encode(tf.convert_to_tensor(value)))
        encoded.variable = value
        return encoded
    if isinstance(value, (tf.Tensor, np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.kind in "biufcV":  # V: bfloat16, which NumPy does not know.
            array_type = "tensor" if isinstance(value, tf.Tensor) else "array"
            return {array_type: [array.tobytes().hex(), list(array.shape), array.dtype.name]}
        raise _NotSerializableError(f"{text.describe_type(value)} of dtype {array.dtype}")
    raise _NotSerializableError(text.describe_type(value))


def decode(encoded: dict[str, Any]) -> Any:
    """The inverse of `encode`."""
    args, kwargs = encoded["args"], encoded["kwargs"]
    return tuple(_decode(value) for value in args), {key: _decode(value) for key, value in kwargs.items()}


def _decode(encoded: dict[str, Any]) -> Any:
    if isinstance(encoded, _EncodedVariable):
        return encoded.variable
    [(type_name, content)] = encoded.items()
    if type_name == "keras_tensor":
        return Placeholder(content)
    if type_name == "complex":
        return complex(*content)
    if type_name == "dtype":
        return tf.as_dtype(content)
    if type_name == "dict":
        return {key: _decode(item) for key, item in content.items()}
    if type_name in ("tuple", "list"):
        items = [_decode(item) for item in content]
        return tuple(items) if type_name == "tuple" else items
    if type_name in ("tensor", "array"):
        data, shape, dtype = content
        array = np.frombuffer(bytes.fromhex(data), tf.as_dtype(dtype).as_numpy_dtype).reshape(shape).copy()
        return tf.constant(array) if type_name == "tensor" else array
    return content
