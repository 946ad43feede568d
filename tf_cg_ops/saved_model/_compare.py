"""Runs two SavedModels on the same inputs and compares what they compute, the variables that they write included."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from . import _difference, _errors, _inputs

EQUAL, ROUNDING, NOT_COMPARED = "equal, bit for bit", "equal up to rounding", "not compared"

Inputs = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Comparison:
    """How one signature or function of the source and of the target compare.

    `verdict` is "equal, bit for bit", "equal up to rounding" or "not compared"; `detail` says more.
    """

    name: str
    verdict: str
    detail: str = ""


@dataclass
class _Call:
    """A signature, or one traced form of a function."""

    name: str
    function: Callable[..., Any]
    args: Any
    kwargs: Any
    variables: Sequence[tf.Variable]


@dataclass
class _Answer:
    """What a call computed, by name, or the error; and what it was given."""

    values: dict[str, np.ndarray]
    error: str = ""
    given: Any = None


def compare(
    api: str,
    source: pathlib.Path,
    target: pathlib.Path,
    tags: Sequence[str],
    inputs: Inputs,
    progress: Callable[[str], None],
) -> list[Comparison]:
    """Compares all signatures and the functions of the root object; raises RuntimeError where outputs differ."""
    try:
        first = _run_all(api, source, tags, inputs, {}, lambda text: progress(f"checking: source, {text}"))
    except _LoadError as error:
        return [Comparison("all", NOT_COMPARED, f"the source cannot be loaded: {error}")]
    again = _run_all(api, source, tags, inputs, first, lambda text: progress(f"checking: source again, {text}"))
    try:
        other = _run_all(api, target, tags, inputs, first, lambda text: progress(f"checking: target, {text}"))
    except _LoadError as error:
        raise RuntimeError(_errors.TARGET_FAILS.format(api=api, name="tf.saved_model.load", error=error)) from error
    return [_verdict(api, name, first[name], again[name], other.get(name)) for name in first]


class _LoadError(Exception):
    """The text of what tf.saved_model.load raised."""


def _run_all(
    api: str,
    path: pathlib.Path,
    tags: Sequence[str],
    inputs: Inputs,
    known: dict[str, _Answer],
    progress: Callable[[str], None],
) -> dict[str, _Answer]:
    """Loads a model afresh, so that every run starts with the same variables, and calls all there is to call."""
    try:
        loaded = tf.saved_model.load(str(path), tags=list(tags))
    except Exception as error:  # Whatever it is: it is what the report says.
        raise _LoadError(_describe(error)) from error
    calls = _calls(loaded)
    _check_names(api, calls, inputs)
    answers = {}
    for i, (name, call) in enumerate(calls.items()):
        progress(f"{name} ({i + 1} of {len(calls)})")
        if name in known:
            answers[name] = _run(call, known[name].given)
        elif name in inputs:
            answers[name] = _run_with(call, inputs[name])
            if answers[name].error:
                got = answers[name].error.rstrip(".")
                raise ValueError(_errors.INPUTS_REFUSED.format(api=api, name=name, error=got))
        else:
            answers[name] = _try_sizes(call)
    return answers


def _calls(loaded: Any) -> dict[str, _Call]:
    calls = {}
    for name, signature in loaded.signatures.items():
        args, kwargs = signature.structured_input_signature
        calls[name] = _Call(name, signature, args, kwargs, signature.variables)
    for attribute in sorted(vars(loaded)):
        function = getattr(loaded, attribute)
        if attribute.startswith("_") or not isinstance(function, tf.types.experimental.PolymorphicFunction):
            continue
        for i, traced in enumerate(function.concrete_functions):
            name = f".{attribute}" + (f" ({i + 1})" if i else "")
            args, kwargs = traced.structured_input_signature
            calls[name] = _Call(name, function, args, kwargs, traced.variables)
    return calls


def _check_names(api: str, calls: dict[str, _Call], inputs: Inputs) -> None:
    for name, given in inputs.items():
        if name not in calls:
            expected = ", ".join(calls) or "none, for there are no signatures"
            raise ValueError(_errors.INPUTS_UNKNOWN.format(api=api, what="signature", expected=expected, got=name))
        for argument in given:
            if argument not in calls[name].kwargs:
                expected = ", ".join(calls[name].kwargs) or "none"
                what = f"argument of {name}"
                raise ValueError(_errors.INPUTS_UNKNOWN.format(api=api, what=what, expected=expected, got=argument))


def _try_sizes(call: _Call) -> _Answer:
    """What the call computes for the first size of the unknown dimensions that it takes."""
    errors = []
    for size in _inputs.SIZES:
        try:
            given = _inputs.generate((call.args, call.kwargs), size)
        except (TypeError, ValueError) as error:
            errors.append(_describe(error))
            continue
        answer = _run(call, given)
        if not answer.error:
            return answer
        errors.append(answer.error)
    return _Answer({}, f"it refuses inputs made from its input specs: {errors[0]}")


def _run_with(call: _Call, inputs: Mapping[str, Any]) -> _Answer:
    """What the call computes for these keyword arguments, and for made-up ones where they say nothing."""
    try:
        kwargs = {**_inputs.generate(call.kwargs, 1), **_inputs.convert(call.kwargs, inputs)}
    except (TypeError, ValueError) as error:
        return _Answer({}, _describe(error))
    return _run(call, (call.args, kwargs))


def _run(call: _Call, given: Any) -> _Answer:
    if given is None:
        return _Answer({})
    args, kwargs = given
    try:
        values = _named_arrays(call.function(*args, **kwargs))
        for variable in call.variables:
            values[f"variable {variable.name}"] = variable.numpy()
    except Exception as error:  # Whatever a model raises: it is what the report says.
        return _Answer({}, _describe(error), given)
    return _Answer(values, given=given)


def _named_arrays(result: Any) -> dict[str, np.ndarray]:
    parts = result.items() if isinstance(result, Mapping) else [("", result)]
    leaves = [(name, tf.nest.flatten(part, expand_composites=True)) for name, part in parts]
    return {
        f"output {name or i}" if len(tensors) == 1 else f"output {name} {i}".replace("  ", " "): np.asarray(t)
        for name, tensors in leaves
        for i, t in enumerate(t.numpy() if tf.is_tensor(t) else t for t in tensors)
        if t is not None
    }


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _verdict(api: str, name: str, first: _Answer, again: _Answer, other: _Answer | None) -> Comparison:
    if first.error:
        return Comparison(name, NOT_COMPARED, first.error)
    if again.error or _difference.between(first.values, again.values)[1] > 1:
        return Comparison(name, NOT_COMPARED, "the source gives other outputs each time, as random operations do")
    if other is None or other.error:
        got = other.error.rstrip(".") if other else "no such call"
        raise RuntimeError(_errors.TARGET_FAILS.format(api=api, name=name, error=got))
    where, difference = _difference.between(first.values, other.values)
    if difference == 0:
        return Comparison(name, EQUAL)
    if difference <= 1:
        return Comparison(name, ROUNDING, "TensorFlow may fuse and order operations in another way")
    raise RuntimeError(_errors.OUTPUTS_DIFFER.format(api=api, name=name, where=where))
