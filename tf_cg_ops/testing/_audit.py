"""`audit`: every gradient of its own in a model, against TensorFlow's own gradient of the same computation."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, pytree, text, tf_internal
from tf_cg_ops._src.core.signature import bind, misfit, traced
from tf_cg_ops._src.core.types import Structure
from tf_cg_ops._src.graphs.graph_copy import Replace
from tf_cg_ops._src.keras import dispatch, keras_internal, registration
from tf_cg_ops._src.rewrite.traced_call import TracedCall
from tf_cg_ops.saved_model import _inputs

from ._audit_check import STATES, Computation, Findings, check, key
from ._audit_nonfinite import FirstNonfinite, Search, mask, of_sum
from ._audit_record import (
    API,
    NOT_SAVED,
    PASSING,
    Place,
    Recording,
    all_operations,
    dtype_behind,
    has_numbers,
    is_place,
    line_of,
    name_of,
    source_of,
    trace_gradient,
)
from ._audit_report import AuditedGradient, AuditReport, Verdict

# What changes the gradient on purpose.
_BY_DESIGN = {
    "straight_through": "a straight-through estimator",
    "layers.StraightThrough": "a straight-through estimator",
    "grad_pass_through": "the upstream gradient passes unchanged",
    "clip_gradient": "the gradient is clipped",
    "layers.ClipGradient": "the gradient is clipped",
    "override_gradients": "override_gradients chose this gradient",
    "saved_model.override": "saved_model.override chose this gradient",
}


@tf_internal.autograph_artifact
def audit(
    f: Callable[..., Structure],
    args: Sequence[Structure] | Mapping[str, Structure] | None = None,
    *,
    upstream: Structure = None,
    like: Mapping[str, Callable[..., Structure]] = {},
    intended: Collection[str] = (),
    progress: Callable[[str], None] | None = None,
) -> AuditReport:
    """Checks the custom gradients in a model, on the values of one real backward pass.

    Use it if training does not converge, or if you train a model with gradients that other people wrote.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> @cg.custom_gradient
    ... def log1pexp(x):
    ...     y = tf.maximum(x, 0.0) + tf.math.log1p(tf.exp(-tf.abs(x)))
    ...     return y, lambda dy: 2 * dy * tf.sigmoid(x)
    >>> report = cg.testing.audit(lambda x: tf.reduce_sum(log1pexp(x) ** 2), [tf.constant([0.5, -1.0])])
    >>> [(row.function, row.verdict, row.detail) for row in report.rows]
    [('log1pexp', 'differs', 'The ratio is 2 everywhere, so a factor is wrong.')]

    `f` is traced, and runs once with its gradient. The gradient `dx` of each place in its graph that this library or
    `tf.custom_gradient` made is compared with TensorFlow's own gradient of the ops inside, on the values of this run.
    Where they differ, numeric differentiation decides. Places in called functions, loops, conditionals and recomputed
    functions are found, too. Your model does not change: its variables keep their values.

    If the gradient of the run is not finite, `report.first_nonfinite` names the op, built-in or not, that first got
    finite numbers and returned others.

    Args:
      f: A function, a Keras model, a loaded SavedModel, or one of its functions, such as
        `loaded.signatures["serving_default"]`. For a training step, pass the function that computes the loss.
      args: A list or tuple of its arguments, or a dict of them by name; for a functional Keras model, its inputs. None
        for random ones that fit the signature of a SavedModel, or the inputs of a Keras model.
      upstream: The upstream gradient, in the structure of the value of `f`. By default 1 for one number, such as a
        loss, and otherwise random numbers of either sign.
      like: For functions with another gradient on purpose, a function of the same inputs whose gradient it should be,
        as in `check_gradient`. The keys are names of functions, or places such as "model.py:12", as the report shows
        them. A place counts before a name.
      intended: The names or places of functions that can have any gradient.
      progress: Called with a line of text now and then, such as `print`.

    Returns:
      An `AuditReport`, with a row for each function and verdict in the order of the backward pass. It prints as a
      table.

    Raises:
      TypeError: `f` cannot be called with `args`, or an option has the wrong type.
      ValueError: `args` does not name the inputs of a Keras model; a name in `like` or
        `intended` is not in the model; a function in `like` or `upstream` has another shape; or the value has no
        gradient.
      MemoryError: There is not enough memory.
      RuntimeError: You call it in a graph.

    TensorFlow has nothing like it. Each function in a test of its own is a job for `tf_cg_ops.testing.check_gradient`.
    """
    _check_arguments(f, args, like, intended)
    report_progress = progress or (lambda line: None)
    reported = time.monotonic()
    model, f = f, _function_of(f)  # The model keeps its variables alive.
    name = text.name_of(f)
    if args is None:
        args = _made_up(f, name)
        report_progress("args are random numbers that fit the signature, with 2 for each unknown dimension")
    else:
        args = _as_keras_takes(f, name, args)
    positional, keywords = ([], dict(args)) if isinstance(args, Mapping) else (list(args), {})
    positional, keywords = tf.nest.map_structure(_example_to_tensor, (positional, keywords))
    with _explained(name, f, positional, keywords):
        call = TracedCall(traced(API, f, "to find its custom gradients"), positional, keywords)
        total = sum(map(is_place, all_operations(call.graph.get_operations())))
        report_progress(f"{text.count(total, 'custom gradient')}")
        if not total and not any(map(tf_internal.is_trainable, call.graph.outputs)):
            return AuditReport(name, [])
        recording, tensors = Recording(), pytree.tensors_in((positional, keywords))
        run = functools.partial(_run, call.graph, tensors, functools.partial(_upstream, name, upstream))
        # The rules run again while they are checked, and may write variables, too.
        with _kept_variables(call.graph):
            results = run(recording.replace)
            recording.sort()
            _check_names(name, {*like, *intended}, recording.places)
            rows: list[AuditedGradient] = []
            computations: dict[Any, Computation] = {}
            for i, place in enumerate(recording.places):
                rows.append(_row(place, like, intended, computations))
                if time.monotonic() - reported > 5:
                    reported = time.monotonic()
                    report_progress(f"checked {i + 1} of {len(recording.places)}")
        first = None if _are_finite(call.graph, results) else _first_nonfinite(call, tensors, run, results)
    del model
    return AuditReport(name, _folded(rows), first)


def _are_finite(graph: Any, results: Sequence[tf.Tensor]) -> bool:
    """Whether the gradient of a run is finite, and its value too: parts of an array can be infinite on purpose."""
    count = len(graph.outputs)
    are_numbers = not any(y.ndim == 0 or np.any(np.isnan(y)) for y in _nonfinite(results[:count]))
    return are_numbers and not _nonfinite(results[count:])


def _nonfinite(tensors: Sequence[tf.Tensor]) -> list[np.ndarray]:
    # NumPy itself does not take a scalar Tensor of bfloat16.
    arrays = [np.asarray(tensor.numpy()) for tensor in tensors if has_numbers(tensor.dtype)]
    return [array for array in arrays if not np.all(np.isfinite(array))]


def _first_nonfinite(
    call: TracedCall,
    tensors: Sequence[tf.Tensor],
    run: Callable[..., Sequence[tf.Tensor]],
    results: Sequence[tf.Tensor],
) -> FirstNonfinite:
    """Runs the function again, and notes its values or gradients. The results are those of the first run."""
    graph = call.graph
    names = [(f"argument {i}", t, x) for i, (t, x) in enumerate(zip(call.inputs, tensors, strict=True))]
    variables = {id(variable.handle): f"the variable '{variable.name}'" for variable in call.variables}
    for outside, inside in graph.captures:
        names.append((variables.get(id(outside), f"the captured '{inside.op.name}'"), inside, _value_behind(outside)))
    given = [(name, t, array) for name, t, x in names if x is not None for array in _nonfinite([x])]

    def of_values(ends: Sequence[Any]) -> FirstNonfinite | None:
        search = Search("value")
        run(search.replace, is_differentiated=False)
        return search.first(ends, given)

    ends = [y for y, value in zip(graph.outputs, results, strict=False) if _nonfinite([value])]
    first = of_values(ends) if ends else None
    if first is not None:
        return first
    search = Search("gradient")
    run(search.replace)
    first = of_values(search.behind_gradient) if search.behind_gradient else None
    first = first or search.gradient or of_sum(_nonfinite(results)[-1])
    # If the op is repeated, as in the layers of a model, a mask of its line is mostly enough.
    helps = search.is_of_zero and any(_are_finite(graph, run(mask(only))) for only in (search.gradient, None))
    return dataclasses.replace(first, masking_helps=helps)


def _run(
    graph: Any, tensors: Sequence[tf.Tensor], upstream: Any, replace: Replace, is_differentiated: bool = True
) -> Sequence[tf.Tensor]:
    """The value of a graph, and its gradient. Its variables keep their values."""
    traced = trace_gradient(graph, tensors, upstream if is_differentiated else None, replace)
    with _kept_variables(graph):
        return tf_internal.call_trace(traced, *tensors)


def _check_arguments(f: Any, args: Any, like: Any, intended: Any) -> None:
    if not getattr(f, "signatures", None):
        noun = "a function, a model or a loaded SavedModel with signatures"
        misplaced_calls.check_function(API, "f", f, "Load a folder with tf.saved_model.load.", noun)
    if args is not None and not isinstance(args, (list, tuple, Mapping)):
        raise TypeError(
            f"{API}: args must be a list, tuple or dict of arguments, got {text.describe_type(args)}. Pass [x]."
        )
    if not isinstance(like, Mapping) or not all(isinstance(key, str) and callable(like[key]) for key in like):
        raise TypeError(
            f"{API}: like must be a dict from the name of a function, or its place, to a function with the gradient "
            f"that it should have, got {text.describe(like)}. If it can have any gradient, name it in intended."
        )
    if (
        isinstance(intended, str)
        or not isinstance(intended, Collection)
        or any(not isinstance(k, str) for k in intended)
    ):
        raise TypeError(
            f"{API}: intended must be a list of names of functions, or their places, got {text.describe(intended)}. "
            "Write for example intended=['spike']."
        )
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"{API} must be called in eager mode, got a call in a graph. Call it outside of tf.function."
        )


def _check_names(name: str, keys: set[str], places: Sequence[Place]) -> None:
    """Raises ValueError for a name or place that is not in the model."""
    unknown = keys.difference(*(_keys(place) for place in places))
    if unknown:
        known = sorted({name_of(place.op) for place in places})
        raise ValueError(
            f"{API}: {text.written('like and intended', '--intended')} must have names or places of functions with a "
            f"custom gradient in '{name}', got {text.quoted(sorted(unknown))}. These functions are there: "
            f"{text.quoted(known) or 'none'}."
        )


def _keys(place: Place) -> tuple[str, str]:
    """What can stand for a place in `like` and `intended`: where it is, as in the report, and its function."""
    return line_of(place.op) or place.op.name, name_of(place.op)


def _function_of(f: Any) -> Any:
    """The function of a loaded SavedModel that has signatures and cannot be called; others as they are."""
    return f if callable(f) else f.signatures.get("serving_default") or next(iter(f.signatures.values()))


def _made_up(f: Any, name: str) -> Any:
    """Random arguments for a function that knows its signature."""
    call = f if hasattr(f, "concrete_functions") else f.__call__  # A loaded object has its function there.
    traces = getattr(call, "concrete_functions", None) or [f]
    signature = getattr(traces[0], "structured_input_signature", None) or _signature_in_keras(f)
    if signature is None:
        raise TypeError(
            f"{API}: args must be a list of the arguments of '{name}', which has no signature, got None. Pass [x]."
        )
    positional, keywords = _inputs.generate(signature, _inputs.SIZES[0])
    return keywords or list(positional)


def _signature_in_keras(f: Any) -> Any:
    """The signature of a Keras model that knows its inputs; None for anything else."""
    package, structure = _inputs_in_keras(f)
    if not package:
        return None
    return (tf.nest.map_structure(registration.module_of(package).FunctionCall.type_spec_of, structure),), {}


def _inputs_in_keras(f: Any) -> tuple[str, Any]:
    """The package of a Keras model that knows its inputs, and their structure; no package for anything else."""
    inputs: Any = getattr(f, "inputs", None)  # A list, where `input` has the structure; not every Sequential has both.
    package = dispatch.package_of_keras_tensors(inputs or ())
    return package, getattr(f, "input", inputs[0]) if package else None


def _as_keras_takes(f: Any, name: str, args: Any) -> Any:
    """The arguments of `f`; for a Keras model that knows its inputs, all of them in its one argument."""
    package, structure = _inputs_in_keras(f)
    if not package or not keras_internal.has_keras_call(f):
        return args
    names = list(structure) if isinstance(structure, Mapping) else [tensor.name for tensor in f.inputs]
    if isinstance(args, Mapping):
        if set(args) == set(names):
            return [dict(args)] if tf.nest.is_nested(structure) else list(args.values())
        if not misfit(f.call, [], dict(args)):
            return args
    elif len(args) > len(names) and all(isinstance(x, (tf.Tensor, tf.Variable, np.ndarray)) for x in args):
        raise ValueError(f"{API}: args must have the inputs {names} of '{name}', got {text.count(len(args), 'entry')}.")
    elif not len(args) == len(names) > 1 or any(map(tf.nest.is_nested, args)):
        return args
    elif not isinstance(structure, Mapping):
        return [args]
    got = list(args) if isinstance(args, Mapping) else text.describe_type(args)
    raise ValueError(f"{API}: args must be a dict with the inputs {names} of '{name}', got {got}.")


@contextlib.contextmanager
def _explained(name: str, f: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[None]:
    """Raises TensorFlow's errors about memory, and errors about arguments that do not fit, in one sentence."""
    is_signature = hasattr(f, "structured_input_signature")  # It runs no Python code that could raise other errors.
    try:
        yield
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
        raise MemoryError(
            f"{API}: '{name}' needs more memory than there is. Pass arguments of a smaller batch."
        ) from error
    except TypeError as error:
        if not is_signature:
            bind(API, f.call if keras_internal.is_layer(f) else f, args, kwargs, "Pass all its arguments in args.")
            raise
        raise TypeError(
            f"{API}: '{name}' must get arguments that fit its signature {f.structured_input_signature[1]}, got "
            f"{text.in_one_line(error)}. Pass a dict of its arguments."
        ) from error
    except AssertionError as error:
        if not is_signature:
            raise
        raise ValueError(
            f"{API}: the model of '{name}' must stay in memory. Assign tf.saved_model.load(...) to a variable first."
        ) from error


def _example_to_tensor(leaf: Any) -> Any:
    is_number = isinstance(leaf, (float, complex, np.ndarray, np.inexact))
    return tf.convert_to_tensor(leaf) if is_number else leaf


@contextlib.contextmanager
def _kept_variables(graph: Any) -> Iterator[None]:
    """Gives the variables that the graph reads or writes their values back."""
    values = [(outside, _value_behind(outside)) for outside, _ in graph.captures if outside.dtype == tf.resource]
    try:
        yield
    finally:
        for handle, value in values:
            if value is not None:
                tf.raw_ops.AssignVariableOp(resource=handle, value=tf.identity(value))


def _value_behind(captured: Any) -> Any:
    """A captured tensor, or the value of a captured variable; None for others, such as a hash table."""
    if captured.dtype != tf.resource:
        return None if captured.dtype == tf.variant else captured
    dtype = dtype_behind(captured)
    return dtype and tf.raw_ops.ReadVariableOp(resource=captured, dtype=dtype)


def _upstream(name: str, given: Any, outputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The upstream gradients of the outputs that have gradients."""
    ys = [y for y in outputs if tf_internal.is_trainable(y)]
    if not ys:
        dtypes = ", ".join(sorted({y.dtype.name for y in outputs}))
        raise ValueError(
            f"{API}: '{name}' must return floating-point or complex numbers, which have gradients, got {dtypes}."
        )
    if given is not None:
        leaves = [leaf if leaf is None else tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(given)]
        got, expected = [None if leaf is None else leaf.shape for leaf in leaves], [y.shape for y in outputs]
        fits = len(got) == len(expected) and all(
            g is None or g.is_compatible_with(e) for g, e in zip(got, expected, strict=True)
        )
        if not fits:
            raise ValueError(
                f"{API}: upstream must have the shapes of the value, {[s.as_list() for s in expected]}, got "
                f"{[s if s is None else s.as_list() for s in got]}."
            )
        pairs = [(dy, y) for dy, y in zip(leaves, outputs, strict=True) if tf_internal.is_trainable(y)]
        return [tf.zeros_like(y) if dy is None else tf.cast(dy, y.dtype) for dy, y in pairs]
    if len(ys) == 1 and ys[0].shape.rank == 0:
        return [tf.ones_like(ys[0])]
    draws = [tf.random.stateless_uniform(tf.shape(y), [1, i], -1.0) for i, y in enumerate(ys)]
    return [tf.cast(x + tf.sign(x) / 2, y.dtype) for x, y in zip(draws, ys, strict=True)]


def _row(
    place: Place,
    like: Mapping[str, Any],
    intended: Collection[str],
    computations: dict[Any, Computation],
) -> AuditedGradient:
    name, declared = name_of(place.op), next((k for k in _keys(place) if k in like or k in intended), "")
    row = AuditedGradient(
        function=name,
        made_by=place.api,
        node=place.op.name,
        line=line_of(place.op),
        input_shapes=_shapes(place.inputs),
        output_shapes=_shapes(place.results),
        runs=place.count,
    )
    if not place.runs:
        verdict: Verdict = "differs" if place.reason not in ("", NOT_SAVED) and not place.new_op else "not checked"
        return dataclasses.replace(row, verdict=verdict, detail=place.reason or "no gradient arrives here")
    found = []
    for run in place.runs:
        known = name, declared, key(place, run) or place.op.name
        computation = computations.setdefault(known, Computation(place, declared, like.get(declared)))
        found.append(check(place, run, computation))
    worst = max(found, key=lambda each: STATES.index(each.state))
    verdict, detail = _verdict(place, declared, like, worst)
    return dataclasses.replace(
        row,
        verdict=verdict,
        detail=" ".join(filter(None, [detail, *worst.remarks])),
        error=max(each.error for each in found),
        **found[-1].norms,
    )


def _verdict(place: Place, declared: str, like: Mapping[str, Any], found: Findings) -> tuple[Verdict, str]:
    if place.api in PASSING:
        return "by design", place.reason
    if found.state == "right":
        return "right", ""
    if declared and declared not in like:
        return "by design", text.written("intended= says so", "--intended says so")
    if not declared:
        design = _BY_DESIGN.get(place.api)
        if place.api == "embed_gradient" and {*map(source_of, place.results)} <= {*map(source_of, place.inputs)}:
            design = "the gradient is scaled or reversed"
        if design:
            return "by design", design
    if found.state == "unknown":
        return "not checked", found.detail
    # The rest of a hint is advice for check_gradient.
    detail = found.detail.partition(" If ")[0]
    declare = text.written("like= or intended=", "--intended")
    return (
        "differs",
        f"{detail} Declare an intended gradient with {declare}." if " If " in found.detail else detail,
    )


def _folded(rows: Sequence[AuditedGradient]) -> list[AuditedGradient]:
    """One row for the places of a function that have one verdict: the worst of them, with their number."""
    folded: dict[Any, list[AuditedGradient]] = {}
    for row in rows:
        is_finite = math.isfinite(row.upstream_norm)
        key = row.function, row.made_by, row.line or row.node, row.verdict, is_finite
        folded.setdefault(key, []).append(row)
    return [dataclasses.replace(max(group, key=lambda row: row.error), places=len(group)) for group in folded.values()]


def _shapes(tensors: Sequence[Any]) -> tuple[tuple[int | None, ...] | None, ...]:
    return tuple(None if t.shape.rank is None else tuple(t.shape.as_list()) for t in tensors)
