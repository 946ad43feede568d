"""Signatures of decorated functions: do arguments fit, and which names do they have?"""

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import text


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function; None for some callables written in C."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def shown(function: Callable[..., Any], name: str | None = None) -> str:
    """A function with its parameters, as a message shows it; the name is by default its own."""
    parameters = inspect.signature(function).parameters.values()
    bare = inspect.Signature([parameter.replace(annotation=parameter.empty) for parameter in parameters])
    return f"{text.name_of(function) if name is None else name}{bare}"


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


def misfit(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], partial: bool = False) -> str:
    """What Python says of a call that does not fit; empty if it fits, or if the function has no signature.

    With `partial`, more arguments can follow.
    """
    signature = signature_of(function)
    try:
        if signature is not None:
            (signature.bind_partial if partial else signature.bind)(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return ""


def check_takes(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    must_take: str,
    advice: str = "",
    name: str | None = None,
    partial: bool = False,
) -> None:
    """TypeError if a user's function does not take these arguments: `must_take`, what it takes, and the advice."""
    if misfit(function, args, kwargs, partial):
        raise TypeError(f"{must_take}, got {shown(function, name)}.{advice and ' ' + advice}")


def call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    must_take: str,
    advice: str = "",
    name: str | None = None,
    note: str = "",
) -> Any:
    """Calls a user's function. If that fails because it does not take the arguments, the error is `check_takes`'s.

    Other errors get the note.
    """
    try:
        return function(*args, **kwargs)
    except Exception as error:
        if isinstance(error, TypeError):
            check_takes(function, args, kwargs, must_take, advice, name)
        if note:
            text.add_note(error, note)
        raise


def traced(api: str, function: Callable[..., Any], purpose: str, name: str | None = None) -> Callable[..., Any]:
    """A function to trace; if the caller is in eager mode now, errors of code that needs a value say why it fails."""
    name = name or text.name_of(function)

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (TypeError, AttributeError, NotImplementedError) as error:
            if not misfit(function, args, kwargs):
                text.add_note(
                    error,
                    f"{api}: '{name}' is traced {purpose}, in eager mode too. If it reads a Tensor in Python, that has "
                    "no value yet: for `if` and `while`, decorate it with @tf.function; instead of float(x), x.numpy() "
                    "and NumPy, write TensorFlow's functions or tf_cg_ops.numpy_function.",
                )
            raise

    call.__qualname__ = name
    return call if tf.executing_eagerly() else function


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
        right = shown(function, name.rpartition(".")[2])
        advice = f"Call it as {right}.{advice and ' ' + advice}"
        raise TypeError(f"{api}: the arguments do not fit '{name}': {error}. {advice}") from None


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
