"""`audit`: every gradient of its own in a model, against numeric differentiation."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import pytree, text, tf_internal
from tf_cg_ops._src.core.types import Structure
from tf_cg_ops._src.rewrite.traced_call import TracedCall
from tf_cg_ops.saved_model import _inputs

from ._audit_check import Findings, InputCheck, check
from ._audit_record import API, PASSING, RAISES, Place, Recording, custom_places, is_place, source_of
from ._audit_report import AuditedGradient, AuditReport, Verdict
from ._report import in_one_line

# What changes the gradient on purpose.
_BY_DESIGN = {
    "straight_through": "a straight-through estimator",
    "layers.StraightThrough": "a straight-through estimator",
    "grad_pass_through": "the upstream gradient passes unchanged",
    "clip_gradient": "the gradient is clipped",
    "layers.GradientClip": "the gradient is clipped",
    "override_gradients": "override_gradients chose this gradient",
    "saved_model.override": "saved_model.override chose this gradient",
}
# Files whose lines are not the user's.
_FOREIGN = re.compile(r"^<|[/\\\\](tf_cg_ops|site-packages)[/\\\\]")
# A solver stops at its tolerance, which numeric differentiation sees. So errors may be this many times the tolerance.
_SOLVER_ERROR = 1000
_SOLVERS = frozenset(["implicit_root", "implicit_fixed_point", "implicit_minimum"])


@tf_internal.autograph_artifact
def audit(
    f: Callable[..., Structure],
    args: Sequence[Structure] | Mapping[str, Structure] | None = None,
    *,
    upstream: Structure = None,
    like: Mapping[str, Callable[..., Structure] | None] = {},
    max_elements: int = 64,
    progress: Callable[[str], None] | None = None,
) -> AuditReport:
    """Checks the custom gradients in a model, at the numbers of one real backward pass.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> @cg.custom_gradient
    ... def log1pexp(x):
    ...     e = tf.exp(x)
    ...     return tf.math.log1p(e), lambda dy: 2 * dy * e / (1 + e)
    >>> report = cg.testing.audit(lambda x: tf.reduce_sum(log1pexp(x) ** 2), [tf.constant([0.5, -1.0])])
    >>> [(row.function, row.verdict, row.detail) for row in report.rows]
    [('log1pexp', 'differs', 'The ratio is 2 everywhere, so a factor is wrong.')]

    `f` is traced, and runs once with its gradient. Each place in its graph with a gradient of its own (from this
    library, or from `tf.custom_gradient`) gets a row: the numbers that arrived there in this run, and whether its
    gradient is the vector-Jacobian product of what it computes. Places in called functions, loops, conditionals and
    recomputed functions are found, too. Your model does not change: its variables keep their values.

    Args:
      f: A function, a Keras model, a loaded SavedModel, or one of its functions, such as
        `loaded.signatures["serving_default"]`. For a training step, pass the function that computes the loss.
      args: A list or tuple of its arguments, or a dict of them by name. None for random ones that fit the signature of
        a SavedModel.
      upstream: The upstream gradient, in the structure of the value of `f`. By default 1 for one number, such as a
        loss, and otherwise random numbers of either sign.
      like: What you intend, by the name of the function with the gradient: a function of the same inputs that has the
        intended gradient, or None if any gradient is intended.
      max_elements: How many elements of an input are moved one by one, if that is needed: where the gradient differs,
        or where a random direction of all elements tells nothing, as at a kink.
      progress: Called with a line of text now and then, such as `print`.

    Returns:
      An `AuditReport`, with a row for each place in the order of the backward pass. It prints as a table.

    Raises:
      TypeError: `f` cannot be called, or not with `args`; `args` is not a list, a tuple or a dict; `like` is not such a
        dict; `max_elements` is not an int.
      ValueError: `max_elements` is not positive, a name in `like` is not in the model, or its function returns another
        shape; `upstream` does not fit the value of `f`; or the model has custom gradients and its value has none.
      MemoryError: The model needs more memory than there is.
      RuntimeError: You call it in a graph.
    """
    _check_arguments(f, args, like, max_elements)
    report_progress = progress or (lambda line: None)
    reported = time.monotonic()
    model, f = f, _function_of(f)  # The model keeps its variables alive.
    name = text.name_of(f)
    if name in ("_UserObject", "_WrapperFunction", "restored_function_body"):
        name = "loaded model"  # The names are TensorFlow's.
    if args is None:
        args = _made_up(f, name)
        report_progress("args are random numbers that fit the signature, with 2 for each unknown dimension")
    positional, keywords = ([], dict(args)) if isinstance(args, Mapping) else (list(args), {})
    positional, keywords = tf.nest.map_structure(_to_tensor, (positional, keywords))
    with _explained(name):
        call = TracedCall(f, positional, keywords)
        total = sum(1 for _ in custom_places(call.graph))
        report_progress(f"{text.count(total, 'custom gradient')}")
        if not total:
            return AuditReport(name, [])
        recording = Recording(call.graph)
        tensors = pytree.tensors_in((positional, keywords))
        traced = recording.trace(tensors, functools.partial(_upstream, name, upstream))
        # The rules run again while they are checked, and may write variables, too.
        with _kept_variables(traced.graph):
            recording.run(traced, tensors)
            _check_names(name, like, recording.places)
            rows: list[AuditedGradient] = []
            for i, place in enumerate(recording.places):
                rows.append(_row(place, like, max_elements))
                if time.monotonic() - reported > 5:
                    reported = time.monotonic()
                    report_progress(f"checked {i + 1} of {len(recording.places)}")
    del model
    return AuditReport(name, _with_first_nonfinite(rows))


def _check_arguments(f: Any, args: Any, like: Any, max_elements: Any) -> None:
    if not callable(f) and not getattr(f, "signatures", None):
        raise TypeError(
            f"{API}: f must be a function, a model or a loaded SavedModel with signatures, got {text.describe_type(f)}."
        )
    if args is not None and not isinstance(args, (list, tuple, Mapping)):
        raise TypeError(
            f"{API}: args must be a list, tuple or dict of arguments, got {text.describe_type(args)}. Pass [x]."
        )
    if not isinstance(like, Mapping) or any(not isinstance(name, str) for name in like):
        raise TypeError(
            f"{API}: like must be a dict from the name of a function to a function or None, got {text.describe(like)}."
        )
    if any(function is not None and not callable(function) for function in like.values()):
        raise TypeError(f"{API}: the values of like must be functions or None, got {text.describe(like)}.")
    if not isinstance(max_elements, (int, np.integer)) or isinstance(max_elements, bool):
        raise TypeError(f"{API}: max_elements must be an int, got {text.describe(max_elements)}.")
    if max_elements < 1:
        raise ValueError(f"{API}: max_elements must be positive, got {max_elements}.")
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"{API}: must be called in eager mode, got a call in a graph. Call it outside of tf.function."
        )


def _check_names(name: str, like: Mapping[str, Any], places: Sequence[Place]) -> None:
    """Raises ValueError for a name in `like` that is not in the model."""
    unknown = set(like) - {_name(place) for place in places}
    if unknown:
        known = sorted({_name(place) for place in places})
        raise ValueError(
            f"{API}: an intended gradient must belong to a function in '{name}' that has a custom gradient, got "
            f"{text.quoted(sorted(unknown))}. These are there: {text.quoted(known)}."
        )


def _function_of(f: Any) -> Any:
    """The function of a loaded SavedModel that has signatures and cannot be called; others as they are."""
    return f if callable(f) else f.signatures.get("serving_default") or next(iter(f.signatures.values()))


def _made_up(f: Any, name: str) -> Any:
    """Random arguments for a function that knows its signature."""
    call = f if hasattr(f, "concrete_functions") else f.__call__  # A loaded object has its function there.
    traces = getattr(call, "concrete_functions", None) or [f]
    signature = getattr(traces[0], "structured_input_signature", None)
    if signature is None:
        raise TypeError(f"{API}: args must be a list of the arguments of '{name}', which has no signature, got None.")
    positional, keywords = _inputs.generate(signature, _inputs.SIZES[0])
    return keywords or list(positional)


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Raises TensorFlow's errors about arguments and memory in one sentence."""
    try:
        yield
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
        raise MemoryError(
            f"{API}: '{name}' needs more memory than there is. Pass arguments of a smaller batch."
        ) from error
    except AssertionError as error:
        if "variables which have been deleted" not in str(error):
            raise
        raise ValueError(
            f"{API}: the model of '{name}' must stay in memory. Assign tf.saved_model.load(...) to a variable first."
        ) from error
    except TypeError as error:
        if "Binding inputs to tf.function failed" not in str(error):
            raise
        reason = str(error).partition("`")[2].partition("`")[0]
        raise TypeError(f"{API}: '{name}' must get arguments that fit its signature: {reason}.") from error


def _to_tensor(leaf: Any) -> Any:
    is_number = isinstance(leaf, (float, complex, np.ndarray, np.inexact))
    return tf.convert_to_tensor(leaf) if is_number else leaf


@contextlib.contextmanager
def _kept_variables(graph: Any) -> Iterator[None]:
    """Gives the variables that the graph reads or writes their values back."""
    values = []
    for handle, inside in graph.captures:
        with contextlib.suppress(ValueError):  # Such as a hash table.
            if inside.dtype == tf.resource:
                dtype = tf_internal.shape_and_dtype(handle)[1]
                values.append((handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)))
    try:
        yield
    finally:
        for handle, value in values:
            tf.raw_ops.AssignVariableOp(resource=handle, value=tf.identity(value))


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
    signs = [tf.random.stateless_uniform(tf.shape(y), [1, i], 0, 2, tf.int32) * 2 - 1 for i, y in enumerate(ys)]
    sizes = [tf.random.stateless_uniform(tf.shape(y), [2, i], 0.5, 1.5) for i, y in enumerate(ys)]
    return [tf.cast(size * tf.cast(sign, size.dtype), y.dtype) for size, sign, y in zip(sizes, signs, ys, strict=True)]


def _name(place: Place) -> str:
    attribute = place.op.node_def.attr
    if place.op.type == "CustomGradientRule":
        name = tf.compat.as_str(attribute["function_name"].s)
        is_own = name == "identity" and place.api != "custom_gradient"  # The function of clip_gradient, for example.
        return place.api if is_own else name
    if place.kind == "tf.custom_gradient":
        return tf_internal.name_of_python_gradient(place.op) or place.op.name
    scope = place.op.name.split("/")
    return scope[-2] if len(scope) > 1 else scope[-1]  # The scope is the layer, or the name that the user gave.


def _row(place: Place, like: Mapping[str, Any], max_elements: int) -> AuditedGradient:
    name = _name(place)
    row = AuditedGradient(
        function=name,
        made_by=place.api,
        node=place.op.name,
        line=_line(place.op),
        input_shapes=_shapes(place.inputs),
        output_shapes=_shapes(place.results),
        runs=place.count,
    )
    if not place.runs:
        verdict: Verdict = "differs" if place.reason.startswith(RAISES) else "not checked"
        return dataclasses.replace(row, verdict=verdict, detail=place.reason or "no gradient arrives here")
    try:
        found = [check(name, place, run, like.get(name), max_elements) for run in place.runs]
    except (tf.errors.OpError, NotImplementedError, TypeError, ValueError) as error:
        if str(error).startswith(f"{API}: "):
            raise
        # For example, an op that has no double precision on this device.
        return dataclasses.replace(row, detail=f"computing it again in float64 fails: {in_one_line(error)}")
    verdict, detail = _verdict(place, name, like, found)
    inputs, last = [one for findings in found for one in findings.inputs], found[-1]
    return dataclasses.replace(
        row,
        verdict=verdict,
        detail=detail,
        value_norm=last.value_norm,
        upstream_norm=last.upstream_norm,
        gradient_norm=last.gradient_norm,
        error=max((one.error for one in inputs), default=0.0),
        checked=sum(one.checked for one in inputs),
        together=sum(one.together for one in inputs),
        size=sum(one.size for one in inputs),
    )


def _verdict(place: Place, name: str, like: Mapping[str, Any], found: Sequence[Findings]) -> tuple[Verdict, str]:
    inputs = [one for findings in found for one in findings.inputs]
    by_state = {state: [one for one in inputs if one.state == state] for state in ("wrong", "own", "uncertain")}
    missing = next((name for findings in found for name in findings.without_gradient), "")
    if place.api in PASSING:
        return "by design", place.reason
    if any(math.isfinite(each.upstream_norm) and not math.isfinite(each.gradient_norm) for each in found):
        is_finite = math.isfinite(found[-1].value_norm)
        return ("differs", "The gradient is not finite.") if is_finite else ("not checked", "its value is not finite")
    reason = place.reason or next((each.reason for each in found if each.reason), "")
    if reason:
        return "not checked", reason
    if not inputs:
        reason = "its rule returns no gradient" if missing else "no input has a gradient"
        return "not checked", "its value is not finite" if math.isnan(found[-1].value_norm) else reason
    if by_state["wrong"]:
        return _wrong_verdict(place, name, like, by_state["wrong"])
    if by_state["own"] and any(op.type == "StopGradient" for op in place.inside):
        return "by design", "a part of its value is constant by tf.stop_gradient"
    if by_state["own"]:
        return "not checked", (
            "it equals TensorFlow's own gradient of these operations, but not numeric differentiation"
        )
    if by_state["uncertain"]:
        unknown = by_state["uncertain"][0].name
        return "not checked", f"the numeric derivative by {unknown} is uncertain: there may be a kink"
    details = [findings.rounding for findings in found if findings.rounding][:1]
    details += [f"The rule returns no gradient for {missing}, on which the value depends."] if missing else []
    return "right", " ".join(details)


def _wrong_verdict(
    place: Place, name: str, like: Mapping[str, Any], wrong: Sequence[InputCheck]
) -> tuple[Verdict, str]:
    if name in like and like[name] is None:
        return "by design", "like= says so"
    if name not in like:
        passes = {source_of(t) for t in place.results} <= {source_of(t) for t in place.inputs}
        design = "the gradient is scaled, reversed or clipped" if passes else _BY_DESIGN.get(place.api)
        if design:
            return "by design", design
    if place.api in _SOLVERS and all(one.error <= _SOLVER_ERROR for one in wrong):
        return "not checked", "numeric differentiation sees where its solver stops"
    # The rest of a hint is advice for check_gradient.
    hint = next((one.detail for one in wrong if one.detail), "").partition(" If ")[0]
    if any(map(is_place, place.inside)):
        hint += " It contains a function with a gradient of its own, which may be the reason."
    elif hint.startswith("The numeric derivative is zero"):
        hint += " Declare an intended gradient with like=."
    return "differs", hint


def _with_first_nonfinite(rows: Sequence[AuditedGradient]) -> list[AuditedGradient]:
    """The rows, with a mark where a finite upstream gradient first became infinite or nan."""
    marked = list(rows)
    for i, row in enumerate(rows):
        if not math.isfinite(row.upstream_norm):
            detail = "The upstream gradient is not finite: operations without a custom gradient made it so."
            marked[i] = dataclasses.replace(row, detail=f"{detail} {row.detail}".rstrip())
            break
        if not math.isfinite(row.gradient_norm):
            marked[i] = dataclasses.replace(row, is_first_nonfinite=True)
            break
    return marked


def _shapes(tensors: Sequence[Any]) -> tuple[tuple[int | None, ...] | None, ...]:
    return tuple(None if t.shape.rank is None else tuple(t.shape.as_list()) for t in tensors)


def _line(op: Any) -> str:
    """The line of the user's code that made the op, such as "model.py:12"; empty in a loaded model."""
    own = [frame for frame in op.traceback or [] if not _FOREIGN.search(frame.filename)]
    return f"{os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else ""
