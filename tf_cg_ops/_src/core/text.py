"""Formats values, functions, names and numbers for error messages."""

import contextvars
import functools
import re
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

# TensorFlow's names for what `tf.saved_model.load` returns.
_OF_LOADED_MODELS = ("_UserObject", "_WrapperFunction", "restored_function_body")
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)

_MAX_LENGTH = 400
# Lines that TensorFlow puts before the message, in errors of graphs.
_GRAPH_NOISE = ("Graph execution error:", "Detected at node", "<stack traces unavailable>", "File ")

# Whether messages are for someone who runs the program `tf-cg-ops`.
for_program = contextvars.ContextVar("for_program", default=False)


def written(python: str, program: str) -> str:
    """What the reader of a message writes: in Python, or for the program."""
    return program if for_program.get() else python


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, with its class but without the functions around it."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    name = getattr(function, "__qualname__", type(function).__name__).rsplit("<locals>.")[-1]
    return "loaded model" if name in _OF_LOADED_MODELS else name


def describe(value: Any) -> str:
    """Describes a value by its contents, or by its type where that says more."""
    if isinstance(value, _FUNCTIONS):
        return f"the function '{name_of(value)}'"
    if isinstance(value, type):
        return describe_type(value)
    if isinstance(value, tf.Tensor):
        return f"a Tensor of dtype {value.dtype.name}"
    if hasattr(value, "dtype") and not isinstance(value, (np.ndarray, np.generic)):
        return f"a {type(value).__name__}"
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 80 else f"{text[:80]}... (a {type(value).__name__})"


def describe_type(value: Any) -> str:
    """The type of a value, with an article: "an int", "a tuple of 2 (Tensor, NoneType)"; a class by its name."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class '{name_of(value)}'"
    if type(value) is tuple:
        return f"a tuple of {len(value)} ({', '.join(map(_type_name, value))})"
    noun = _type_name(value)
    return f"an {noun}" if noun[:1] in "AEIOUaeiou" or noun == "ndarray" else f"a {noun}"


def _type_name(value: Any) -> str:
    # Users know tf.Tensor, and not its classes for eager mode and for graphs.
    return "Tensor" if isinstance(value, tf.Tensor) else type(value).__name__


def add_note(error: Any, note: str) -> None:
    """Adds a note to an exception of the user's own code, as `add_note` does in Python 3.11, which prints notes.

    Where it would be lost, it is added to the message of Python's own exceptions: Python 3.10 prints no notes, and
    AutoGraph makes a new exception of the message.
    """
    notes = getattr(error, "__notes__", [])
    if note in notes or note in str(error):
        return
    would_be_lost = sys.version_info < (3, 11) or not tf.executing_eagerly()
    if would_be_lost and type(error).__module__ == "builtins" and error.args == (str(error),):
        error.args = (f"{error}\n{note}",)
    else:
        error.__notes__ = [*notes, note]


def in_one_line(error: Exception) -> str:
    """The type of an error and the line with its message, without the final period."""
    lines = str(error).splitlines()
    if lines[:1] == ["in user code:"]:  # AutoGraph indents: files by 4, their lines by 8, the message by 4 again.
        lines = [re.sub(r"^\s+(\w+(Error|Exception): )?", "", line) for line in lines if re.match(r" {4}\S", line)]
    line = next((line for line in lines if re.match(r"\S", line) and not line.startswith(_GRAPH_NOISE)), "")
    line = re.sub(r"\s*\[Op:\w+\].*$", "", line)
    shortened = line if len(line) <= _MAX_LENGTH else f"{line[:_MAX_LENGTH]} [...]"
    return f"{type(error).__name__}: {shortened}".rstrip(" .:")


def quoted(names: Iterable[str]) -> str:
    """Names in quotes, with commas between them."""
    return ", ".join(repr(name) for name in names)


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 gradient", "2 gradients", "2 entries"."""
    nouns = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{number} {noun if number == 1 else nouns}"
