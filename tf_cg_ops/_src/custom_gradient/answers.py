"""Reads what a gradient function returned as one entry for each leaf of the arguments, without guessing."""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import pytree, text

# One entry for each leaf of some arguments.
Entries = list[Any]


class _WrongAnswerError(ValueError):
    """The answer does not have the structure of the arguments. The text continues a sentence about the function."""


def flat_entries(subject: str, answer: Any, arguments: pytree.Leaves, names_keywords: bool = False) -> Entries:
    """The entries in the order of the leaves. Without a dict there can be any number, which the caller checks.

    Raises ValueError or TypeError about `subject` if the answer cannot be read; with `names_keywords` also if it has
    several gradients for `**kwargs` without their names.
    """
    answer = opened(subject, answer)
    if not has_mapping(answer):
        entries = tf.nest.flatten(answer)
        if arguments.has_keywords and names_keywords:
            _check_keywords(subject, entries, arguments)
        return entries
    read = _by_name if isinstance(answer, Mapping) else _by_position
    readings = [lambda: read(answer, arguments.arguments)]
    with_tensors = [a for a in arguments.arguments if _holds_tensors(a.value)] or arguments.arguments
    if len(with_tensors) == 1:
        readings.append(lambda: _of_single(answer, with_tensors[0], arguments.arguments))
    if not isinstance(answer, Mapping):
        readings.append(lambda: _by_position(answer, pytree.spread(arguments.arguments)))
    found: list[Entries] = []
    errors: list[str] = []  # Text, because exceptions would keep this frame alive.
    for reading in readings:
        try:
            entries = reading()
        except _WrongAnswerError as error:
            errors.append(str(error))
        else:
            if not any(_are_same(entries, other) for other in found):
                found.append(entries)
    if len(found) > 1:
        raise ValueError(
            f"{subject} returned a dict that can be read in two ways: by the names of the inputs, and as the gradient "
            "of one of them. Return a tuple with one gradient for each input."
        )
    if not found:
        raise ValueError(f"{subject} {errors[0]}")
    return found[0]


def _check_keywords(subject: str, entries: Entries, arguments: pytree.Leaves) -> None:
    last = arguments.arguments[-1] if arguments.arguments else None
    if last is None or last.star != "**":
        return
    keys = [key for key in last.value if _holds_tensors(last.value[key])]
    num_others = len(arguments.values) - len(tf.nest.flatten(last.value))
    if len(keys) > 1 and any(entry is not None for entry in entries[num_others:]):
        raise ValueError(
            f"{subject} must return the gradients of '**{last.name}' in a dict with the keys {text.quoted(keys)}, got "
            f"{text.count(len(entries), 'gradient')} without names: keyword arguments have no order that TensorFlow "
            "keeps. Return the dict after the gradients of the other inputs."
        )


def opened(subject: str, answer: Any) -> Any:
    """Turns iterators and tuples in the answer into lists; raises TypeError for a container without an order."""
    if tf.is_tensor(answer) or isinstance(answer, (str, bytes)):
        return answer
    if isinstance(answer, (list, tuple, Iterator)):
        return [opened(subject, item) for item in answer]
    if isinstance(answer, Mapping):
        return {key: opened(subject, item) for key, item in answer.items()}
    is_view = tf.nest.is_nested(answer)  # The views of a dict are sets, but have an order.
    is_array_of_objects = isinstance(answer, np.ndarray) and answer.dtype == object
    if is_array_of_objects or (isinstance(answer, Set) and not is_view):
        container = "a NumPy array of objects" if is_array_of_objects else text.describe_type(answer)
        raise TypeError(
            f"{subject} must return its gradients in a tuple or a list, got {container}. Return one gradient for each "
            "input, in their order."
        )
    return answer


def has_mapping(answer: Any) -> bool:
    """Whether an opened answer contains a dict, which has names instead of an order."""
    return any(map(has_mapping, answer)) if isinstance(answer, list) else isinstance(answer, Mapping)


def _holds_tensors(value: Any) -> bool:
    return any(pytree.tensors_for_gradients(leaf) for leaf in tf.nest.flatten(value))


def _are_same(first: Entries, second: Entries) -> bool:
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))


def _no_entries(argument: pytree.Argument) -> Entries:
    return [None] * len(tf.nest.flatten(argument.value))


def _by_name(answer: Mapping[str, Any], arguments: list[pytree.Argument]) -> Entries:
    parts: dict[str, Any] = dict(answer)
    names: list[str] = []
    entries: Entries = []
    missing: list[str] = []
    for argument in arguments:
        is_spread = argument.star == "**" and (argument.name not in parts or argument.name in argument.value)
        inner = pytree.spread([argument]) if is_spread else [argument]
        for single in inner:
            names.append(single.name)
            if single.name in parts:
                entries += _aligned(parts.pop(single.name), single.value, single.name)
            else:
                entries += _no_entries(single)
                missing += [single.name] if _holds_tensors(single.value) else []
    if parts:
        raise _WrongAnswerError(
            f"returned a dict with {_keys(parts)}, but its inputs are {text.quoted(names)}. Use the names of the "
            "inputs as keys, or return a tuple with one gradient for each input."
        )
    if missing:
        raise _WrongAnswerError(
            f"returned a dict without a gradient for {text.quoted(missing)}. Use None for an input that has no "
            "gradient."
        )
    return entries


def _by_position(answer: Sequence[Any], arguments: list[pytree.Argument]) -> Entries:
    left_out = arguments[len(answer) :]
    if len(answer) > len(arguments) or any(_holds_tensors(argument.value) for argument in left_out):
        raise _WrongAnswerError(
            f"returned {text.count(len(answer), 'gradient')} with a dict among them, but its inputs are "
            f"{text.quoted(argument.name for argument in arguments)}. Return one gradient, or one structure of "
            "gradients, for each input."
        )
    entries = [e for part, a in zip(answer, arguments, strict=False) for e in _aligned(part, a.value, a.name)]
    return entries + [entry for argument in left_out for entry in _no_entries(argument)]


def _of_single(answer: Any, single: pytree.Argument, arguments: list[pytree.Argument]) -> Entries:
    """Reads the answer as the gradient of the only argument that holds Tensors."""
    is_star = single.star == "*" and len(single.value) == 1 and isinstance(answer, Mapping)
    value = single.value[0] if is_star else single.value
    entries: Entries = []
    for argument in arguments:
        entries += _aligned(answer, value, single.name) if argument is single else _no_entries(argument)
    return entries


def _aligned(part: Any, value: Any, name: str) -> Entries:
    """The entries for the leaves of one value, from its part of the answer."""
    num_leaves = len(tf.nest.flatten(value))
    if part is None:
        return [None] * num_leaves
    if isinstance(value, Mapping) and isinstance(part, Mapping):
        if set(part) != set(value):
            raise _WrongAnswerError(
                f"returned a dict with {_keys(part)} for {name!r}, which has {_keys(value)}. Use the keys of the input."
            )
        return [entry for key in sorted(value) for entry in _aligned(part[key], value[key], f"{name}[{key!r}]")]
    if isinstance(value, (list, tuple)) and isinstance(part, list) and len(part) == len(value):
        pairs = enumerate(zip(part, value, strict=True))
        return [entry for i, (p, v) in pairs for entry in _aligned(p, v, f"{name}[{i}]")]
    entries = tf.nest.flatten(part)
    if has_mapping(part) or len(entries) != num_leaves:
        noun = "a dict" if isinstance(part, Mapping) else text.count(len(entries), "gradient")
        raise _WrongAnswerError(
            f"returned {noun} for {name!r}, which is {text.describe_type(value)}. Return a gradient with the structure "
            "of the input."
        )
    return entries


def _keys(mapping: Mapping[Any, Any]) -> str:
    noun = "the key" if len(mapping) == 1 else "the keys"
    return f"{noun} {', '.join(map(repr, mapping))}"
