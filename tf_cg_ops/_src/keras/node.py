"""A function call as a node of a functional model, for Keras 3 and tf_keras."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import text
from tf_cg_ops._src.keras import serialization
from tf_cg_ops._src.keras.dispatch import package_of_keras_tensors
from tf_cg_ops._src.keras.registration import api_of, function_config, function_from_config, require_tensorflow


class FunctionCall:
    """The base of the node classes: holds the function and its other arguments, and saves them.

    `arguments` is a pair of positional and keyword arguments, with a `serialization.Placeholder` for each KerasTensor.
    """

    keras: Any  # The package.
    type_spec_of: Callable[[Any], tf.TypeSpec]  # The TypeSpec of a KerasTensor.

    @classmethod
    def add_to_model(cls, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Adds a call to the functional model that the KerasTensors among the arguments belong to."""
        require_tensorflow(cls.keras, function.__name__)
        tensors: list[Any] = []

        def replace_keras_tensor(leaf: Any) -> Any:
            if not package_of_keras_tensors([leaf]):
                return leaf
            tensors.append(leaf)
            return serialization.Placeholder(len(tensors) - 1)

        arguments = serialization.map_leaves((tuple(args), dict(kwargs)), replace_keras_tensor)
        name = unqualified_name(function)
        node: Any = cls(function, arguments, name=f"{_to_identifier(name)}_{cls.keras.backend.get_uid(name)}")
        node.trace([cls.type_spec_of(tensor) for tensor in tensors])
        return node(tensors)

    def __init__(self, function: Callable[..., Any], arguments: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._function = function
        # A function, because Keras would wrap and track a structure.
        self._arguments = lambda: arguments

    def call(self, tensors: Any) -> Any:
        """Calls the function with `tensors` in place of the KerasTensors."""
        return self._compute(tensors)

    # Not translated by AutoGraph. The decorator would hide the signature of `call`, which Keras 2 reads.
    @tf.autograph.experimental.do_not_convert
    def _compute(self, tensors: Any) -> Any:
        tensors = tf.nest.flatten(tensors)  # Keras 2 loads a list of one Tensor as that Tensor.
        args, kwargs = serialization.map_leaves(
            self._arguments(), lambda leaf: tensors[leaf.index] if isinstance(leaf, serialization.Placeholder) else leaf
        )
        return self._function(*args, **kwargs)

    def trace(self, specs: list[tf.TypeSpec]) -> Any:
        """Traces the call for inputs of these specs; raises an error if a functional model cannot hold it.

        So exceptions of the function arrive without the text that Keras adds.
        """
        results = []
        traced = tf.function(lambda tensors: results.append(self.call(tensors)), autograph=False)
        graph = traced.get_concrete_function(specs).graph
        api = api_of(self._function)
        function = unqualified_name(self._function)
        variables = text.quoted(variable.name for variable in graph.trainable_variables)
        if variables:
            raise ValueError(
                f"{api}: '{function}' must not read trainable variables in a functional model, which would neither "
                f"train nor save them, got {variables}. Call it in the call() of a keras.layers.Layer that holds them."
            )
        for result in tf.nest.flatten(results[0]):
            if not tf.is_tensor(result):
                raise TypeError(
                    f"{api}: '{function}' must return only Tensors in a functional model, got a "
                    f"{type(result).__name__} among them."
                )
        return results[0]

    def get_config(self) -> dict[str, Any]:
        """Returns what Keras saves: the registered name of the function, and the other arguments."""
        encoded = serialization.encode(unqualified_name(self._function), self._arguments())
        return super().get_config() | function_config(self._function) | {"arguments": encoded}  # type: ignore[misc]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Makes the node from its configuration."""
        config = dict(config)
        function = function_from_config({"function": config.pop("function"), "recipe": config.pop("recipe", None)})
        return cls(function, serialization.decode(config.pop("arguments")), **config)


def unqualified_name(function: Callable[..., Any]) -> str:
    """The name of a function in messages and models, without its class."""
    return text.name_of(function).rpartition(".")[2]


def _to_identifier(name: str) -> str:
    """A name that is valid for a scope of TensorFlow and a node of Keras."""
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name).strip("_") or "function"
