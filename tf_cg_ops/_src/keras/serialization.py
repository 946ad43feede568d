"""The arguments of a call with KerasTensors: what stands in the places of these, and what is saved of the others."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the KerasTensor of this index stands among the arguments."""

    index: int


class _OfVariable(dict):
    """What is saved of a Variable: its value. A clone, which is made without a file, shares the Variable itself."""

    variable: Any


def replace(structure: Any, leaf: Callable[[Any], Any]) -> Any:
    """The structure of lists, tuples and dictionaries with `leaf` of each leaf."""
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(replace(item, leaf) for item in structure))
    if isinstance(structure, tuple):
        return tuple(replace(item, leaf) for item in structure)
    if isinstance(structure, list):
        return [replace(item, leaf) for item in structure]
    if isinstance(structure, Mapping):
        return {key: replace(item, leaf) for key, item in structure.items()}
    return leaf(structure)


def encode(function: str, arguments: Any) -> dict[str, Any]:
    """The arguments as JSON, which knows no tuples: each value says what it is."""
    args, kwargs = arguments
    try:
        return {"args": [_encode(value) for value in args], "kwargs": {k: _encode(v) for k, v in kwargs.items()}}
    except _NotSavedError as error:
        raise TypeError(
            f"tf_cg_ops: an argument of '{function}' would not come back from a file as what it is; expected "
            f"numbers, strings, dense Tensors, arrays, and lists, tuples and dictionaries of them, got {error}. "
            "Pass it in the call() of a keras.layers.Layer."
        ) from None


class _NotSavedError(Exception):
    """The kind of a value that comes back from no file as what it was."""


def _encode(value: Any) -> dict[str, Any]:
    if isinstance(value, Place):
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
        encoded = _OfVariable(_encode(tf.convert_to_tensor(value)))
        encoded.variable = value
        return encoded
    if isinstance(value, (tf.Tensor, np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.kind in "biufcV":  # V: the 16-bit float that NumPy does not know.
            kind = "tensor" if isinstance(value, tf.Tensor) else "array"
            return {kind: [array.tobytes().hex(), list(array.shape), array.dtype.name]}
        raise _NotSavedError(f"a {type(value).__name__} of dtype {array.dtype}")
    raise _NotSavedError(f"a {type(value).__name__}")


def decode(encoded: dict[str, Any]) -> Any:
    """The arguments again."""
    args, kwargs = encoded["args"], encoded["kwargs"]
    return tuple(_decode(value) for value in args), {key: _decode(value) for key, value in kwargs.items()}


def _decode(encoded: dict[str, Any]) -> Any:
    if isinstance(encoded, _OfVariable):
        return encoded.variable
    [(kind, content)] = encoded.items()
    if kind == "keras_tensor":
        return Place(content)
    if kind == "complex":
        return complex(*content)
    if kind == "dtype":
        return tf.as_dtype(content)
    if kind == "dict":
        return {key: _decode(item) for key, item in content.items()}
    if kind in ("tuple", "list"):
        items = [_decode(item) for item in content]
        return tuple(items) if kind == "tuple" else items
    if kind in ("tensor", "array"):
        data, shape, dtype = content
        array = np.frombuffer(bytes.fromhex(data), tf.as_dtype(dtype).as_numpy_dtype).reshape(shape).copy()
        return tf.constant(array) if kind == "tensor" else array
    return content
