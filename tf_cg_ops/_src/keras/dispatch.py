"""Calls with KerasTensors, the symbolic inputs of functional models, of Keras 3 and of tf_keras.

A Keras is imported only when one of its KerasTensors arrives. `keras3.py` or `keras2.py` then handles the call.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls
from tf_cg_ops._src.core.tf_internal import EagerTensor
from tf_cg_ops._src.keras import registration

Function = TypeVar("Function", bound=Callable[..., Any])


def takes_keras_tensors(name: str, advice: str = "") -> Callable[[Function], Function]:
    """Decorates the public function with this name, so that it also takes KerasTensors.

    If a call does not fit its signature, the error ends with `advice`, by default the call to write.
    """

    def decorate(function: Function) -> Function:
        explained = misplaced_calls.explains(name, advice)(function)

        # AutoGraph would translate this library's code too, which slows down tracing.
        @tf.autograph.experimental.do_not_convert
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            package = package_of_keras_tensors((*args, *kwargs.values()) if kwargs else args)
            if package:
                return call_symbolically(package, registration.functions[name], args, kwargs)
            return explained(*args, **kwargs)

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
        if type(value) is EagerTensor:
            continue
        if isinstance(value, (list, tuple)):
            package = package_of_keras_tensors(value)
        elif isinstance(value, Mapping):
            package = package_of_keras_tensors(value.values())
        else:
            package = _package_of(type(value))
        if package:
            return package
    return ""


def _package_of(leaf: type) -> str:
    for base in leaf.__mro__:
        if base.__name__ == "KerasTensor":
            package = base.__module__.partition(".")[0]
            if package in registration.MODULES:
                return package
    return ""
