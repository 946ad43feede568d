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
    if isinstance(structure, Mapping):
        return {key: map_leaves(item, function) for key, item in structure.items()}
    if not isinstance(structure, (tuple, list)):
        return function(structure)
    items = [map_leaves(item, function) for item in structure]
    if not isinstance(structure, tuple):
        return items
    return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)


def encode(function: str, arguments: Any) -> dict[str, Any]:
    """The positional and keyword arguments of a function with this name as JSON."""
    args, kwargs = arguments
    return {"args": _encode(function, args)["tuple"], "kwargs": _encode(function, kwargs)["dict"]}


def _encode(function: str, value: Any) -> dict[str, Any]:
    """A dict with one entry: the type of the value, and its content."""
    got = text.describe_type(value)
    if isinstance(value, Placeholder):
        return {"keras_tensor": value.index}
    if value is None or type(value) in (bool, int, float, str):
        return {"value": value}
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    if type(value) in (tuple, list):
        return {type(value).__name__: [_encode(function, item) for item in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: _encode(function, item) for key, item in value.items()}}
    if isinstance(value, tf.DType):
        return {"dtype": value.name}
    if hasattr(value, "assign"):
        encoded = _EncodedVariable(_encode(function, tf.convert_to_tensor(value)))
        encoded.variable = value
        return encoded
    if isinstance(value, (tf.Tensor, np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.kind in "biufcV":  # V: bfloat16, which NumPy does not know.
            array_type = "tensor" if isinstance(value, tf.Tensor) else "array"
            return {array_type: [array.tobytes().hex(), list(array.shape), array.dtype.name]}
        got += f" of dtype {array.dtype}"
    raise TypeError(
        f"tf_cg_ops: the arguments of '{function}' in a saved model must be numbers, strings, dense Tensors, arrays, "
        f"or lists, tuples and dicts of them, got {got}. Pass it in the call() of a keras.layers.Layer."
    )


def decode(encoded: dict[str, Any]) -> Any:
    """The inverse of `encode`."""
    return _decode({"tuple": encoded["args"]}), _decode({"dict": encoded["kwargs"]})


def _decode(encoded: dict[str, Any]) -> Any:
    if isinstance(encoded, _EncodedVariable):
        return encoded.variable
    [(type_name, content)] = encoded.items()
    return _DECODERS[type_name](content)


def _to_array(content: Any) -> np.ndarray:
    data, shape, dtype = content
    return np.frombuffer(bytes.fromhex(data), tf.as_dtype(dtype).as_numpy_dtype).reshape(shape).copy()


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "keras_tensor": Placeholder,
    "value": lambda value: value,
    "complex": lambda parts: complex(*parts),
    "list": lambda items: [_decode(item) for item in items],
    "tuple": lambda items: tuple(_decode(item) for item in items),
    "dict": lambda items: {key: _decode(item) for key, item in items.items()},
    "dtype": tf.as_dtype,
    "array": _to_array,
    "tensor": lambda content: tf.constant(_to_array(content)),
}
