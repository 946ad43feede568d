"""Numeric differentiation with an estimate of its error.

Central differences with Richardson extrapolation (L. F. Richardson, 1911). The steps start at a hundredth of the
argument and shrink until the derivatives agree. If rounding prevents that, larger steps follow.
"""

import dataclasses
from collections.abc import Callable

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

    def multiply(self, factor: float) -> "Estimate":
        """The estimate for quantities that are `factor` times as large."""
        return Estimate(*(factor * part for part in dataclasses.astuple(self)))


@dataclasses.dataclass(frozen=True)
class Change:
    """The net changes of quantities, and the sizes of the changes before these cancel."""

    net: np.ndarray
    size: np.ndarray


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
    noise = _NOISE * magnitude / max(unit, _SMALLEST_ARGUMENT)
    for h in _steps(unit, step):
        sizes = [h, h * _RATIO, h * _RATIO**2]
        plus, minus = [change(size) for size in sizes], [change(-size) for size in sizes]
        odd = [(p.net - m.net) / (2 * size) for p, m, size in zip(plus, minus, sizes, strict=True)]
        even = [p.net + m.net for p, m in zip(plus, minus, strict=True)]
        square = _RATIO**2  # Each extrapolation removes the next even power of h.
        coarse, fine = (odd[1] - square * odd[0]) / (1 - square), (odd[2] - square * odd[1]) / (1 - square)
        value = (fine - square**2 * coarse) / (1 - square**2)
        not_smooth = np.abs(square**3 * even[0] - (square**2 + square) * even[1] + even[2]) / h
        rounding = _ROUNDING * magnitude / h
        error = np.abs(value - fine) + not_smooth + rounding
        error = np.where(np.isfinite(error), error, np.inf)
        scale = np.maximum(plus[2].size, minus[2].size) / sizes[2]
        estimate = Estimate(value, error, scale, rounding, noise)
        if best is None:
            best = estimate
        else:
            best = _choose_better(best, estimate, below_resolution=h < _FLOAT32_RESOLUTION * unit)
        if np.all(np.isfinite(best.error) & (best.error <= np.maximum(_ACCURATE * best.scale, negligible))):
            break
    assert best is not None
    return best


def _choose_better(best: Estimate, new: Estimate, below_resolution: bool) -> Estimate:
    is_better = new.error < best.error
    if below_resolution:  # If nothing changes for such a small step, trust a larger one that saw a change.
        is_better &= (new.scale > 0) | (best.error > 0.01 * best.scale)
    pairs = zip(dataclasses.astuple(best), dataclasses.astuple(new), strict=True)
    return Estimate(*(np.where(is_better, new_part, best_part) for best_part, new_part in pairs))


def _steps(unit: float, step: float | None) -> list[float]:
    """The steps, in the order in which they are tried. `step` is relative."""
    if step is not None:
        return [step * unit]
    smaller = [10.0**-k * unit for k in range(2, 10)]
    larger = [0.1 * unit]
    while larger[-1] < 0.01:
        larger.append(10 * larger[-1])
    return smaller + larger


def element_sizes(x: np.ndarray) -> np.ndarray:
    """The absolute value of each element; the typical size for a zero."""
    size = np.abs(x)
    return np.where(size > 0, size, typical_size(x))


def typical_size(x: np.ndarray) -> float:
    """The root mean square of the elements that are not zero."""
    nonzero = x[x != 0]
    return float(norm(nonzero) / np.sqrt(nonzero.size)) if nonzero.size else 1.0


def changes_of(outputs: Arrays, center: Arrays) -> Arrays:
    """The differences between these outputs and the outputs at the center; 0 between equal infinities."""
    with np.errstate(invalid="ignore"):
        return [np.where(y == y0, 0.0, y - y0) for y, y0 in zip(outputs, center, strict=True)]


def norm(terms: np.ndarray) -> np.ndarray:
    """The Euclidean norm, without overflow or underflow."""
    largest = np.max(np.abs(terms), initial=0.0)
    if largest == 0 or not np.isfinite(largest):
        return np.asarray(largest)
    return np.asarray(largest * np.sqrt(np.sum(np.abs(terms / largest) ** 2)))


class NumericDerivatives:
    """The derivatives of Re sum(conj(dy) * f), TensorFlow's gradient, by single elements and along directions."""

    def __init__(self, function: FlatFunction, upstream: Arrays) -> None:
        self._function = function
        self._upstream = upstream
        self._center = function.outputs(function.values)
        self._magnitude = norm(self._contract(finite_part(self._center), np.abs))

    def _contract(self, arrays: Arrays, part: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        terms = [part(np.conj(dy) * array).ravel() for dy, array in zip(self._upstream, arrays, strict=True)]
        return np.concatenate(terms)

    def partial_derivatives(self, argument: int, elements: np.ndarray) -> Estimate:
        """The derivatives by these elements of an argument, or by their real and imaginary parts."""
        x = self._function.values[argument]
        units = element_sizes(x).ravel()
        estimates: list[Estimate] = []
        largest = 0.0
        for element in elements:
            parts = []
            for direction in (1.0, 1j) if np.iscomplexobj(x) else (1.0,):
                change = self._change_along_element(argument, int(element), direction)
                unit, negligible = float(units[element]), _NEGLIGIBLE * largest
                parts.append(estimate_derivative(change, self._magnitude, unit, self._function.step, negligible))
                largest = max(largest, float(parts[-1].scale))
            value = parts[0].value + 1j * parts[1].value if len(parts) == 2 else parts[0].value
            rest = [
                np.asarray(sum(getattr(p, name) for p in parts)) for name in ("error", "scale", "rounding", "noise")
            ]
            estimates.append(Estimate(value, *rest))
        columns = zip(*(dataclasses.astuple(estimate) for estimate in estimates), strict=True)
        return Estimate(*(np.array(column) for column in columns)) if estimates else Estimate(*[np.zeros(0)] * 5)

    def _change_along_element(self, argument: int, element: int, direction: complex) -> Callable[[float], Change]:
        def change(t: float) -> Change:
            moved = self._function.values[argument].copy()
            moved.reshape(-1)[element] += t * direction
            return self._change(argument, moved)

        return change

    def directional_derivative(self, argument: int, directions: Arrays) -> list[Estimate]:
        """The derivative along a direction of all elements of an argument."""

        def change(t: float) -> Change:
            return self._change(argument, self._function.values[argument] + t * directions[0])

        return [estimate_derivative(change, self._magnitude, 1.0, self._function.step)]

    def _change(self, argument: int, moved: np.ndarray) -> Change:
        values = list(self._function.values)
        values[argument] = moved
        terms = self._contract(changes_of(self._function.outputs(values), self._center), np.real)
        return Change(np.asarray(np.sum(terms)), norm(terms))


def directional_derivatives(function: FlatFunction, directions: Arrays) -> list[Estimate]:
    """The derivative of each output along a direction of all arguments."""
    center = function.outputs(function.values)
    magnitude = np.concatenate([np.abs(y).ravel() for y in finite_part(center)])

    def change(t: float) -> Change:
        moved = [x + t * v for x, v in zip(function.values, directions, strict=True)]
        net = np.concatenate([part.ravel() for part in changes_of(function.outputs(moved), center)])
        return Change(net, np.abs(net))

    estimate = estimate_derivative(change, magnitude, 1.0, function.step)
    splits = np.cumsum([y.size for y in center])[:-1]
    parts_by_output = zip(*(np.split(part, splits) for part in dataclasses.astuple(estimate)), strict=True)
    return [Estimate(*parts) for parts in parts_by_output]


def finite_part(arrays: Arrays) -> Arrays:
    """The arrays, with zeros for infinities and nan, which have no size."""
    return [np.where(np.isfinite(array), array, 0.0) for array in arrays]
