"""Reads what a gradient function returned as one entry for each leaf of the arguments, without guessing.

An answer is flat, with an entry for each leaf, or has the structure of the arguments. What holds no Tensor has None as
its entry, or none. If an answer can be read in several ways, all must mean the same.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence, Set, ValuesView
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import pytree, text
from tf_cg_ops._src.custom_gradient.wording import Wording

# The kinds of leaves. A constant can have an entry, which is not used: in a tf.function it can be a Tensor, and a rule
# for an op can return a gradient for an integer.
NOTHING, CONSTANT, TENSOR = range(3)

_LEFT_OUT: Any = object()


class _MisfitError(ValueError):
    """A part of the answer does not have the structure of its argument. The text continues a sentence."""


def entries(wording: Wording, function: str, answer: Any, arguments: pytree.Leaves, kinds: Sequence[int]) -> list[Any]:
    """One entry for each leaf of the arguments, from the answer of the gradient function of `function`.

    Raises ValueError or TypeError if the answer does not fit, or has several gradients for `**kwargs` without names.
    """
    subject = wording.subject_of(function)
    answer = opened(subject, answer)
    flat: Any = None if has_mapping(answer) else [] if answer is None and not kinds else tf.nest.flatten(answer)
    has_parts = wording.names_keywords and arguments.has_empty  # Then a None can be for an empty list.
    is_full = flat is not None and len(flat) == len(kinds) and not has_parts
    entries = flat if is_full else _only_reading(wording, subject, answer, flat, arguments, kinds)
    last = arguments.arguments[-1] if arguments.has_keywords and wording.names_keywords and flat else None
    if last is not None and last.star == "**":
        first = len(kinds) - len(tf.nest.flatten(last.value))
        by_key = tf.nest.pack_sequence_as(last.value, kinds[first:])
        keys = [key for key, inside in by_key.items() if TENSOR in tf.nest.flatten(inside)]
        if len(keys) > 1 and any(entry is not None for entry in entries[first:]):
            raise ValueError(
                f"{subject} must return the gradients of '**{last.name}' in a dict with the keys {text.quoted(keys)}, "
                f"got {_noun(answer)} without names: keyword arguments have no order that TensorFlow keeps. Return the "
                "dict after the gradients of the other inputs."
            )
    return entries


def opened(subject: str, answer: Any) -> Any:
    """Turns iterators and tuples in the answer into lists; raises TypeError for a container without an order."""
    if tf.is_tensor(answer) or isinstance(answer, (str, bytes)):
        return answer
    if isinstance(answer, (list, tuple, Iterator, ValuesView)):
        return [opened(subject, item) for item in answer]
    if isinstance(answer, Mapping):
        return {key: opened(subject, item) for key, item in answer.items()}
    if isinstance(answer, Set) or (isinstance(answer, np.ndarray) and answer.dtype == object):
        raise TypeError(
            f"{subject} must return its gradients in a tuple or a list, got {text.describe_type(answer)}. Return one "
            "gradient for each input, in their order."
        )
    return answer


def has_mapping(answer: Any) -> bool:
    """Whether an opened answer contains a dict, which has names instead of an order."""
    return any(map(has_mapping, answer)) if isinstance(answer, list) else isinstance(answer, Mapping)


def _only_reading(
    wording: Wording, subject: str, answer: Any, flat: list[Any] | None, arguments: pytree.Leaves, kinds: Sequence[int]
) -> list[Any]:
    """The entries, on which all ways to read the answer agree; `flat` is the flat answer if it has no dict."""
    items = [i for a in arguments.arguments for i in (pytree.spread_stars([a]) if a.star == "*" else [a])]
    rest = iter(kinds)
    units = [(item.name, tf.nest.map_structure(lambda _: next(rest), item.value)) for item in items]
    ways = [(flat, list(zip(arguments.names, kinds, strict=True)))] if flat is not None else []
    ways += [(parts, units) for parts in (answer, [answer]) if isinstance(parts, list)]
    readings: list[tuple[str, list[Any]]] = []
    errors: list[str] = []
    for parts, owners in ways:
        for matched in _matches(parts, [max(tf.nest.flatten(inside), default=NOTHING) for _, inside in owners]):
            pairs = list(zip(matched, owners, strict=True))
            try:
                entries = [entry for part, owner in pairs for entry in _aligned(part, *owner)]
            except _MisfitError as error:
                errors.append(str(error))  # Text, because exceptions would keep this frame alive.
                continue
            if not any(all(map(operator.is_, entries, others)) for _, others in readings):
                readings.append((text.quoted(name for part, (name, _) in pairs if part is not _LEFT_OUT), entries))
    if len(readings) == 1:
        return readings[0][1]
    if flat is not None and not readings:
        how = "Return None for an input that has no gradient." if len(flat) < len(kinds) else ""
        how = wording.advice if wording.noun != "gradient" else how or "Return one gradient for each input."
        raise ValueError(
            f"{subject} returned {text.count(len(flat), wording.noun)}; expected {len(kinds)} (one per input: "
            f"{text.quoted(arguments.names)}). {how}"
        )
    names = text.quoted(name for name, _ in units)
    if readings:
        errors = [
            f"must return gradients that fit in one way, but these could be for {readings[0][0]}, or for "
            f"{readings[1][0]}. Return one gradient, or None, for each of {names}."
        ]
    errors.append(
        f"must return one gradient for each of {names}, got {_noun(answer)}. Return a tuple in this order: only the "
        "gradients of '**kwargs' and of a dict have names."
    )
    raise ValueError(f"{subject} {errors[0]}")


def _matches(parts: list[Any], kinds: list[int]) -> Iterator[list[Any]]:
    """The ways to give each argument its part; or two of several, between which the others lie."""
    if len(parts) == len(kinds):
        yield parts
    elif kinds.count(TENSOR) <= len(parts) < len(kinds):
        for step in (1, -1):
            rest, num_kept, matched = parts[::step], len(parts) - kinds.count(TENSOR), []
            for kind in kinds[::step]:  # Those without Tensors have their parts as early, or as late, as possible.
                is_kept = num_kept > 0 and kind != TENSOR and (rest[0] is None or kind == CONSTANT)
                num_kept -= is_kept
                matched.append(rest.pop(0) if is_kept or kind == TENSOR else _LEFT_OUT)
            if not rest:
                yield matched[::step]


def _aligned(part: Any, name: str, kinds: Any) -> list[Any]:
    """The entries for the leaves of one argument, whose kinds have its structure, from its part of the answer."""
    leaves = tf.nest.flatten(kinds)
    if part is None or part is _LEFT_OUT:
        return [None] * len(leaves)
    if isinstance(kinds, Mapping) and isinstance(part, Mapping):
        missing = [key for key in kinds if key not in part]
        if set(part) <= set(kinds) and not any(TENSOR in tf.nest.flatten(kinds[key]) for key in missing):
            return [e for key in sorted(kinds) for e in _aligned(part.get(key), f"{name}[{key!r}]", kinds[key])]
    if isinstance(kinds, (list, tuple)) and isinstance(part, list) and len(part) == len(kinds):
        return [e for i, inside in enumerate(kinds) for e in _aligned(part[i], f"{name}[{i}]", inside)]
    if has_mapping(part) or len(tf.nest.flatten(part)) != len(leaves):
        keys = f", {_noun(kinds)}" if isinstance(kinds, Mapping) else ""
        raise _MisfitError(
            f"must return the gradient of {name!r} in its structure{keys}, got {_noun(part)}. Return a Tensor for a "
            "Tensor, a list for a list, and a dict with the same keys for a dict."
        )
    return tf.nest.flatten(part)


def _noun(part: Any) -> str:
    if isinstance(part, Mapping):
        return f"a dict of {text.quoted(part)}"
    return text.count(len(tf.nest.flatten(part)), "gradient") + (" with a dict among them" if has_mapping(part) else "")
