"""Errors for calls in the style of another library, which name the right function and show the right call.

`custom_gradient` is a decorator in TensorFlow, but a function of values in TensorFlow Probability and TensorFlow 1's
contrib. Python's own error, "takes from 0 to 1 positional arguments but 3 were given", would not help.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from tf_cg_ops._src.core import text
from tf_cg_ops._src.core.signature import misfit, shown

Function = TypeVar("Function", bound=Callable[..., Any])

# The default of a required parameter, after `notes_missing_arguments`.
MISSING: Any = object()


def explains(api: str, advice: str = "") -> Callable[[Function], Function]:
    """Decorates a public function: if a call does not fit it, the error ends with advice, or with the right call."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError:
                error = misfit(function, args, kwargs)
                if error:
                    raise TypeError(f"{api}: {error}. {advice or f'Write {shown(function, api)}.'}") from None
                raise

        # Keras reads the signature of a layer's `__init__`, and does not follow `__wrapped__`.
        wrapper.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return wrapper  # type: ignore[return-value]

    return decorate


def notes_missing_arguments(function: Function) -> Function:
    """Decorates a public function: it gets MISSING for an argument that is missing, so that it raises its own error.

    Unlike a wrapper, this does not slow down correct calls. Readers and type checkers see the signature as written.
    """
    signature = inspect.signature(function)
    required = [p for p in signature.parameters.values() if p.default is p.empty]
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__defaults__ = (MISSING,) * len(required) + (function.__defaults__ or ())
    return function


def check_values(api: str, **values: Any) -> None:
    """Raises TypeError if one of these values is MISSING."""
    missing = next((name for name, value in values.items() if value is MISSING), None)
    if missing:
        raise TypeError(f"{api}: missing a required argument: {missing!r}. {for_values(api)}")


def for_values(api: str) -> str:
    """The advice for a function of values that was used as a decorator."""
    return (
        f"Write {api}(fx, gx, x). To decorate a function that returns (value, grad_fn), use tf_cg_ops.custom_gradient."
    )


def check_function(api: str, argument: str, value: Any, advice: str = "", noun: str = "a function") -> None:
    """Raises TypeError unless a value is a function. A class whose instances are functions, such as a layer's, is not.

    Other classes compute values: a NamedTuple of results, for example.
    """
    is_class = isinstance(value, type) and issubclass(value, Callable)  # type: ignore[arg-type]
    if is_class or not callable(getattr(value, "__func__", value)):  # A classmethod is not callable.
        advice = use_instance(value) if is_class else advice
        got = text.describe(value) if isinstance(value, (str, int, float)) else text.describe_type(value)
        raise TypeError(f"{api}: {argument} must be {noun}, got {got}.{advice and ' ' + advice}")


def use_instance(value: type) -> str:
    """The advice for a class that was passed instead of an instance."""
    return f"Make an instance of it, as in {text.name_of(value)}(...)."
