"""Calls with KerasTensors, the symbolic inputs of functional models, of Keras 3 and of tf_keras.

A Keras is imported only when one of its KerasTensors arrives. `keras3.py` or `keras2.py` then handles the call.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls
from tf_cg_ops._src.keras import registration

Function = TypeVar("Function", bound=Callable[..., Any])


def takes_keras_tensors(name: str, advice: str = "") -> Callable[[Function], Function]:
    """Decorates the public function with this name, so that it also takes KerasTensors.

    If a call does not fit its signature, the error ends with `advice`, by default the call to write.
    """

    def decorate(function: Function) -> Function:
        # AutoGraph would translate this library's code too, which slows down tracing.
        @tf.autograph.experimental.do_not_convert
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            package = package_of_keras_tensors((*args, *kwargs.values()) if kwargs else args)
            if package:
                return call_symbolically(package, registration.functions[name], args, kwargs)
            try:
                return function(*args, **kwargs)
            except TypeError:
                misplaced_calls.check_fits(name, function, args, kwargs, advice)
                raise

        registration.functions[name] = wrapper
        return wrapper

    return decorate


def call_symbolically(package: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Adds the call to the functional model that the KerasTensors among the arguments belong to."""
    return registration.module_of(package).FunctionCall.add_to_model(function, args, kwargs)


def package_of_keras_tensors(values: Any) -> str:
    """The package of the first KerasTensor in nested lists, tuples and mappings; empty without one.

    It has to be fast, because it runs before every call.
    """
    for value in values:
        package = _PACKAGES.get(type(value))
        if package is None:
            package = _package_of(value)
        if package:
            return package
    return ""


# The package for each type of leaf; containers are not in it.
_PACKAGES: dict[type, str] = {}


def _package_of(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return package_of_keras_tensors(value)
    if isinstance(value, Mapping):
        return package_of_keras_tensors(value.values())
    names = [base.__module__.partition(".")[0] for base in type(value).__mro__ if base.__name__ == "KerasTensor"]
    # In one step, because other threads read it.
    return _PACKAGES.setdefault(type(value), next((name for name in names if name in registration.MODULES), ""))
