"""A call of a function as a node of a functional model, for either Keras."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import text
from tf_cg_ops._src.keras import errors, serialization
from tf_cg_ops._src.keras.dispatch import config_of, function_of, package_of_keras_tensors


class FunctionCall:
    """What is the same in both Kerases: the function, its other arguments, and how they are saved.

    `given` is a pair of positional and keyword arguments, in which `serialization.Place`s stand for the KerasTensors.
    """

    keras: Any  # The package.

    @staticmethod
    def spec_of(tensor: Any) -> tf.TypeSpec:
        """What is known of a KerasTensor."""
        raise NotImplementedError

    def __init__(self, function: Callable[..., Any], given: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._function = function
        # Behind a function: Keras would wrap and track a structure.
        self._given = lambda: given

    def call(self, tensors: Any) -> Any:
        """The function's value, with `tensors` in their places among the arguments."""
        return self._compute(tensors)

    # AutoGraph would translate it. Not so `call`, whose signature Keras 2 looks at.
    @tf.autograph.experimental.do_not_convert
    def _compute(self, tensors: Any) -> Any:
        tensors = tf.nest.flatten(tensors)  # Keras 2 makes a list of one into that one, when it loads a model.
        args, kwargs = serialization.replace(
            self._given(), lambda leaf: tensors[leaf.index] if isinstance(leaf, serialization.Place) else leaf
        )
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
            raise ValueError(errors.FUNCTIONAL_VARIABLES.format(**where, names=", ".join(map(repr, variables))))
        for result in tf.nest.flatten(results[0]):
            if not tf.is_tensor(result):
                raise TypeError(errors.FUNCTIONAL_OUTPUT.format(**where, got=type(result).__name__))
        return results[0]

    def get_config(self) -> dict[str, Any]:
        """What Keras saves: the function by the name that it is registered under, and the other arguments."""
        encoded = serialization.encode(name_in(self._function), self._given())
        return super().get_config() | config_of(self._function) | {"arguments": encoded}  # type: ignore[misc]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The call again."""
        config = dict(config)
        function = function_of({"function": config.pop("function")})
        return cls(function, serialization.decode(config.pop("arguments")), **config)


def call(kind: type[FunctionCall], function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Makes a node of this kind, called on the KerasTensors among the arguments."""
    tensors: list[Any] = []

    def place(leaf: Any) -> Any:
        if not package_of_keras_tensors([leaf]):
            return leaf
        tensors.append(leaf)
        return serialization.Place(len(tensors) - 1)

    given = serialization.replace((tuple(args), dict(kwargs)), place)
    name = name_in(function)
    node: Any = kind(function, given, name=f"{_identifier(name)}_{kind.keras.backend.get_uid(name)}")
    node.trace([kind.spec_of(tensor) for tensor in tensors])
    return node(tensors)


def name_in(function: Callable[..., Any]) -> str:
    """What messages and models call a function."""
    return text.name_of(function).rpartition(".")[2]


def _identifier(name: str) -> str:
    """A name that TensorFlow takes for a scope, and Keras for a node."""
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name).strip("_") or "function"
