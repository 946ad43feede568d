"""Compares numbers with their references, and reports the results."""

import dataclasses
import re
from typing import Any

import numpy as np
import tensorflow as tf

from ._flat_function import API
from ._numeric import Estimate

# How many times the numeric derivative's own error is tolerated. The largest element's tolerance is the limit, so that
# nothing passes only because its derivative is uncertain.
_TOLERATED_ERRORS = 10.0
# The largest part of the largest derivative that the rounding of a large value may hide.
_MAX_HIDDEN = 0.1
_MAX_LENGTH = 400
# The orders whose numbers depend on the upstream gradient.
_UPSTREAM_ORDERS = ("first", "second")
# Stands for an index in the comparison of a directional derivative.
_ALL_ELEMENTS = "all, along a random direction"
# Lines that TensorFlow puts before the message, in errors of graphs.
_GRAPH_NOISE = ("Graph execution error:", "Detected at node", "<stack traces unavailable>", "File ")


@dataclasses.dataclass(frozen=True)
class Reference:
    """The expected numbers of one argument or output, at some or all of its elements.

    `source` says where they come from. `direction` has a number for each element, and `directional_derivative` is what
    its products with the gradient should add up to.
    """

    name: str
    shape: tuple[int, ...]
    dtype: tf.DType
    source: str
    elements: np.ndarray
    estimate: Estimate
    direction: np.ndarray | None = None
    directional_derivative: Estimate | None = None

    @property
    def size(self) -> float:
        """The size of the largest number's terms."""
        return float(np.max(self.estimate.scale, initial=0.0, where=np.isfinite(self.estimate.scale)))


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One argument or output in one mode, and its worst element.

    Attributes:
      mode: The mode that was checked.
      order: "value", "first", "second" or "tangent".
      name: The name of the argument or output.
      passed: Whether all elements are within their tolerances.
      checked: How many elements were compared.
      size: How many elements there are.
      element: The index of the worst element.
      analytic: What TensorFlow computed there.
      numeric: What was expected there.
      error: Their difference.
      tolerance: The largest error that passes there.
      is_none: Whether the gradient is None, which counts as zeros.
      source: Where the expected number comes from.
      problem: The exception or the wrong shape; empty if there are numbers to compare.
      hint: The likely mistake; empty if it is not recognized.
      raised: Whether `problem` is an exception.
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
        """`analytic / numeric`."""
        return self.analytic / self.numeric if self.numeric else (1.0 if self.analytic == 0 else float("inf"))


@dataclasses.dataclass(frozen=True)
class GradientReport:
    """The result of `check_gradient`. It prints as a table.

    Attributes:
      function: The name of the function.
      comparisons: A Comparison for each mode, order and argument or output.
      seed: The seed of the random upstream gradients.
    """

    function: str
    comparisons: list[Comparison]
    seed: int = 0

    @property
    def failures(self) -> list[Comparison]:
        """The comparisons that did not pass."""
        return [comparison for comparison in self.comparisons if not comparison.passed]

    def __str__(self) -> str:
        head = ("mode", "order", "of", "checked", "error", "tolerance", "at", "analytic", "numeric", "ratio", "")
        rows = [head, *(_row(comparison) for comparison in self.comparisons)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        title = f"gradients of '{self.function}' for random upstream gradients (seed {self.seed})"
        return "\n".join([title, *(line.rstrip() for line in lines)])

    def failure_text(self) -> str:
        """A message for each mistake, followed by the table."""
        same: dict[tuple[Any, ...], list[Comparison]] = {}
        for failure in self.failures:
            same.setdefault(_fault(failure), []).append(failure)
        return "\n".join([*(self._message(failures) for failures in same.values()), str(self)])

    def _message(self, failures: list[Comparison]) -> str:
        failure = failures[0]
        names = ", ".join(f"'{failure.mode}'" for failure in failures)
        where = f"in mode {names}" if len(failures) == 1 else f"in the modes {names}"
        name, bracket, case = failure.name.partition(" (")
        argument = f"'{name}'{bracket}{case}"
        quantity = {
            "value": f"the value of '{self.function}' ({failure.name})",
            "first": f"the gradient of '{self.function}' with respect to {argument}",
            "second": f"the second-order gradient of '{self.function}' with respect to {argument}",
            "tangent": f"the tangent of '{self.function}' ({failure.name})",
        }[failure.order]
        if failure.raised:
            return (
                f"{API}: {quantity} could not be computed {where}: {failure.problem}. If TensorFlow cannot run the "
                "function in that mode, leave it out of modes."
            )
        if failure.problem:
            advice = " A gradient has the dtype and shape of its argument." if failure.order in _UPSTREAM_ORDERS else ""
            return f"{API}: {quantity} is wrong {where}: {failure.problem}{advice}"
        condition = ""
        if failure.order in _UPSTREAM_ORDERS:
            condition = f"for a random upstream gradient (seed {self.seed}) "
        elif failure.order == "tangent":
            condition = f"for random tangents (seed {self.seed}) "
        places = {_ALL_ELEMENTS: " along a random direction of all elements", "[]": ""}
        text = (
            f"{API}: {quantity} is wrong {where}: {condition}it must be {format_number(failure.numeric)} "
            f"({failure.source}){places.get(failure.element, f' at element {failure.element}')}, got "
            f"{'None' if failure.is_none else format_number(failure.analytic)} (ratio {format_number(failure.ratio)}; "
            f"{failure.checked} of {failure.size} elements checked)."
        )
        return f"{text} {failure.hint}".rstrip()


def _fault(failure: Comparison) -> tuple[Any, ...]:
    """A key that is equal for failures that differ only in the mode, and in the rounding of the numbers."""
    numbers = [f"{number:.4g}" for number in (failure.analytic, failure.numeric)]
    kind = (failure.order, failure.name, failure.raised, failure.problem, failure.is_none)
    return (*kind, failure.element, *numbers)


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
        "None" if comparison.is_none else format_number(comparison.analytic),
        format_number(comparison.numeric),
        format_number(comparison.ratio),
        state,
    )


def format_number(number: complex) -> str:
    """The number with nine digits."""
    return f"{number:.9g}"


@dataclasses.dataclass(frozen=True)
class Tolerances:
    """The largest differences from a reference that pass."""

    rtol: float
    atol: float

    def of(self, estimate: Estimate) -> np.ndarray:
        """A tolerance for each element, relative to the size of its terms, plus the errors of the reference."""
        relative = np.where(np.isfinite(estimate.value), self.rtol * estimate.scale, 0.0)
        own_error = np.minimum(_TOLERATED_ERRORS * estimate.error, np.max(relative, initial=0.0))
        rounding = np.minimum(estimate.rounding, _MAX_HIDDEN * np.max(estimate.scale, initial=0.0))
        is_constant = bool(np.all(estimate.scale <= estimate.rounding))
        noise = estimate.noise if is_constant else np.minimum(estimate.noise, np.max(relative, initial=0.0))
        return self.atol + relative + own_error + rounding + noise


def compare_with_reference(
    reference: Reference,
    actual: np.ndarray,
    dtype: tf.DType,
    tolerances: Tolerances,
    nonfinite_may_agree: bool,
    **where: Any,
) -> Comparison:
    """Finds the worst element. Numbers that are not finite are wrong; values may agree on them, gradients may not."""
    where = {"name": reference.name, "source": reference.source, **where}
    if dtype != reference.dtype or actual.shape != reference.shape:
        problem = (
            f"it must be {_dtype_and_shape(reference.dtype, reference.shape)}, got "
            f"{_dtype_and_shape(dtype, actual.shape)}."
        )
        return Comparison(passed=False, problem=problem, **where)
    numbers, expected, allowed = _select_elements(reference, actual, tolerances)
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
        element=_label(reference, worst),
        analytic=_to_python_number(numbers[worst]),
        numeric=_to_python_number(expected[worst]),
        error=float(errors[worst]),
        tolerance=float(allowed[worst]),
        **where,
    )


def _select_elements(
    reference: Reference, actual: np.ndarray, tolerances: Tolerances
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The actual and the expected numbers to compare, and their tolerances."""
    numbers, expected = actual.ravel()[reference.elements], reference.estimate.value
    allowed = tolerances.of(reference.estimate)
    if reference.direction is not None and reference.directional_derivative is not None:
        terms = np.real(np.conj(actual) * reference.direction)
        numbers = np.append(numbers, np.sum(terms))
        expected = np.append(expected, reference.directional_derivative.value)
        allowed = np.append(allowed, tolerances.of(reference.directional_derivative))
    return numbers, expected, allowed


def _label(reference: Reference, position: int) -> str:
    """What a compared number belongs to."""
    if position == reference.elements.size:
        return _ALL_ELEMENTS
    return str([int(i) for i in np.unravel_index(reference.elements[position], reference.shape)])


def _to_python_number(value: Any) -> complex:
    return complex(value) if np.iscomplexobj(value) else float(value)


def _dtype_and_shape(dtype: tf.DType, shape: tuple[int, ...]) -> str:
    return f"{dtype.name} of shape {list(shape)}"


def exact_reference(name: str, value: np.ndarray, dtype: tf.DType, source: str) -> Reference:
    """A reference that is exact up to its last digits."""
    flat = value.ravel()
    size = np.where(np.isfinite(flat), np.abs(flat), 0.0)
    zeros = np.zeros(flat.size)
    scale = size + 1e-3 * np.max(size, initial=0.0)
    return Reference(name, value.shape, dtype, source, np.arange(flat.size), Estimate(flat, zeros, scale, zeros, zeros))


def in_one_line(error: Exception) -> str:
    """The type of an error and the line with its message, without the final period."""
    text = str(error)
    if text.startswith("in user code:"):  # AutoGraph indents: files by 4, their lines by 8, the message by 4 again.
        lines = [re.sub(r"^\s+(\w+(Error|Exception): )?", "", s) for s in text.splitlines() if re.match(r" {4}\S", s)]
    else:
        lines = [line for line in text.splitlines() if re.match(r"\S", line)]
    line = next((line for line in lines if not line.startswith(_GRAPH_NOISE)), "")
    line = re.sub(r"\s*\[Op:\w+\].*$", "", line)
    shortened = line if len(line) <= _MAX_LENGTH else f"{line[:_MAX_LENGTH]} [...]"
    return f"{type(error).__name__}: {shortened}".rstrip(" .:")
