"""Calls that were meant for another function: they raise an error that names the function and shows the call.

The name `custom_gradient` stands for a decorator in TensorFlow, and for a function of values in TensorFlow Probability
and TensorFlow 1's contrib. Python's own error, "takes from 0 to 1 positional arguments but 3 were given", helps nobody
who knows the other one.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tf_cg_ops._src.core.signature import without_annotations

Function = TypeVar("Function", bound=Callable[..., Any])

# The default of a required parameter, after `notes_missing_arguments`.
MISSING: Any = object()


def explains(api: str, advice: str) -> Callable[[Function], Function]:
    """Decorates a public function: where a call does not fit its signature, the error ends with this advice."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError:
                check_fits(api, function, args, kwargs, advice)
                raise

        return wrapper  # type: ignore[return-value]

    return decorate


def check_fits(
    api: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], advice: str = ""
) -> None:
    """Raises TypeError, with this advice or the call to write, if the arguments do not fit a public function."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        advice = advice or f"Write {api}{without_annotations(signature)}."
        raise TypeError(f"{api}: {error}. {advice}") from None


def notes_missing_arguments(function: Function) -> Function:
    """Decorates a public function: it gets MISSING for an argument that a call lacks, and can raise its own error.

    A correct call costs nothing more, as a wrapper would. Readers and type checkers see the signature as it is written.
    """
    signature = inspect.signature(function)
    required = [p for p in signature.parameters.values() if p.default is p.empty]
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__defaults__ = (MISSING,) * len(required) + (function.__defaults__ or ())
    return function


def check_values(api: str, **values: Any) -> None:
    """Raises TypeError if a call of a function of values lacks one of them."""
    missing = next((name for name, value in values.items() if value is MISSING), None)
    if missing:
        raise TypeError(f"{api}: missing a required argument: {missing!r}. {for_values(api)}")


def for_values(api: str) -> str:
    """The advice for a function of values, which a user may take for a decorator."""
    return (
        f"Write {api}(fx, gx, x). To decorate a function that returns (value, grad_fn), use tf_cg_ops.custom_gradient."
    )
