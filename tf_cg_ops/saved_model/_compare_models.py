"""Runs two SavedModels on the same inputs and compares their outputs and the variables that they write."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from . import _inputs
from ._entry_points import EntryPoint, find_entry_points

EQUAL, ROUNDING, NOT_COMPARED = "equal, bit for bit", "equal up to rounding", "not compared"

_RANDOM = "the source gives different outputs each time, as random operations do"

Inputs = Mapping[str, Mapping[str, Any]]

# Lines that TensorFlow puts around a message.
_NOISE = re.compile(
    r"Graph execution error|Detected at node|<stack traces|\[\[|\d+ (root|successful|derived) |You may be trying"
)


@dataclass(frozen=True)
class Comparison:
    """The comparison of a signature or function in the source and in the target.

    `verdict` is "equal, bit for bit", "equal up to rounding" or "not compared", and `detail` the reason.
    """

    name: str
    verdict: str
    detail: str = ""


@dataclass
class _Result:
    """A run of a model: its outputs and variables by name, or its error; and the inputs that it accepted."""

    values: dict[str, np.ndarray]
    error: str = ""
    inputs: Any = None
    first_try: bool = True  # Whether it accepted the first inputs that were made up.


def compare_models(
    api: str,
    source: pathlib.Path,
    target: pathlib.Path,
    meta_graph: Any,
    tags: str,
    inputs: Inputs,
    progress: Callable[[str], None],
) -> list[Comparison]:
    """Compares all signatures and functions of a meta graph. Raises RuntimeError if outputs differ.

    `tags` is appended to their names, to tell several meta graphs apart.
    """

    def run(path: pathlib.Path, label: str, earlier: dict[str, _Result]) -> tuple[dict[str, _Result], Any]:
        return _run_all(api, path, meta_graph, inputs, earlier, lambda text: progress(f"checking: {label}, {text}"))

    try:
        first = run(source, "source", {})[0]
        if not all(result.first_try for result in first.values()):  # A failed run may have changed the model.
            first |= run(source, "source with accepted inputs", first)[0]
        again, entry_points = run(source, "source again", first)
    except _LoadError as error:
        raise ValueError(
            f"{api}: TensorFlow cannot load the source '{source}': {error}. Copy the whole folder of the SavedModel, "
            "or skip the check with check=False (--no-check)."
        ) from error
    try:
        other = run(target, "target", first)[0]
    except _LoadError as error:
        raise _target_fails(api, "tf.saved_model.load", str(error)) from error
    return [
        _compare_results(api, name + tags, first[name], again.get(name), other.get(name), entry_points[name].is_random)
        for name in first
    ]


def _target_fails(api: str, name: str, error: str) -> RuntimeError:
    return RuntimeError(
        f"{api}: {name} fails for the new model, but not for the source: {error}. Nothing was written; please "
        "report it, with the model."
    )


class _LoadError(Exception):
    """The error of tf.saved_model.load, in one line."""


def _run_all(
    api: str,
    path: pathlib.Path,
    meta_graph: Any,
    inputs: Inputs,
    earlier: dict[str, _Result],
    progress: Callable[[str], None],
) -> tuple[dict[str, _Result], dict[str, EntryPoint]]:
    """Loads the model, so that its variables are the same each time, and runs all entry points.

    An entry point gets the inputs of its earlier result. If it failed then, it is skipped.
    """
    try:
        loaded = tf.saved_model.load(str(path), tags=list(meta_graph.meta_info_def.tags))
    except Exception as error:
        raise _LoadError(_in_one_line(error).rstrip(".")) from error
    entry_points = find_entry_points(loaded, meta_graph.object_graph_def)
    results = {}
    for i, (name, entry_point) in enumerate(entry_points.items()):
        if name in earlier and earlier[name].error:
            continue
        progress(f"{name} ({i + 1} of {len(entry_points)})")
        if name in earlier:
            results[name] = _run(entry_point, earlier[name].inputs)
        elif name in inputs:
            results[name] = _run_with(entry_point, inputs[name])
            if results[name].error and results[name].inputs is None:
                reason = results[name].error.rstrip(".")
                raise ValueError(
                    f"{api}: {name} of the source fails with the given inputs: {reason}. Pass inputs that the "
                    "signature takes."
                )
        else:
            results[name] = _try_sizes(entry_point)
    return results, entry_points


def _try_sizes(entry_point: EntryPoint) -> _Result:
    """Runs with made-up inputs, and tries several sizes for unknown dimensions until one succeeds."""
    if entry_point.function is None:
        return _Result({}, "it cannot be reached in the loaded model")
    errors: list[str] = []
    for size in _inputs.SIZES:
        try:
            inputs = _inputs.generate((entry_point.args, entry_point.kwargs), size)
        except (TypeError, ValueError) as error:
            errors.append(_in_one_line(error))
            continue
        result = _run(entry_point, inputs)
        if result.inputs is not None:
            return dataclasses.replace(result, first_try=not errors)
        errors.append(result.error)
    return _Result({}, f"it refuses inputs made from its input specs: {errors[0]}", first_try=False)


def _run_with(entry_point: EntryPoint, arguments: Mapping[str, Any]) -> _Result:
    """Runs with the user's keyword arguments, and made-up values for missing ones."""
    try:
        specs = entry_point.kwargs
        given = {name: tf.convert_to_tensor(x, specs[name].dtype) for name, x in arguments.items() if name in specs}
        kwargs = {**_inputs.generate(specs, 1), **given}
    except (TypeError, ValueError) as error:
        return _Result({}, _in_one_line(error))
    return _run(entry_point, (entry_point.args, kwargs))


def _run(entry_point: EntryPoint, inputs: Any) -> _Result:
    """Runs, and then restores the variables, so that no other run depends on this one."""
    args, kwargs = inputs
    before = [variable.read_value() for variable in entry_point.variables]
    try:
        outputs = entry_point.function(*args, **kwargs) if entry_point.function else None
    except Exception as error:  # A model can raise any exception. The report shows it.
        return _Result({}, _in_one_line(error))
    else:
        return _to_result(outputs, entry_point.variables, inputs)
    finally:
        for variable, value in zip(entry_point.variables, before, strict=True):
            variable.assign(value)


def _to_result(outputs: Any, variables: Sequence[tf.Variable], inputs: Any) -> _Result:
    try:
        values = _named_arrays(outputs)
        for variable in variables:
            values[f"variable {variable.name}"] = variable.numpy()
    except Exception as error:
        return _Result({}, f"its output cannot be compared: {_in_one_line(error)}", inputs)
    return _Result(values, inputs=inputs)


def _named_arrays(outputs: Any) -> dict[str, np.ndarray]:
    parts = outputs.items() if isinstance(outputs, Mapping) else [("", outputs)]
    leaves = [(name, tf.nest.flatten(part, expand_composites=True)) for name, part in parts]
    return {
        f"output {name or i}" if len(tensors) == 1 else f"output {name} {i}".replace("  ", " "): np.asarray(t)
        for name, tensors in leaves
        for i, t in enumerate(t.numpy() if tf.is_tensor(t) else t for t in tensors)
        if t is not None
    }


def _in_one_line(error: Exception) -> str:
    """The type and the first line of an error. If that line is noise, the last line that is not."""
    text = re.sub(r"\{\{function_node \S+?\}\} ", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    without_noise = [line for line in lines if not _NOISE.match(line)] or lines
    line = lines[0] if lines[0] == without_noise[0] else without_noise[-1]
    return f"{type(error).__name__}: {line}"


def _compare_results(
    api: str,
    name: str,
    first: _Result,
    again: _Result | None,
    other: _Result | None,
    is_random: Callable[[], bool],
) -> Comparison:
    if first.error:
        return Comparison(name, NOT_COMPARED, first.error)
    if again is None or again.error or _largest_difference(first.values, again.values)[1] > 1:
        return Comparison(name, NOT_COMPARED, _RANDOM)
    if other is None or other.error:
        raise _target_fails(api, name, other.error.rstrip(".") if other else "it does not exist")
    differing, difference = _largest_difference(first.values, other.values)
    if difference == 0:
        return Comparison(name, EQUAL)
    if difference <= 1:
        return Comparison(name, ROUNDING, "TensorFlow can fuse and order operations differently")
    if is_random():  # Two runs can agree by chance, for example with dropout of few elements.
        return Comparison(name, NOT_COMPARED, _RANDOM)
    raise RuntimeError(
        f"{api}: {name} returns a different {differing} in the new model. Nothing was written. Please report this, and "
        "attach the model."
    )


def _largest_difference(expected: dict[str, np.ndarray], actual: dict[str, np.ndarray]) -> tuple[str, float]:
    """The name of the arrays that differ most, and by how many times what rounding explains.

    0 means that they are equal, bit for bit.
    """
    if expected.keys() != actual.keys():
        return ", ".join(sorted(expected.keys() ^ actual.keys())), float("inf")
    differences = {name: _difference(expected[name], actual[name]) for name in expected}
    largest = max(differences, key=lambda name: differences[name], default="")
    return largest, differences.get(largest, 0.0)


def _difference(expected: np.ndarray, actual: np.ndarray) -> float:
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return float("inf")
    dtype = tf.as_dtype(expected.dtype)
    if not (dtype.is_floating or dtype.is_complex):
        return 0.0 if np.array_equal(expected, actual) else float("inf")
    rows = [
        np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8).reshape(array.size, array.itemsize)
        for array in (expected, actual)
    ]
    differ = ~((rows[0] == rows[1]).all(axis=1) | (np.isnan(expected) & np.isnan(actual)).ravel())
    if not differ.any():
        return 0.0
    double = np.complex128 if np.iscomplexobj(expected) else np.float64
    a, b = expected.astype(double).ravel(), actual.astype(double).ravel()
    if not (np.isfinite(a[differ]).all() and np.isfinite(b[differ]).all()):
        return float("inf")
    largest = np.max(np.abs(a[np.isfinite(a)]), initial=0.0)
    # A sum in another order can differ by more than the unit in the last place, but by less than its square root.
    rounding = largest * float(np.spacing(np.abs(np.ones([], expected.dtype)))) ** 0.75
    if rounding == 0.0:
        return float("inf")
    return max(float(np.max(np.abs(a - b)[differ])) / rounding, np.finfo(np.float64).tiny)
