"""Compares numbers with their references, and reports the results."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import text

from ._flat_function import API, to_double_precision
from ._numeric import Estimate

# How many times the numeric derivative's own error is tolerated. The largest element's tolerance is the limit, so that
# nothing passes only because its derivative is uncertain.
_TOLERATED_ERRORS = 10.0
# The largest part of the largest derivative that the rounding of a large value may hide.
_MAX_HIDDEN = 0.1
# A derivative is not known if its error is a larger part of its terms.
_KNOWN = 0.05
# What is compared at each order, and for what.
_FOR_AN_UPSTREAM = "for a random upstream gradient (seed {seed}) "
_QUANTITIES = {
    "value": ("the value of '{function}' ({name})", ""),
    "first": ("the gradient of '{function}' with respect to '{name}'{case}", _FOR_AN_UPSTREAM),
    "second": ("the second-order gradient of '{function}' with respect to '{name}'{case}", _FOR_AN_UPSTREAM),
    "tangent": ("the tangent of '{function}' ({name}){case}", "for random tangents (seed {seed}) "),
}
# Stands for an index in the comparison of a directional derivative.
_ALL_ELEMENTS = "all, along a random direction"
UNCERTAIN = "The numeric derivative itself is uncertain"
_NONE = "The gradient is None: for TensorFlow, the value does not depend on the argument."


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

    def is_known(self, errors: np.ndarray, times: float = _TOLERATED_ERRORS) -> bool:
        """Whether an element differs by so many times what numeric differentiation is uncertain by."""
        error, scale = self.estimate.error, self.estimate.scale
        is_wrong = ~(errors <= 1e-6 * scale)
        return bool(np.any(is_wrong & (errors >= times * error) & (error <= _KNOWN * scale))) or not np.any(is_wrong)

    @property
    def size(self) -> float:
        """The size of the largest number's terms."""
        return float(np.max(self.estimate.scale, initial=0.0, where=np.isfinite(self.estimate.scale)))


# Returns the likely mistake, given a reference and wrong numbers; or an empty string.
Hint = Callable[[Reference, np.ndarray], str]


@dataclasses.dataclass(frozen=True)
class GradientComparison:
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
      is_known: Whether numeric differentiation can tell. If not, `hint` has the reason.
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
    is_known: bool = True

    @property
    def _got(self) -> str:
        """`analytic` as text."""
        return "None" if self.is_none else f"{self.analytic:.9g}"

    @property
    def ratio(self) -> complex:
        """`analytic / numeric`."""
        return self.analytic / self.numeric if self.numeric else (1.0 if self.analytic == 0 else float("inf"))


@dataclasses.dataclass(frozen=True)
class GradientReport:
    """The result of `check_gradient`. It prints as a table.

    Attributes:
      function: The name of the function.
      comparisons: A GradientComparison for each mode, order and argument or output.
      seed: The seed of the random upstream gradients.
    """

    function: str
    comparisons: list[GradientComparison]
    seed: int = 0

    @property
    def failures(self) -> list[GradientComparison]:
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
        same: dict[Any, list[GradientComparison]] = {}
        for c in self.failures:  # Failures that differ only in the mode, and in the rounding of the numbers, are one.
            rounded = f"{c.analytic:.4g} {c.numeric:.4g}"
            same.setdefault((c.order, c.name, c.raised, c.problem, c.is_none, c.element, rounded), []).append(c)
        return "\n".join([*map(self._message, same.values()), str(self)])

    def _message(self, failures: list[GradientComparison]) -> str:
        failure = failures[0]
        names = text.quoted(failure.mode for failure in failures)
        where = f"in mode {names}" if len(failures) == 1 else f"in the modes {names}"
        name, bracket, case = failure.name.partition(" (")
        values = {"function": self.function, "name": name, "case": bracket + case, "seed": self.seed}
        quantity, condition = (part.format(**values) for part in _QUANTITIES[failure.order])
        if failure.raised:
            return (
                f"{API}: {quantity} could not be computed {where}: {failure.problem}. If TensorFlow cannot run the "
                "function in that mode, leave it out of modes."
            )
        subject = f"{API}: {quantity} is wrong {where}: "
        if failure.problem:
            is_gradient = failure.order in ("first", "second")
            return f"{subject}{failure.problem}{' A gradient has the dtype and shape of its argument.' * is_gradient}"
        places = {_ALL_ELEMENTS: " along a random direction of all elements", "[]": ""}
        place = places.get(failure.element, f" at element {failure.element}")
        if not failure.is_known:
            return (
                f"{API}: {quantity} cannot be checked here {where}: {condition}numeric differentiation finds "
                f"{failure.numeric:.9g}{place}, and the gradient is {failure._got}. {failure.hint}"
            )
        return (
            f"{subject}{condition}it must be {failure.numeric:.9g} ({failure.source}){place}, got {failure._got} "
            f"(ratio {failure.ratio:.9g}; {failure.checked} of {failure.size} elements checked). {failure.hint}"
        ).rstrip()


def _row(c: GradientComparison) -> tuple[str, ...]:
    state = "ok" if c.passed else "NOT RUN" if c.raised else "WRONG" if c.is_known else "NOT KNOWN"
    numbers: tuple[str, ...] = ("",) * 7
    if not c.problem:
        errors = f"{c.error:.1e}", f"{c.tolerance:.1e}"
        numbers = (f"{c.checked} of {c.size}", *errors, c.element, c._got, f"{c.numeric:.9g}", f"{c.ratio:.9g}")
    return (c.mode, c.order, c.name, *numbers, state)


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


def compare(
    mode: str, order: str, reference: Reference, actual: Any, tolerances: Tolerances, hint: Hint | None = None
) -> GradientComparison:
    """Finds the worst element of a Tensor, or None for zeros.

    Only derivatives have a hint. Values may be infinite or nan where the reference is; derivatives may not.
    """
    array = np.zeros(reference.shape) if actual is None else to_double_precision(actual)
    where: dict[str, Any] = {"mode": mode, "order": order, "name": reference.name, "source": reference.source}
    where.update(checked=reference.elements.size, size=array.size, is_none=actual is None)
    if array.shape != reference.shape or (actual is not None and actual.dtype != reference.dtype):
        wanted, got = f"{reference.dtype.name} of shape {list(reference.shape)}", f"{list(array.shape)}."
        return GradientComparison(
            passed=False, problem=f"it must be {wanted}, got {actual.dtype.name} of shape {got}", **where
        )
    if not array.size:
        return GradientComparison(passed=True, **where)
    numbers, expected = array.ravel()[reference.elements], reference.estimate.value
    allowed = tolerances.of(reference.estimate)
    if reference.direction is not None and reference.directional_derivative is not None:
        numbers = np.append(numbers, np.sum(np.real(np.conj(array) * reference.direction)))
        expected = np.append(expected, reference.directional_derivative.value)
        allowed = np.append(allowed, tolerances.of(reference.directional_derivative))
    with np.errstate(all="ignore"):
        agree = (numbers == expected) | (np.isnan(numbers) & np.isnan(expected))
        finite = np.isfinite(numbers) & np.isfinite(expected)
        errors = np.where(finite, np.abs(numbers - expected), np.where(agree & (hint is None), 0.0, np.inf))
        excess = np.nan_to_num(errors / np.maximum(allowed, np.finfo(float).tiny), nan=np.inf)
    worst = int(np.argmax(excess))
    element = _ALL_ELEMENTS
    if worst < reference.elements.size:
        element = str([int(i) for i in np.unravel_index(reference.elements[worst], reference.shape)])
    passed = bool(np.all((errors <= allowed) & np.isfinite(allowed)))
    text = ""
    if hint is not None and not passed:
        with np.errstate(all="ignore"):
            text = _NONE if actual is None else hint(reference, array)
    return GradientComparison(
        passed=passed,
        element=element,
        analytic=numbers[worst].item(),
        numeric=expected[worst].item(),
        error=float(errors[worst]),
        tolerance=float(allowed[worst]),
        hint=text,
        is_known=UNCERTAIN not in text or reference.is_known(errors[: reference.elements.size]),
        **where,
    )


def exact_reference(name: str, value: np.ndarray, dtype: Any, source: str) -> Reference:
    """A reference that is exact up to its last digits."""
    flat = value.ravel()
    size = np.where(np.isfinite(flat), np.abs(flat), 0.0)
    zeros = np.zeros(flat.size)
    estimate = Estimate(flat, zeros, size + 1e-3 * np.max(size, initial=0.0), zeros, zeros)
    return Reference(name, value.shape, tf.as_dtype(dtype), source, np.arange(flat.size), estimate)
