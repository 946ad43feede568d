"""Numeric differentiation with an estimate of its error.

Central differences with Richardson extrapolation (L. F. Richardson, 1911). The steps start at a hundredth of the
argument and shrink until the derivatives agree. If rounding prevents that, larger steps follow. The step
with the smallest error counts, unless the derivatives of another one agree far better for the size of their terms.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ._flat_function import Arrays, FlatFunction

# The golden ratio. Its powers are incommensurable, so no period of a function fits all steps.
_RATIO = (5**0.5 - 1) / 2
# The error of a numeric derivative through rounding, for values and steps of 1.
_ROUNDING = 8 * float(np.finfo(np.float64).eps)
# A function that computes in float32 can seem constant for smaller relative steps.
_FLOAT32_RESOLUTION = 5e-7
# At this relative error no further steps are tried. If no step reaches it, the steps that agree best count.
_ACCURATE = 1e-8
# The error of an analytic derivative through rounding, for values and arguments of 1. It grows as arguments get
# smaller, but only down to a millionth; otherwise every gradient would pass for a tiny argument.
_NOISE = 64 * float(np.finfo(np.float64).eps)
_SMALLEST_ARGUMENT = 1e-6
# The derivatives of steps that agree so well, relative to their terms, decide over others.
_CONSISTENT = 1e-3
# An error this small, relative to the largest derivative of an argument, does not matter.
_NEGLIGIBLE = 1e-11


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Derivatives and their errors.

    Attributes:
      value: The derivatives.
      error: Their estimated errors.
      scale: The sizes of their terms, before the terms cancel.
      rounding: The error of the numeric derivative through the rounding of the value, at the chosen step.
      noise: The error of an analytic derivative through the rounding of the value.
    """

    value: np.ndarray
    error: np.ndarray
    scale: np.ndarray
    rounding: np.ndarray
    noise: np.ndarray

    @property
    def relative(self) -> np.ndarray:
        """The errors, relative to the terms; infinite if there are none."""
        with np.errstate(all="ignore"):
            return np.where(self.scale > 0, self.error / self.scale, np.inf)

    def multiply(self, factor: float) -> "Estimate":
        """The estimate for quantities that are `factor` times as large."""
        return Estimate(factor * self.value, *(abs(factor) * part for part in dataclasses.astuple(self)[1:]))


# The net changes of quantities, and the sizes of the changes before these cancel.
Change = tuple[np.ndarray, np.ndarray]


@np.errstate(all="ignore")  # An overflow shows as a number that is not finite.
def estimate_derivative(
    change: Callable[[float], Change],
    magnitude: np.ndarray,
    unit: float,
    step: float | None,
    negligible: float = 0.0,
) -> Estimate:
    """The derivative at t=0 of quantities that change by `change(t)`, for a t of about the size `unit`.

    Net changes at +-h, +-rh and +-r^2 h have odd and even parts. The odd parts give the derivative. Its error is how
    much the last extrapolation changes it, plus how far the even parts are from a smooth function's: only they show a
    kink at t=0, or a peak that the steps straddle. `magnitude` is the size of the values, which are rounded.
    """
    best: Estimate | None = None
    consistent: Estimate | None = None
    noise = _NOISE * magnitude / max(unit, _SMALLEST_ARGUMENT)
    for h in _steps(unit, step):
        sizes = [h, h * _RATIO, h * _RATIO**2]
        plus, minus = [change(size) for size in sizes], [change(-size) for size in sizes]
        odd = [(p - m) / (2 * size) for (p, _), (m, _), size in zip(plus, minus, sizes, strict=True)]
        even = [p + m for (p, _), (m, _) in zip(plus, minus, strict=True)]
        square = _RATIO**2  # Each extrapolation removes the next even power of h.
        coarse, fine = (odd[1] - square * odd[0]) / (1 - square), (odd[2] - square * odd[1]) / (1 - square)
        value = (fine - square**2 * coarse) / (1 - square**2)
        not_smooth = np.abs(square**3 * even[0] - (square**2 + square) * even[1] + even[2]) / h
        rounding = _ROUNDING * magnitude / h
        error = np.abs(value - fine) + not_smooth + rounding
        error = np.where(np.isfinite(error), error, np.inf)
        scale = np.maximum(plus[2][1], minus[2][1]) / sizes[2]
        estimate = Estimate(value, error, scale, rounding, noise)
        best = _choose_better(best or estimate, estimate, below_resolution=h < _FLOAT32_RESOLUTION * unit)
        consistent = _where(estimate.relative < (consistent or estimate).relative, estimate, consistent or estimate)
        if np.all(np.isfinite(best.error) & (best.error <= np.maximum(_ACCURATE * best.scale, negligible))):
            break
    assert best is not None
    assert consistent is not None
    # The errors of a wave grow as the steps get smaller, until a step is smaller than the wave.
    decides = (consistent.relative < _CONSISTENT) & (consistent.relative < 0.01 * best.relative) & (best.scale > 0)
    return _where(decides, consistent, best)


def _choose_better(best: Estimate, new: Estimate, below_resolution: bool) -> Estimate:
    is_better = new.error < best.error
    if below_resolution:  # If nothing changes for such a small step, trust a larger one that saw a change.
        is_better &= (new.scale > 0) | (best.error > 0.01 * best.scale)
    return _where(is_better, new, best)


def _where(mask: np.ndarray, first: Estimate, second: Estimate) -> Estimate:
    return Estimate(*(np.where(mask, one, other) for one, other in _columns([first, second])))


def _steps(unit: float, step: float | None) -> list[float]:
    """The steps, in the order in which they are tried. `step` is relative."""
    if step is not None:
        return [step * unit]
    larger = [0.1 * unit]
    while larger[-1] < 0.01:
        larger.append(10 * larger[-1])
    return [10.0**-k * unit for k in range(2, 10)] + larger


def element_sizes(x: np.ndarray) -> np.ndarray:
    """The absolute value of each element; the typical size for a zero."""
    size = np.abs(x)
    return np.where(size > 0, size, typical_size(x))


def typical_size(x: np.ndarray) -> float:
    """The root mean square of the elements that are not zero."""
    nonzero = x[x != 0]
    return float(norm(nonzero) / np.sqrt(nonzero.size)) if nonzero.size else 1.0


def norm(terms: np.ndarray) -> np.ndarray:
    """The Euclidean norm, without overflow or underflow."""
    largest = np.max(np.abs(terms), initial=0.0)
    if largest == 0 or not np.isfinite(largest):
        return np.asarray(largest)
    return np.asarray(largest * np.sqrt(np.sum(np.abs(terms / largest) ** 2)))


class NumericDerivatives:
    """The derivatives of Re sum(conj(dy) * f), TensorFlow's gradient; without an upstream, of each element of f."""

    def __init__(self, function: FlatFunction, upstream: Arrays | None = None) -> None:
        self._function, self._upstream = function, upstream
        self._center = function.outputs(function.values)
        terms = np.abs(self._terms([np.where(np.isfinite(y), y, 0.0) for y in self._center]))
        self._magnitude = terms if upstream is None else norm(terms)

    def _terms(self, outputs: Arrays) -> np.ndarray:
        weighted = outputs
        if self._upstream is not None:
            weighted = [np.conj(dy) * y for dy, y in zip(self._upstream, outputs, strict=True)]
        return np.concatenate([y.ravel() for y in weighted])

    def _along(self, directions: Mapping[int, np.ndarray], unit: float = 1.0, negligible: float = 0.0) -> Estimate:
        """The derivative along directions of some arguments, by number."""

        def change(t: float) -> Change:
            values = list(self._function.values)
            for i, direction in directions.items():  # Adding zero would change the sign of -0.0.
                values[i] = np.where(direction == 0, values[i], values[i] + t * direction)
            pairs = zip(self._function.outputs(values), self._center, strict=True)
            with np.errstate(invalid="ignore"):
                terms = self._terms([np.where(y == y0, 0.0, y - y0) for y, y0 in pairs])  # 0 for equal infinities.
            if self._upstream is None:
                return terms, np.abs(terms)
            return np.asarray(np.sum(terms.real)), norm(terms.real)

        return estimate_derivative(change, self._magnitude, unit, self._function.step, negligible)

    def partial_derivatives(self, argument: int, elements: np.ndarray) -> Estimate:
        """The derivatives by these elements of an argument, or by their real and imaginary parts."""
        x = self._function.values[argument]
        units = element_sizes(x).ravel()
        estimates: list[Estimate] = []
        largest = 0.0
        for element in elements:
            parts = []
            for direction in (1.0, 1j) if np.iscomplexobj(x) else (1.0,):
                one_hot = np.zeros_like(x)
                one_hot.reshape(-1)[element] = direction
                part = self._along({argument: one_hot}, float(units[element]), _NEGLIGIBLE * largest)
                parts.append(dataclasses.replace(part, value=direction * part.value))
                largest = max(largest, float(part.scale))
            estimates.append(Estimate(*(np.sum(column, axis=0) for column in _columns(parts))))
        return Estimate(*map(np.array, _columns(estimates))) if estimates else Estimate(*[np.zeros(0)] * 5)

    def directional_derivative(self, argument: int, directions: Arrays) -> list[Estimate]:
        """The derivative along a direction of all elements of an argument."""
        return [self._along({argument: directions[0]})]

    def tangents(self, directions: Arrays) -> list[Estimate]:
        """Without an upstream: the derivative of each output along directions of all arguments."""
        estimate = self._along(dict(enumerate(directions)))
        splits = np.cumsum([y.size for y in self._center])[:-1]
        parts = [np.split(part, splits) for part in dataclasses.astuple(estimate)]
        return [Estimate(*of_output) for of_output in zip(*parts, strict=True)]


def _columns(estimates: Sequence[Estimate]) -> Iterable[tuple[np.ndarray, ...]]:
    return zip(*map(dataclasses.astuple, estimates), strict=True)
