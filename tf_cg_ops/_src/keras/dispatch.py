"""Calls with KerasTensors, the symbolic inputs of functional models, of Keras 3 and of tf_keras.

Neither is imported before one of its KerasTensors comes: `keras3.py` and `keras2.py` are what then serves it.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import tensorflow as tf

# The module that makes the call a part of a functional model, by the package that the KerasTensor comes from.
_SERVED_BY = {"keras": "keras3", "tf_keras": "keras2"}

Function = TypeVar("Function", bound=Callable[..., Any])

# The functions that take KerasTensors, by the name under which Keras saves them.
functions: dict[str, Callable[..., Any]] = {}
# The classes that Keras saves by name.
classes: list[type] = []


def takes_keras_tensors(name: str) -> Callable[[Function], Function]:
    """Decorates the public function of this name, which then takes KerasTensors where it takes Tensors."""

    def decorate(function: Function) -> Function:
        # AutoGraph would translate this library's code, too, and slow down tracing.
        @tf.autograph.experimental.do_not_convert
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            package = package_of_keras_tensors((*args, *kwargs.values()) if kwargs else args)
            if package:
                return call(package, functions[name], args, kwargs)
            return function(*args, **kwargs)

        functions[name] = wrapper
        return wrapper

    return decorate


def call(package: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Makes the call a part of the functional model that the KerasTensors among the arguments belong to."""
    return importlib.import_module(f".{_SERVED_BY[package]}", __package__).call(function, args, kwargs)


def package_of_keras_tensors(values: Any) -> str:
    """The package of the first KerasTensor in nested lists, tuples and mappings; empty if there is none.

    Written for speed: this runs in front of every call.
    """
    for value in values:
        package = _PACKAGES.get(type(value))
        if package is None:
            package = _package_of(value)
        if package:
            return package
    return ""


# Of the types of leaves, which tell by themselves.
_PACKAGES: dict[type, str] = {}


def _package_of(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return package_of_keras_tensors(value)
    if isinstance(value, Mapping):
        return package_of_keras_tensors(value.values())
    kind = type(value)
    _PACKAGES[kind] = ""
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        if base.__name__ == "KerasTensor" and package in _SERVED_BY:
            _PACKAGES[kind] = package
    return _PACKAGES[kind]


def config_of(function: Callable[..., Any]) -> dict[str, str]:
    """What Keras saves of a decorated function: the name that it is registered under, or its own."""
    own = function.__name__
    names = [keras.saving.get_registered_name(function) for keras in loaded()]
    name = next((name for name in names if name != own), own)
    if name == own and not own.isidentifier():
        raise ValueError(
            "tf_cg_ops: Keras saves functions by their names, and this one has none; expected a function made "
            f"with def, got {name!r}. Decorate a named function, and register it with "
            "@keras.saving.register_keras_serializable() on top."
        )
    return {"function": name}


def function_of(config: dict[str, Any]) -> Callable[..., Any]:
    """The function that `config_of` named, as Keras finds it: registered, or among `custom_objects`."""
    name = config["function"]
    if callable(name):  # Keras 2, for H5 files, replaces registered names by what they name.
        return name
    for keras in loaded():
        function = keras.saving.get_registered_object(name)
        if function is not None:
            return function
    raise ValueError(
        f"tf_cg_ops: the model calls a function that Keras does not know; expected {name!r} among the registered "
        "ones, got none. Run the code that decorates it with @keras.saving.register_keras_serializable() first, "
        f"or pass custom_objects={{{name!r}: the function}}."
    )


def loaded() -> list[Any]:
    """Each Keras that is loaded, after it was told about this library's functions."""
    return [importlib.import_module(f".{module}", __package__).keras for module in loaded_modules()]


def loaded_modules() -> list[str]:
    """The names of the modules that serve each Keras that is loaded."""
    return [module for package, module in _SERVED_BY.items() if package in sys.modules]
