"""Saves the arguments of a call in a functional model as JSON: value, type and dtype come back exactly.

`keras.saving.serialize_keras_object` does not serve, neither in Keras 3 nor in tf_keras: tuples come back as lists,
DTypes as strings, NumPy scalars as Python numbers, Variables as Tensors, a string that is a registered name as its
object; an empty array loses its shape; complex numbers raise a TypeError.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Placeholder:
    """Stands for the KerasTensor of this index among the arguments."""

    index: int


class _EncodedVariable(dict):
    """The encoded value of a Variable. A clone, which is made without a file, shares the Variable itself."""

    variable: Any


def map_leaves(structure: Any, function: Callable[[Any], Any]) -> Any:
    """The structure of lists, tuples and dictionaries with `function` applied to each leaf."""
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
            f"tf_cg_ops: an argument of '{function}' would not come back from a file as what it is; expected "
            f"numbers, strings, dense Tensors, arrays, and lists, tuples and dictionaries of them, got {error}. "
            "Pass it in the call() of a keras.layers.Layer."
        ) from None


class _NotSerializableError(Exception):
    """Describes a value that no file would return as it was."""


def _encode(value: Any) -> dict[str, Any]:
    """One entry: the type of the value, and its content."""
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
        if array.dtype.kind in "biufcV":  # V: the 16-bit float that NumPy does not know.
            array_type = "tensor" if isinstance(value, tf.Tensor) else "array"
            return {array_type: [array.tobytes().hex(), list(array.shape), array.dtype.name]}
        raise _NotSerializableError(f"a {type(value).__name__} of dtype {array.dtype}")
    raise _NotSerializableError(f"a {type(value).__name__}")


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
