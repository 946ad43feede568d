"""What was compared with what, and how close it is."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from . import _errors
from ._numeric import Estimate
from ._problem import API

# How much of the numeric derivative's own error is forgiven. What is forgiven is never more than the tolerance for the
# largest element: a derivative that is hardly known does not pass.
_TRUST = 10.0
# The rounding of a large value may hide as much of the largest derivative, and no more.
_KNOWN = 0.1


@dataclasses.dataclass(frozen=True)
class Reference:
    """What is expected of one argument or output: at some elements of it, or at all."""

    name: str
    shape: tuple[int, ...]
    dtype: tf.DType
    # What it was found by.
    source: str
    elements: np.ndarray
    estimate: Estimate
    # Numbers for all elements, and the sum of their products with the gradient that is expected.
    direction: np.ndarray | None = None
    along: Estimate | None = None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The worst element of one argument or output, in one mode: where, what was expected there, and what came.

    `order` is "value", "first", "second" or "tangent". `tolerance` is the error that would pass at that element, and
    `ratio` is `analytic / numeric`. `problem` says what there is instead of numbers: an exception, if one was
    `raised`, or a wrong shape.
    """

    mode: str
    order: str
    name: str
    passed: bool
    checked: int = 0
    size: int = 0
    element: str = ""
    analytic: complex = 0.0
    numeric: complex = 0.0
    error: float = 0.0
    tolerance: float = 0.0
    is_none: bool = False
    source: str = ""
    problem: str = ""
    hint: str = ""
    raised: bool = False

    @property
    def ratio(self) -> complex:
        """What the numbers differ by."""
        return self.analytic / self.numeric if self.numeric else (1.0 if self.analytic == 0 else float("inf"))


@dataclasses.dataclass(frozen=True)
class GradientReport:
    """What `check_gradient` found. `str()` of it is a table."""

    function: str
    comparisons: list[Comparison]

    @property
    def failures(self) -> list[Comparison]:
        """The comparisons that did not pass."""
        return [comparison for comparison in self.comparisons if not comparison.passed]

    def __str__(self) -> str:
        head = ("mode", "order", "of", "checked", "error", "tolerance", "at", "analytic", "numeric", "ratio", "")
        rows = [head, *(_row(comparison) for comparison in self.comparisons)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([f"gradients of '{self.function}'", *(line.rstrip() for line in lines)])

    def text_of_failures(self) -> str:
        """A message for each failure, and the table."""
        return "\n".join([*(self._message(failure) for failure in self.failures), str(self)])

    def _message(self, failure: Comparison) -> str:
        what = {
            "value": f"the value of '{self.function}' ({failure.name})",
            "first": f"the gradient of '{self.function}' with respect to '{failure.name}'",
            "second": f"the second-order gradient of '{self.function}' with respect to '{failure.name}'",
            "tangent": f"the tangent of '{self.function}' ({failure.name})",
        }[failure.order]
        if failure.raised:
            return (
                f"{API}: {what} could not be computed in mode '{failure.mode}'; expected numbers, got "
                f"{failure.problem}. Leave the mode out by modes=[...] if TensorFlow cannot run the function in "
                "it."
            )
        if failure.problem:
            return f"{API}: {what} is wrong in mode '{failure.mode}'; {failure.problem}"
        text = (
            f"{API}: {what} is wrong in mode '{failure.mode}'; expected {show(failure.numeric)} ("
            f"{failure.source}) at element {failure.element}, got "
            f"{'None' if failure.is_none else show(failure.analytic)} (ratio {show(failure.ratio)}; "
            f"{failure.checked} of {failure.size} elements checked)."
        )
        return f"{text} {failure.hint}".rstrip()


def _row(comparison: Comparison) -> tuple[str, ...]:
    state = "ok" if comparison.passed else "NOT RUN" if comparison.raised else "WRONG"
    where = (comparison.mode, comparison.order, comparison.name)
    if comparison.problem:
        return (*where, "", "", "", "", "", "", "", state)
    return (
        *where,
        f"{comparison.checked} of {comparison.size}",
        f"{comparison.error:.1e}",
        f"{comparison.tolerance:.1e}",
        comparison.element,
        "None" if comparison.is_none else show(comparison.analytic),
        show(comparison.numeric),
        show(comparison.ratio),
        state,
    )


def show(number: complex) -> str:
    """A number for a message."""
    return f"{number:.9g}"


@dataclasses.dataclass(frozen=True)
class Tolerances:
    """How far from its reference a number may be."""

    rtol: float
    atol: float

    def of(self, estimate: Estimate) -> np.ndarray:
        """One tolerance for each element: relative to the terms that make it, and to what is known of it."""
        relative = np.where(np.isfinite(estimate.value), self.rtol * estimate.scale, 0.0)
        forgiven = np.minimum(_TRUST * estimate.error, np.max(relative, initial=0.0))
        rounding = np.minimum(estimate.rounding, _KNOWN * np.max(estimate.scale, initial=0.0))
        is_constant = bool(np.all(estimate.scale <= estimate.rounding))
        noise = estimate.noise if is_constant else np.minimum(estimate.noise, np.max(relative, initial=0.0))
        return self.atol + relative + forgiven + rounding + noise


def compare(
    reference: Reference,
    actual: np.ndarray,
    dtype: tf.DType,
    tolerances: Tolerances,
    nonfinite_may_agree: bool,
    **where: Any,
) -> Comparison:
    """The worst element. Numbers that are not finite are wrong, but in values, where both may be."""
    where = {"name": reference.name, "source": reference.source, **where}
    if dtype != reference.dtype or actual.shape != reference.shape:
        kinds = {"expected": _kind(reference.dtype, reference.shape), "got": _kind(dtype, actual.shape)}
        return Comparison(passed=False, problem=_errors.CHECK_KIND.format(**kinds), **where)
    numbers, expected = actual.ravel()[reference.elements], reference.estimate.value
    allowed = tolerances.of(reference.estimate)
    labels = [str([int(i) for i in np.unravel_index(e, reference.shape)]) for e in reference.elements]
    if reference.direction is not None and reference.along is not None:
        terms = np.real(np.conj(actual) * reference.direction)
        numbers, expected = np.append(numbers, np.sum(terms)), np.append(expected, reference.along.value)
        allowed = np.append(allowed, tolerances.of(reference.along))
        labels.append("all, along a random direction")
    where.update(checked=reference.elements.size, size=actual.size)
    if not numbers.size:
        return Comparison(passed=True, **where)
    with np.errstate(all="ignore"):
        agree = (numbers == expected) | (np.isnan(numbers) & np.isnan(expected))
        finite = np.isfinite(numbers) & np.isfinite(expected)
        errors = np.where(finite, np.abs(numbers - expected), np.where(agree & nonfinite_may_agree, 0.0, np.inf))
        excess = np.nan_to_num(errors / np.maximum(allowed, np.finfo(float).tiny), nan=np.inf)
    worst = int(np.argmax(excess))
    return Comparison(
        passed=bool(np.all((errors <= allowed) & np.isfinite(allowed))),
        element=labels[worst],
        analytic=_number(numbers[worst]),
        numeric=_number(expected[worst]),
        error=float(errors[worst]),
        tolerance=float(allowed[worst]),
        **where,
    )


def _number(value: Any) -> complex:
    return complex(value) if np.iscomplexobj(value) else float(value)


def _kind(dtype: tf.DType, shape: tuple[int, ...]) -> str:
    return f"{dtype.name} of shape {list(shape)}"


def exactly(name: str, value: np.ndarray, dtype: tf.DType, source: str) -> Reference:
    """A reference that is known to the last digits."""
    flat = value.ravel()
    size = np.where(np.isfinite(flat), np.abs(flat), 0.0)
    zeros = np.zeros(flat.size)
    scale = size + 1e-3 * np.max(size, initial=0.0)
    return Reference(name, value.shape, dtype, source, np.arange(flat.size), Estimate(flat, zeros, scale, zeros, zeros))
