"""`compare`: runs two SavedModels on the same inputs, and compares their values and gradients."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, text, tf_internal
from tf_cg_ops._src.core.types import TensorLike

from . import _inputs
from ._folder import read_saved_model, to_path
from ._graphs import nodes_of, outside_of_functions, raised_as_value_error, reason_of

_API = "saved_model.compare"
VALUES, GRADIENTS = "values", "gradients"
EQUAL, ROUNDING, DIFFERENT, NOT_COMPARED = "equal, bit for bit", "equal up to rounding", "different", "not compared"
FLOAT_TENSORS, _NAMED = "float tensors", 5  # And how many of them a line names.
_MISSING = "does not have it"
# By function and what it is: the arrays by name, or why there are none.
Results: TypeAlias = dict[tuple[str, str], dict[str, np.ndarray] | str]


@dataclass(frozen=True)
class Comparison:
    """The values or the gradients of a signature or function in two SavedModels, or an output in a LiteRT file.

    Attributes:
      name: The signature; for a function, the attributes that lead to it, such as ".encoder.__call__".
      what: "values", of the outputs and of the variables afterwards, or "gradients". For a LiteRT file, "output" with
        its name, "float tensors", or for a training step the "weight" that differs most afterwards.
      verdict: "equal, bit for bit", "equal up to rounding" (for a quantized output, within one step), "different" or
        "not compared".
      difference: The largest difference, divided by the largest element in the first model; None without numbers.
      detail: What differs most, or why there are no numbers.
      steps: The largest difference in steps of the output's quantizer; None for an output that is not quantized.
      mean_steps: The average of the differences in steps.
      within_one_step: The share of elements that differ by at most one step.
      noise: The root mean square of the differences, divided by that of rounding to steps, `step / sqrt(12)`.
      float_tensors: The names of the tensors that LiteRT computes with as floating-point numbers, besides inputs and
        outputs.
    """

    name: str
    what: str
    verdict: str
    difference: float | None = None
    detail: str = ""
    steps: float | None = None
    mean_steps: float | None = None
    within_one_step: float | None = None
    noise: float | None = None
    float_tensors: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.steps is not None:
            return (
                f"{self.what} of {self.name}: {self.verdict} (at most {self.steps:.3g} steps, {self.mean_steps:.2g} on "
                f"average, {100 * (self.within_one_step or 0.0):.4g} % within one; {self.noise:.2g} times the noise of "
                "rounding)"
            )
        if self.what == FLOAT_TENSORS:
            names = ", ".join([*self.float_tensors[:_NAMED], *["..."][: len(self.float_tensors) - _NAMED]])
            return f"{self.what} of {self.name}: {len(self.float_tensors) or 'none'}{names and f' ({names})'}"
        by = f" by {self.difference:.2g} of the largest element" if self.difference else ""
        return f"{self.what} of {self.name}: {self.verdict}{by}{self.detail and f' ({self.detail})'}"


@tf_internal.autograph_artifact
@misplaced_calls.explains(_API)
def compare(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    inputs: Mapping[str, Mapping[str, TensorLike]] | None = None,
) -> list[Comparison]:
    """Compares the values and gradients of two SavedModels, for all signatures and the functions of all objects.

    Use it after any change to a SavedModel, or to see how far a LiteRT (TensorFlow Lite) file is from it.

    >>> import tempfile
    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> model = tf.Module()
    >>> model.f = tf.function(lambda x: -tf.nn.relu(x), input_signature=[tf.TensorSpec([None])])
    >>> folder = tempfile.mkdtemp()
    >>> tf.saved_model.save(model, folder + "/model", signatures={})
    >>> report = cg.saved_model.override(folder + "/model", folder + "/new", {"Neg": lambda op, dy: -0.5 * dy})
    >>> for comparison in cg.saved_model.compare(folder + "/model", folder + "/new"):
    ...     print(comparison)
    values of .f: equal, bit for bit
    gradients of .f: different by 0.5 of the largest element (input 0)

    Both models get the same inputs: yours, or small random ones that fit the input specs. Gradients are for a random
    upstream gradient, and are left out while you trace a function. If something cannot be compared, the result says
    why: a model refuses its inputs, a gradient is missing, or results change each time or are not values. Functions
    that run while a model is loaded, for example to fill a table, are only compared through what uses the table.

    If `b` is a LiteRT file, the outputs of each of its signatures are compared with those of the same signature, in
    steps of their quantizers. Pass inputs from your data, because quantizers are made for those. Numbers go into and
    come out of the comparison as floating-point numbers, also where LiteRT takes and returns integers.

    Args:
      a: The folder of a SavedModel.
      b: The folder of another one, or a LiteRT file.
      inputs: A dict from signatures to dicts from arguments to Tensors, or to what converts to the dtypes of the
        signature. Missing arguments are made up. If there are several meta graphs, each takes the signatures it has.

    Returns:
      A list of Comparison. For a LiteRT file, there is one for each output of a signature, and one that names the
      tensors that stayed float.

    Raises:
      FileNotFoundError: A folder is not a SavedModel.
      NotADirectoryError: A path is a file, and `b` is no LiteRT file.
      TypeError: An argument has the wrong type.
      ValueError: A model cannot be read or loaded; `inputs` has a signature or an argument that `a` does not have, or a
        value of another shape or kind; a LiteRT file has no signature.
    """
    paths = to_path(_API, "a", a), to_path(_API, "b", b)
    inputs = {} if inputs is None else inputs
    if not (isinstance(inputs, Mapping) and all(isinstance(given, Mapping) for given in inputs.values())):
        raise TypeError(
            f"{_API}: inputs must be a dict of dicts, {{signature: {{argument: value}}}}, got {text.describe(inputs)}."
        )
    from . import _compare_lite  # It needs this module.

    if _compare_lite.is_lite_model(paths[0]):
        raise ValueError(f"{_API}: a must be a SavedModel, got the LiteRT file '{paths[0]}'. Pass the file as b.")
    is_lite = _compare_lite.is_lite_model(paths[1])
    with outside_of_functions() as tapes_record:
        meta_graphs, *_ = (read_saved_model(_API, path).meta_graphs for path in paths[: 1 if is_lite else 2])
        signatures = [signature for meta_graph in meta_graphs for signature in meta_graph.signature_def.items()]
        known = {f"{name}/{argument}" for name, signature in signatures for argument in signature.inputs}
        unknown = {f"{name}/{argument}" for name, given in inputs.items() for argument in given or [""]} - known
        if unknown:
            raise ValueError(
                f"{_API}: inputs must be for SIGNATURE/ARGUMENT in {text.quoted(sorted(known)) or 'no signature'}, got "
                f"{text.quoted(sorted(unknown))}. Name signatures and their arguments as the first model does."
            )
        for name, signature in signatures:
            dense = {key: x for key, x in signature.inputs.items() if x.name}
            specs = {key: tf.TensorSpec(tf.TensorShape(x.tensor_shape), x.dtype) for key, x in dense.items()}
            _inputs.to_tensors(_API, name, inputs.get(name, {}), specs)
        if is_lite:
            return _compare_lite.compare_with_lite(_API, *paths, inputs)
        first, second = (run_model(_API, path, meta_graphs, inputs, gradients=tapes_record) for path in paths)
        return compare_results(
            first, second, lambda: run_model(_API, paths[0], meta_graphs, inputs, gradients=tapes_record)
        )


def compare_results(first: Results, second: Results, run_first_again: Callable[[], Results]) -> list[Comparison]:
    """Compares the results of two models. If some differ, the first model must have the same results again."""
    found: list[Comparison] = []
    for key in first | second:
        results = first.get(key, _MISSING), second.get(key, _MISSING)
        if key[1] == VALUES or (any(results) and _MISSING not in results):
            found.append(_compared(*key, *results))
    again = run_first_again() if any(each.verdict == DIFFERENT for each in found) else {}
    for i, each in enumerate(found):
        key = each.name, each.what
        if each.verdict == DIFFERENT and _compared(*key, first[key], again[key]).verdict not in (EQUAL, ROUNDING):
            found[i] = Comparison(*key, NOT_COMPARED, None, "the first model gives different results each time")
    return found


def run_model(api: str, path: pathlib.Path, meta_graphs: Any, inputs: Mapping[str, Any], *, gradients: bool) -> Results:
    """The values of all functions for each of these meta graphs, and perhaps the gradients."""
    results: Results = {}
    for meta_graph in meta_graphs:
        tags = list(meta_graph.meta_info_def.tags) if len(meta_graphs) > 1 else None
        with raised_as_value_error(api, path, "load"):
            loaded = tf.saved_model.load(str(path), tags)
            functions = list(_functions(loaded))
        for name, function in functions:
            key, own = name + (f" of {', '.join(tags)}" if tags else ""), meta_graph.signature_def.get(name)
            given = {argument: x for argument, x in inputs.get(name, {}).items() if own and argument in own.inputs}
            for size in _inputs.SIZES:
                results[key, VALUES] = run_function(function, given, size, VALUES)
                if not isinstance(results[key, VALUES], str):
                    results |= {(key, GRADIENTS): run_function(function, given, size, GRADIENTS)} if gradients else {}
                    break
    return results


def _functions(loaded: Any) -> Iterator[tuple[str, Any]]:
    """The signatures, and each trace of the functions of all objects."""
    yield from loaded.signatures.items()
    view = tf.train.TrackableView(loaded)
    found, seen = [("", loaded)], {id(loaded), id(loaded.signatures)}
    for path, each in found:  # It grows, so the path to an object is the shortest one.
        one = [each] if isinstance(each, tf.types.experimental.ConcreteFunction) else []
        traces = each.concrete_functions if isinstance(each, tf.types.experimental.PolymorphicFunction) else one
        yield from ((f"{path} ({i + 1})" if i else path, trace) for i, trace in enumerate(traces))
        for name, child in sorted(view.children(each).items()):
            # The functions of resources run while a model is loaded.
            if id(child) not in seen and not isinstance(child, tf.saved_model.experimental.TrackableResource):
                seen.add(id(child))
                found.append((f"{path}.{name}", child))


def run_function(
    function: Any, given: Mapping[str, Any], size: int, what: str, then: Callable[[], Mapping[str, Any]] = dict
) -> dict[str, np.ndarray] | str:
    """The arrays of a call, or why there are none. Variables get their values back, so that no run changes another.

    `then` is called before that, and returns more Tensors.
    """
    nodes = nodes_of(function.graph.as_graph_def())
    if any("seed2" in node.attr and not (node.attr["seed"].i or node.attr["seed2"].i) for node in nodes):
        return "draws random numbers without a seed"  # With few elements, two runs can agree by chance.
    unknown = _inputs.unknown(function.structured_input_signature)
    if unknown:
        return f"takes an input of type {unknown[0]}, and made-up inputs are only Tensors"
    before = [variable.read_value() for variable in function.variables]
    try:
        _, specs = function.structured_input_signature
        if other := given.keys() - specs.keys():
            return f"takes {text.quoted(sorted(specs))}, not {text.quoted(sorted(other))}"
        args, kwargs = _inputs.generate(function.structured_input_signature, size)
        kwargs |= {name: tf.convert_to_tensor(x, specs[name].dtype) for name, x in given.items()}
        if what == VALUES:
            tensors = (
                _named("output", function(*args, **kwargs)) | _named("variable", function.variables) | dict(then())
            )
        else:
            tensors = _gradients(function, args, kwargs)
        return {name: np.asarray(tensor.numpy()) for name, tensor in tensors.items()}
    except Exception as error:  # A model can raise any exception.
        return f"raises {type(error).__name__}: {reason_of(error)}"
    finally:
        for variable, value in zip(function.variables, before, strict=True):
            variable.assign(value)


def _gradients(function: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    sources = _named("input", dict(enumerate(args)) | kwargs, inexact=True)
    with tf.GradientTape() as tape:
        tape.watch(list(sources.values()))
        outputs = list(_named("output", function(*args, **kwargs), inexact=True).values())
    sources |= _named("variable", function.trainable_variables, inexact=True)
    dys = _inputs.generate([tf.TensorSpec(y.shape, y.dtype) for y in outputs], 1)
    gradients = tape.gradient(outputs, list(sources.values()), dys) if outputs else []
    found = zip(sources, gradients, strict=False)
    return {name: tf.convert_to_tensor(gradient) for name, gradient in found if gradient is not None}


def _named(label: str, structure: Any, inexact: bool = False) -> dict[str, Any]:
    """The tensors of a structure, named by its keys or by their positions."""
    parts = structure if isinstance(structure, Mapping) else dict(enumerate(tf.nest.flatten(structure)))
    return {
        f"{label} {name}" + (f" ({i + 1})" if i else ""): x
        for name, part in parts.items()
        for i, x in enumerate(tf.nest.flatten(part, expand_composites=True))
        if tf.is_tensor(x) and (not inexact or x.dtype.is_floating or x.dtype.is_complex)
    }


def _compared(name: str, what: str, first: Any, second: Any) -> Comparison:
    if isinstance(first, str):
        return Comparison(name, what, NOT_COMPARED, None, f"the first model {first}")
    if isinstance(second, str):
        return Comparison(name, what, DIFFERENT if what == VALUES else NOT_COMPARED, None, f"the second model {second}")
    if first.keys() != second.keys():
        names = (text.quoted(sorted(results.keys())) or "none" for results in (first, second))
        return Comparison(name, what, DIFFERENT, None, "the first model has {}, the second model {}".format(*names))
    found = [(*_difference(first.get(key), second.get(key)), key) for key in first | second]
    order = (EQUAL, ROUNDING, DIFFERENT)
    verdict, difference, key = max(found, key=lambda each: (order.index(each[0]), each[1]), default=(EQUAL, 0.0, ""))
    kinds = [f"{x[key].dtype} {list(x[key].shape)}" for x in (first, second) if key]
    if len(set(kinds)) > 1:
        return Comparison(name, what, verdict, None, f"{key} is {' in the first model, '.join(kinds)} in the second")
    return Comparison(name, what, verdict, difference, "" if verdict == EQUAL else key)


def _difference(a: np.ndarray | None, b: np.ndarray | None) -> tuple[str, float]:
    """The verdict, and the largest difference divided by the largest element."""
    if a is None or b is None or a.dtype != b.dtype or a.shape != b.shape:
        return DIFFERENT, np.inf
    if a.dtype == object or a.tobytes() == b.tobytes():
        return (EQUAL, 0.0) if np.array_equal(a, b) or a.dtype != object else (DIFFERENT, np.inf)
    # A sum in another order can differ by more than the unit in the last place, but by less than its square root.
    rounding = -1.0 if a.dtype.kind in "biu" else float(np.spacing(np.abs(np.ones([], a.dtype)))) ** 0.75
    difference = relative_difference(a, b)
    return ROUNDING if difference <= rounding else DIFFERENT, difference


def relative_difference(a: np.ndarray, b: np.ndarray, least: float = 0.0, rounding: float = 0.0) -> float:
    """The largest difference above the rounding, divided by the largest element of `a`, or by the least size."""
    a, b = a.astype(np.complex128), b.astype(np.complex128)
    with np.errstate(invalid="ignore"):  # Of infinities.
        gap = np.max(np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b)), initial=0.0)
    gap, size = max(gap - rounding, 0.0) if np.isfinite(gap) else np.inf, max(largest(a), least)
    return float(gap / size) if size else float(np.inf if gap else 0.0)


def largest(x: np.ndarray) -> float:
    """The size of the largest element that is finite."""
    return float(np.max(np.abs(x), initial=0.0, where=np.isfinite(x)))
