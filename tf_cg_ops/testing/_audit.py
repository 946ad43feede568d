"""`audit`: every gradient of its own in a model, against TensorFlow's own gradient of the same computation."""

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
from tf_cg_ops._src.custom_gradient import rule_op
from tf_cg_ops._src.rewrite.traced_call import TracedCall
from tf_cg_ops.saved_model import _inputs

from ._audit_check import STATES, Findings, check
from ._audit_record import API, PASSING, Place, Recording, all_operations, is_place, source_of
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
    library, or from `tf.custom_gradient`) is compared with TensorFlow's own gradient of the ops inside, for the numbers
    of this run; where they differ, numeric differentiation decides. Places in called functions, loops, conditionals and
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
      max_elements: How many elements of an input are moved one by one, where a random direction of all elements tells
        nothing, as at a kink.
      progress: Called with a line of text now and then, such as `print`.

    Returns:
      An `AuditReport`, with a row for each function and verdict in the order of the backward pass. It prints as a
      table.

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
    with _explained(name, f):
        call = TracedCall(f, positional, keywords)
        total = sum(map(is_place, all_operations(call.graph.get_operations())))
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
    return AuditReport(name, _folded(_with_first_nonfinite(rows)))


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
def _explained(name: str, f: Any) -> Iterator[None]:
    """Raises TensorFlow's errors about memory, and about the arguments of a signature, in one sentence."""
    is_signature = hasattr(f, "structured_input_signature")  # It runs no Python code that could raise other errors.
    try:
        yield
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
        raise MemoryError(
            f"{API}: '{name}' needs more memory than there is. Pass arguments of a smaller batch."
        ) from error
    except TypeError as error:
        if not is_signature:
            raise
        raise TypeError(
            f"{API}: '{name}' must get arguments that fit its signature {f.structured_input_signature[1]}, got "
            f"{in_one_line(error)}."
        ) from error
    except AssertionError as error:
        if not is_signature:
            raise
        raise ValueError(
            f"{API}: the model of '{name}' must stay in memory. Assign tf.saved_model.load(...) to a variable first."
        ) from error


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
    draws = [tf.random.stateless_uniform(tf.shape(y), [1, i], -1.0) for i, y in enumerate(ys)]
    return [tf.cast(x + tf.sign(x) / 2, y.dtype) for x, y in zip(draws, ys, strict=True)]


def _name(place: Place) -> str:
    if place.op.type == "CustomGradientRule":
        name = rule_op.function_name(place.op)
        is_own = name == "identity" and place.api != "custom_gradient"  # The function of clip_gradient, for example.
        return place.api if is_own else name
    if place.api == "tf.custom_gradient":
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
        verdict: Verdict = "differs" if place.failed else "not checked"
        return dataclasses.replace(row, verdict=verdict, detail=place.reason or "no gradient arrives here")
    found = [check(place, run, name, like.get(name), max_elements) for run in place.runs]
    worst, last = max(found, key=lambda each: STATES.index(each.state)), found[-1]
    verdict, detail = _verdict(place, name, like, worst)
    return dataclasses.replace(
        row,
        verdict=verdict,
        detail=" ".join(filter(None, [detail, *worst.remarks])),
        value_norm=last.value_norm,
        upstream_norm=last.upstream_norm,
        gradient_norm=last.gradient_norm,
        error=max(each.error for each in found),
    )


def _verdict(place: Place, name: str, like: Mapping[str, Any], found: Findings) -> tuple[Verdict, str]:
    if place.api in PASSING:
        return "by design", place.reason
    if found.state == "right":
        return "right", ""
    if name in like and like[name] is None:
        return "by design", "like= says so"
    if name not in like:
        passes = {source_of(t) for t in place.results} <= {source_of(t) for t in place.inputs}
        design = "the gradient is scaled, reversed or clipped" if passes else _BY_DESIGN.get(place.api)
        if design:
            return "by design", design
    if found.state == "unknown":
        return "not checked", found.detail
    # The rest of a hint is advice for check_gradient.
    detail = found.detail.partition(" If ")[0]
    return "differs", f"{detail} Declare an intended gradient with like=." if " If " in found.detail else detail


def _folded(rows: Sequence[AuditedGradient]) -> list[AuditedGradient]:
    """One row for the places of a function that have one verdict: the worst of them, with their number."""
    folded: dict[Any, list[AuditedGradient]] = {}
    for row in rows:
        is_special = row.is_first_nonfinite, math.isfinite(row.upstream_norm)
        key = row.function, row.made_by, row.line or row.node, row.verdict, is_special
        folded.setdefault(key, []).append(row)
    return [dataclasses.replace(max(group, key=lambda row: row.error), places=len(group)) for group in folded.values()]


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
