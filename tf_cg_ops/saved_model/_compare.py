"""Runs two SavedModels on the same inputs and compares what they compute, the variables that they write included."""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from . import _calls, _difference, _errors, _inputs

EQUAL, ROUNDING, NOT_COMPARED = "equal, bit for bit", "equal up to rounding", "not compared"

_RANDOM = "the source gives other outputs each time, as random operations do"

Inputs = Mapping[str, Mapping[str, Any]]

# Lines of TensorFlow around what went wrong.
_TELLS_NOTHING = re.compile(
    r"Graph execution error|Detected at node|<stack traces|\[\[|\d+ (root|successful|derived) |You may be trying"
)


@dataclass(frozen=True)
class Comparison:
    """How one signature or function of the source and of the target compare.

    `verdict` is "equal, bit for bit", "equal up to rounding" or "not compared"; `detail` says more.
    """

    name: str
    verdict: str
    detail: str = ""


@dataclass
class _Answer:
    """What a call computed, by name, or the error; and what it was given, if it took that."""

    values: dict[str, np.ndarray]
    error: str = ""
    given: Any = None
    first_try: bool = True


def compare(
    api: str,
    source: pathlib.Path,
    target: pathlib.Path,
    meta_graph: Any,
    tags: str,
    inputs: Inputs,
    progress: Callable[[str], None],
) -> list[Comparison]:
    """Compares all signatures and functions of a meta graph; raises RuntimeError where outputs differ.

    `tags` is put behind their names, to tell those of several meta graphs apart.
    """
    inputs = _inputs.of_meta_graph(meta_graph, inputs)
    load = functools.partial(_Loaded, meta_graph=meta_graph, progress=progress)
    try:
        first = load(source, "source").run_all(api, inputs, {})
        if not all(answer.first_try for answer in first.values()):  # What was refused may have left something behind.
            first |= load(source, "source with what it takes").run_all(api, inputs, first)
        reloaded = load(source, "source again")
        again = reloaded.run_all(api, inputs, first)
    except _LoadError as error:
        raise ValueError(
            f"{api}: TensorFlow cannot load the source, '{source}'; expected that tf.saved_model.load takes it, "
            f"got {error}. Copy the whole folder of the SavedModel, or leave the check out with check=False "
            "(--no-check)."
        ) from error
    try:
        other = load(target, "target").run_all(api, inputs, first)
    except _LoadError as error:
        raise RuntimeError(_errors.TARGET_FAILS.format(api=api, name="tf.saved_model.load", error=error)) from error
    return [
        _verdict(api, name + tags, first[name], again.get(name), other.get(name), reloaded.calls[name].is_random)
        for name in first
    ]


class _LoadError(Exception):
    """The text of what tf.saved_model.load raised."""


class _Loaded:
    """A model that is loaded afresh, so that every run starts with the same variables."""

    def __init__(self, path: pathlib.Path, label: str, meta_graph: Any, progress: Callable[[str], None]) -> None:
        try:
            loaded = tf.saved_model.load(str(path), tags=list(meta_graph.meta_info_def.tags))
        except Exception as error:  # Whatever it is: it is what the message says.
            raise _LoadError(_describe(error).rstrip(".")) from error
        self._loaded = loaded  # Functions do not keep variables alive.
        self.calls = _calls.find(loaded, meta_graph.object_graph_def)
        self._progress = lambda text: progress(f"checking: {label}, {text}")

    def run_all(self, api: str, inputs: Inputs, known: dict[str, _Answer]) -> dict[str, _Answer]:
        """Calls all there is to call; with what it took if that is known, and not if it took nothing."""
        answers = {}
        for i, (name, call) in enumerate(self.calls.items()):
            if name in known and known[name].error:
                continue
            self._progress(f"{name} ({i + 1} of {len(self.calls)})")
            if name in known:
                answers[name] = _run(call, known[name].given)
            elif name in inputs:
                answers[name] = _run_with(call, inputs[name])
                if answers[name].error and answers[name].given is None:
                    got = answers[name].error.rstrip(".")
                    raise ValueError(
                        f"{api}: the source refuses the inputs; expected that {name} takes them, got {got}. Pass "
                        "what the signature takes."
                    )
            else:
                answers[name] = _try_sizes(call)
        return answers


def _try_sizes(call: _calls.Call) -> _Answer:
    """What the call computes for the first size of the unknown dimensions that it takes."""
    if call.function is None:
        return _Answer({}, "it cannot be reached in the loaded model")
    errors: list[str] = []
    for size in _inputs.SIZES:
        try:
            given = _inputs.generate((call.args, call.kwargs), size)
        except (TypeError, ValueError) as error:
            errors.append(_describe(error))
            continue
        answer = _run(call, given)
        if answer.given is not None:
            return dataclasses.replace(answer, first_try=not errors)
        errors.append(answer.error)
    return _Answer({}, f"it refuses inputs made from its input specs: {errors[0]}", first_try=False)


def _run_with(call: _calls.Call, inputs: Mapping[str, Any]) -> _Answer:
    """What the call computes for these keyword arguments, and for made-up ones where they say nothing."""
    try:
        kwargs = {**_inputs.generate(call.kwargs, 1), **_inputs.convert(call.kwargs, inputs)}
    except (TypeError, ValueError) as error:
        return _Answer({}, _describe(error))
    return _run(call, (call.args, kwargs))


def _run(call: _calls.Call, given: Any) -> _Answer:
    """What the call computes. The variables are then put back, so that no other call depends on this one."""
    args, kwargs = given
    before = [variable.read_value() for variable in call.variables]
    try:
        result = call.function(*args, **kwargs) if call.function else None
    except Exception as error:  # Whatever a model raises: it is what the report says.
        return _Answer({}, _describe(error))
    else:
        return _answer(result, call.variables, given)
    finally:
        for variable, value in zip(call.variables, before, strict=True):
            variable.assign(value)


def _answer(result: Any, variables: Sequence[tf.Variable], given: Any) -> _Answer:
    try:
        values = _named_arrays(result)
        for variable in variables:
            values[f"variable {variable.name}"] = variable.numpy()
    except Exception as error:
        return _Answer({}, f"its output cannot be compared: {_describe(error)}", given)
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
    """An error in one line: its first one, or the last one that tells something if that does not."""
    text = re.sub(r"\{\{function_node \S+?\}\} ", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    telling = [line for line in lines if not _TELLS_NOTHING.match(line)] or lines
    return f"{type(error).__name__}: {lines[0] if lines[0] == telling[0] else telling[-1]}"


def _verdict(
    api: str,
    name: str,
    first: _Answer,
    again: _Answer | None,
    other: _Answer | None,
    is_random: Callable[[], bool] = lambda: False,
) -> Comparison:
    if first.error:
        return Comparison(name, NOT_COMPARED, first.error)
    if again is None or again.error or _difference.between(first.values, again.values)[1] > 1:
        return Comparison(name, NOT_COMPARED, _RANDOM)
    if other is None or other.error:
        got = other.error.rstrip(".") if other else "no such call"
        raise RuntimeError(_errors.TARGET_FAILS.format(api=api, name=name, error=got))
    where, difference = _difference.between(first.values, other.values)
    if difference == 0:
        return Comparison(name, EQUAL)
    if difference <= 1:
        return Comparison(name, ROUNDING, "TensorFlow may fuse and order operations in another way")
    if is_random():  # Twice the same, as dropout of few elements may be: two runs do not always show it.
        return Comparison(name, NOT_COMPARED, _RANDOM)
    raise RuntimeError(
        f"{api}: the stripped model computes something else; expected that {name} gives what the source gives, "
        f"got another {where}. Nothing was written; please report it, with the model."
    )
