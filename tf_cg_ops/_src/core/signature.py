"""Signatures of decorated functions: do arguments fit, and which names do they have?"""

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tf_cg_ops._src.core import text


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function; None for some callables written in C."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def without_annotations(signature: inspect.Signature) -> inspect.Signature:
    """The signature as a message shows it."""
    return inspect.Signature([p.replace(annotation=p.empty) for p in signature.parameters.values()])


def as_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or for a functools.partial a function that calls it: a partial of a partial merges the two."""
    if not isinstance(function, functools.partial):
        return function

    @functools.wraps(function.func)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__signature__ = signature_of(function)  # type: ignore[attr-defined]
    return call


def has_parameter(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of this name that you can pass by keyword."""
    signature = signature_of(function)
    parameter = signature.parameters.get(name) if signature else None
    return parameter is not None and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)


def takes_positional(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with an argument by position."""
    signature = signature_of(function)
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    return signature is None or any(parameter.kind not in by_name for parameter in signature.parameters.values())


def bind(
    api: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], advice: str = ""
) -> inspect.BoundArguments | None:
    """The arguments by name, in the order of the signature; TypeError if they do not fit, None without a signature.

    The advice follows the message.
    """
    signature = signature_of(function)
    if signature is None:
        return None
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        name = text.name_of(function)
        raise TypeError(
            f"{api}: the arguments do not fit '{name}': {error}. Call it as "
            f"{name.rpartition('.')[2]}{without_annotations(signature)}.{advice and ' ' + advice}"
        ) from None


def mismatched_signature(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> inspect.Signature | None:
    """The signature for a message if the arguments do not fit it, otherwise None."""
    try:
        bind("", function, args, kwargs)
    except TypeError:
        return without_annotations(inspect.signature(function))
    return None


def check_argument_names(
    api: str,
    function: Callable[..., Any],
    names: Collection[str],
    advice: str = "Write for example nondiff_argnames=['limit'].",
) -> tuple[str, ...]:
    """Returns `nondiff_argnames` as a tuple; TypeError if they are not names, ValueError if one is not an argument."""
    is_collection = isinstance(names, Collection) and not isinstance(names, (str, bytes))
    if not is_collection or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{api}: nondiff_argnames must be a list of names, got {text.describe(names)}. {advice}")
    known = list(inspect.signature(function).parameters) if names else []
    if any(name not in known for name in names):
        raise ValueError(
            f"{api}: nondiff_argnames must name arguments of '{text.name_of(function)}', which are {known}, got "
            f"{names!r}."
        )
    return tuple(names)


def arguments_by_name(
    api: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], names: Collection[str]
) -> dict[str, Any]:
    """The arguments with these names, including defaults, whether they were passed by position or by name."""
    bound = bind(api, function, args, kwargs) if names else None
    if bound is None:
        return {}
    bound.apply_defaults()
    return {name: bound.arguments[name] for name in names}
