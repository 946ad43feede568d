"""A call of a function as a node of a functional model, for either Keras."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from .. import _structure
from . import _errors, config_of, function_of, package_of_keras_tensors

# The name under which Keras knows what this library registers: "tf_cg_ops>EmbedGradient".
PACKAGE = "tf_cg_ops"


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where the KerasTensor of this index stands among the arguments."""

    index: int


class FunctionCall:
    """What is the same in both Kerases: the function, its other arguments, and how they are saved.

    `arguments` is a pair of positional and keyword arguments, in which `_Place`s stand for the KerasTensors.
    """

    keras: Any  # The package.

    @staticmethod
    def spec_of(tensor: Any) -> tf.TypeSpec:
        """What is known of a KerasTensor."""
        raise NotImplementedError

    def __init__(self, function: Callable[..., Any], arguments: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._function = function
        # Behind a function: Keras would wrap and track a structure.
        self._arguments = lambda: arguments

    def call(self, tensors: Any) -> Any:
        """The function's value, with `tensors` in their places among the arguments."""
        return self._compute(tensors)

    # AutoGraph would translate it. Not so `call`, whose signature Keras 2 looks at.
    @tf.autograph.experimental.do_not_convert
    def _compute(self, tensors: Any) -> Any:
        tensors = tf.nest.flatten(tensors)  # Keras 2 makes a list of one into that one, when it loads a model.
        args, kwargs = _replace(self._arguments(), lambda leaf: tensors[leaf.index] if _is_place(leaf) else leaf)
        return self._function(*args, **kwargs)

    def trace(self, specs: list[tf.TypeSpec]) -> Any:
        """The symbolic values for inputs of these kinds; an error where a functional model cannot hold the call.

        Exceptions are the user's own, without what Keras writes around them.
        """
        results = []
        traced = tf.function(lambda tensors: results.append(self.call(tensors)), autograph=False)
        graph = traced.get_concrete_function(specs).graph
        where = {"api": getattr(self._function, "api", self._function.__name__), "function": name_in(self._function)}
        # The model would neither train nor save it, and would not say so.
        variables = [variable.name for variable in graph.trainable_variables]
        if variables:
            raise ValueError(_errors.FUNCTIONAL_VARIABLES.format(**where, names=", ".join(map(repr, variables))))
        for result in tf.nest.flatten(results[0]):
            if not tf.is_tensor(result):
                raise TypeError(_errors.FUNCTIONAL_OUTPUT.format(**where, got=type(result).__name__))
        return results[0]

    def get_config(self) -> dict[str, Any]:
        """What Keras saves: the function by the name that it is registered under, and the other arguments."""
        arguments = _encode(self._arguments(), self.keras.saving.serialize_keras_object)
        return super().get_config() | config_of(self._function) | {"arguments": arguments}  # type: ignore[misc]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The call again."""
        config = dict(config)
        function = function_of({"function": config.pop("function")})
        arguments = _decode(config.pop("arguments"), cls.keras.saving.deserialize_keras_object)
        return cls(function, arguments, **config)


def call(kind: type[FunctionCall], function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Makes a node of this kind, called on the KerasTensors among the arguments."""
    tensors: list[Any] = []

    def place(leaf: Any) -> Any:
        if not package_of_keras_tensors([leaf]):
            return leaf
        tensors.append(leaf)
        return _Place(len(tensors) - 1)

    arguments = _replace((tuple(args), dict(kwargs)), place)
    name = name_in(function)
    node: Any = kind(function, arguments, name=f"{_identifier(name)}_{kind.keras.backend.get_uid(name)}")
    node.trace([kind.spec_of(tensor) for tensor in tensors])
    return node(tensors)


def name_in(function: Callable[..., Any]) -> str:
    """What messages and models call a function."""
    return _structure.name_of(function).rpartition(".")[2]


def _identifier(name: str) -> str:
    """A name that TensorFlow takes for a scope, and Keras for a node."""
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name).strip("_") or "function"


def _is_place(leaf: Any) -> bool:
    return isinstance(leaf, _Place)


def _replace(structure: Any, leaf: Callable[[Any], Any]) -> Any:
    """The structure of lists, tuples and dictionaries with `leaf` of each leaf."""
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(_replace(item, leaf) for item in structure))
    if isinstance(structure, (list, tuple)):
        return type(structure)(_replace(item, leaf) for item in structure)
    if isinstance(structure, dict):
        return {key: _replace(item, leaf) for key, item in structure.items()}
    return leaf(structure)


def _encode(structure: Any, serialize: Callable[[Any], Any]) -> Any:
    """The arguments as JSON, which knows no tuples: each value says what it is."""
    if _is_place(structure):
        return {"keras_tensor": structure.index}
    if isinstance(structure, tuple):
        return {"tuple": [_encode(item, serialize) for item in structure]}
    if isinstance(structure, list):
        return {"list": [_encode(item, serialize) for item in structure]}
    if isinstance(structure, dict):
        return {"dict": [[key, _encode(item, serialize)] for key, item in structure.items()]}
    if structure is None or isinstance(structure, (bool, int, float, str)):
        return {"value": structure}
    if isinstance(structure, (np.ndarray, np.generic, tf.Tensor, tf.Variable)):
        array = np.asarray(structure)
        return {"array": [array.tobytes().hex(), list(array.shape), array.dtype.name]}
    return {"object": serialize(structure)}


def _decode(encoded: dict[str, Any], deserialize: Callable[[Any], Any]) -> Any:
    [(kind, content)] = encoded.items()
    if kind == "keras_tensor":
        return _Place(content)
    if kind == "value":
        return content
    if kind == "array":
        data, shape, dtype = content
        return np.frombuffer(bytes.fromhex(data), tf.as_dtype(dtype).as_numpy_dtype).reshape(shape)
    if kind == "object":
        return deserialize(content)
    if kind == "dict":
        return {key: _decode(item, deserialize) for key, item in content}
    items = [_decode(item, deserialize) for item in content]
    return tuple(items) if kind == "tuple" else items
