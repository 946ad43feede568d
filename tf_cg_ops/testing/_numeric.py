"""Numeric differentiation that knows how far it can be trusted.

Central differences with Richardson extrapolation (L. F. Richardson, 1911), at steps from a hundredth of the argument
downwards until they agree, and upwards where rounding is in the way.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from ._problem import Arrays, Problem

# The golden ratio, of which no two powers are commensurable: no period fits all steps.
_RATIO = (5**0.5 - 1) / 2
# What rounding makes of a derivative, for values and steps of 1.
_ROUNDING = 8 * float(np.finfo(np.float64).eps)
# Relative steps below which a function that computes in float32 may seem constant.
_RESOLUTION = 5e-7
# Estimates that agree so well are taken at once; else the steps that agree best are.
_GOOD = 1e-8
# What rounding makes of an analytic derivative, for values and arguments of 1; for smaller arguments it makes more, but
# below a millionth it is not forgiven: nothing would be wrong for a tiny argument.
_NOISE = 64 * float(np.finfo(np.float64).eps)
_SMALLEST = 1e-6
# An error so far below the largest derivative of an argument does not matter.
_NEGLIGIBLE = 1e-11


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Derivatives, how far they may be off, and the size of their terms before they cancel.

    `rounding` is what the rounding of the value makes of the numeric derivative, at the step that was chosen, and
    `noise` what it makes of an analytic derivative.
    """

    value: np.ndarray
    error: np.ndarray
    scale: np.ndarray
    rounding: np.ndarray
    noise: np.ndarray

    def times(self, factor: float) -> "Estimate":
        """Of quantities that are so many times as large."""
        return Estimate(*(factor * part for part in dataclasses.astuple(self)))


@dataclasses.dataclass(frozen=True)
class Change:
    """How much quantities changed, net, and how large the changes are that cancel in it."""

    net: np.ndarray
    size: np.ndarray


@np.errstate(all="ignore")  # What overflows is not finite, and known by that.
def derivative(
    change: Callable[[float], Change],
    magnitude: np.ndarray,
    unit: float,
    step: float | None,
    negligible: float = 0.0,
) -> Estimate:
    """The derivative at t=0 of quantities that change by `change(t)`, for a t of about the size `unit`.

    Net changes at +-h, +-rh and +-r^2 h are odd and even in part. The odd parts give the derivative; the error is what
    the last extrapolation changed, plus what the even parts differ from those of a smooth function: a kink at t=0, and
    a peak that the steps straddle, show there only. `magnitude` is the size of the values, which round off.
    """
    best: Estimate | None = None
    noise = _NOISE * magnitude / max(unit, _SMALLEST)
    for h in _steps(unit, step):
        sizes = [h, h * _RATIO, h * _RATIO**2]
        plus, minus = [change(size) for size in sizes], [change(-size) for size in sizes]
        odd = [(p.net - m.net) / (2 * size) for p, m, size in zip(plus, minus, sizes, strict=True)]
        even = [p.net + m.net for p, m in zip(plus, minus, strict=True)]
        square = _RATIO**2  # Each extrapolation takes the next even power of h out.
        coarse, fine = (odd[1] - square * odd[0]) / (1 - square), (odd[2] - square * odd[1]) / (1 - square)
        value = (fine - square**2 * coarse) / (1 - square**2)
        not_smooth = np.abs(square**3 * even[0] - (square**2 + square) * even[1] + even[2]) / h
        rounding = _ROUNDING * magnitude / h
        error = np.abs(value - fine) + not_smooth + rounding
        error = np.where(np.isfinite(error), error, np.inf)
        scale = np.maximum(plus[2].size, minus[2].size) / sizes[2]
        found = Estimate(value, error, scale, rounding, noise)
        best = found if best is None else _better_of(best, found, below_resolution=h < _RESOLUTION * unit)
        if np.all(np.isfinite(best.error) & (best.error <= np.maximum(_GOOD * best.scale, negligible))):
            break
    assert best is not None
    return best


def _better_of(one: Estimate, other: Estimate, below_resolution: bool) -> Estimate:
    better = other.error < one.error
    if below_resolution:  # Where nothing changes for so small steps, larger ones that saw something are right.
        better &= (other.scale > 0) | (one.error > 0.01 * one.scale)
    pairs = zip(dataclasses.astuple(one), dataclasses.astuple(other), strict=True)
    return Estimate(*(np.where(better, new, old) for old, new in pairs))


def _steps(unit: float, step: float | None) -> list[float]:
    """Steps in the order in which they are tried; `step` is relative."""
    if step is not None:
        return [step * unit]
    smaller = [10.0**-k * unit for k in range(2, 10)]
    larger = [0.1 * unit]
    while larger[-1] < 0.01:
        larger.append(10 * larger[-1])
    return smaller + larger


def unit_of(x: np.ndarray) -> np.ndarray:
    """The size that each element has; zeros have the typical one."""
    size = np.abs(x)
    return np.where(size > 0, size, typical_of(x))


def typical_of(x: np.ndarray) -> float:
    """The size of most elements: zeros do not count."""
    nonzero = x[x != 0]
    return float(size_of(nonzero) / np.sqrt(nonzero.size)) if nonzero.size else 1.0


def change_of(outputs: Arrays, center: Arrays) -> Arrays:
    """What is the same infinity at both places did not change."""
    with np.errstate(invalid="ignore"):
        return [np.where(y == y0, 0.0, y - y0) for y, y0 in zip(outputs, center, strict=True)]


def size_of(terms: np.ndarray) -> np.ndarray:
    """The Euclidean norm, whatever the numbers' magnitude."""
    largest = np.max(np.abs(terms), initial=0.0)
    if largest == 0 or not np.isfinite(largest):
        return np.asarray(largest)
    return np.asarray(largest * np.sqrt(np.sum(np.abs(terms / largest) ** 2)))


class Differentiation:
    """Derivatives of Re sum(conj(dy) * f), which TensorFlow's gradient is, by elements and along a direction."""

    def __init__(self, problem: Problem, upstream: Arrays) -> None:
        self._problem = problem
        self._upstream = upstream
        self._center = problem.outputs(problem.values)
        self._magnitude = size_of(self._contract(finite_part(self._center), np.abs))

    def _contract(self, arrays: Arrays, part: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        terms = [part(np.conj(dy) * array).ravel() for dy, array in zip(self._upstream, arrays, strict=True)]
        return np.concatenate(terms)

    def by_elements(self, argument: int, elements: np.ndarray) -> Estimate:
        """By these elements of one argument; by real and imaginary parts of complex ones."""
        x = self._problem.values[argument]
        units = unit_of(x).ravel()
        found: list[Estimate] = []
        largest = 0.0
        for element in elements:
            parts = []
            for direction in (1.0, 1j) if np.iscomplexobj(x) else (1.0,):
                change = self._change_along_element(argument, int(element), direction)
                unit, negligible = float(units[element]), _NEGLIGIBLE * largest
                parts.append(derivative(change, self._magnitude, unit, self._problem.step, negligible))
                largest = max(largest, float(parts[-1].scale))
            value = parts[0].value + 1j * parts[1].value if len(parts) == 2 else parts[0].value
            rest = [
                np.asarray(sum(getattr(p, name) for p in parts)) for name in ("error", "scale", "rounding", "noise")
            ]
            found.append(Estimate(value, *rest))
        columns = zip(*(dataclasses.astuple(estimate) for estimate in found), strict=True)
        return Estimate(*(np.array(column) for column in columns)) if found else Estimate(*[np.zeros(0)] * 5)

    def _change_along_element(self, argument: int, element: int, direction: complex) -> Callable[[float], Change]:
        def change(t: float) -> Change:
            moved = self._problem.values[argument].copy()
            moved.reshape(-1)[element] += t * direction
            return self._change(argument, moved)

        return change

    def along(self, argument: int, direction: np.ndarray) -> Estimate:
        """By all elements of one argument together."""
        x = self._problem.values[argument]

        def change(t: float) -> Change:
            return self._change(argument, x + t * direction)

        return derivative(change, self._magnitude, 1.0, self._problem.step)

    def _change(self, argument: int, moved: np.ndarray) -> Change:
        values = list(self._problem.values)
        values[argument] = moved
        terms = self._contract(change_of(self._problem.outputs(values), self._center), np.real)
        return Change(np.asarray(np.sum(terms)), size_of(terms))


def along_direction(problem: Problem, directions: Arrays) -> list[Estimate]:
    """The derivative of each output along a direction of all arguments."""
    center = problem.outputs(problem.values)
    magnitude = np.concatenate([np.abs(y).ravel() for y in finite_part(center)])

    def change(t: float) -> Change:
        moved = [x + t * v for x, v in zip(problem.values, directions, strict=True)]
        net = np.concatenate([part.ravel() for part in change_of(problem.outputs(moved), center)])
        return Change(net, np.abs(net))

    joint = derivative(change, magnitude, 1.0, problem.step)
    splits = np.cumsum([y.size for y in center])[:-1]
    return [Estimate(*parts) for parts in zip(*(np.split(a, splits) for a in dataclasses.astuple(joint)), strict=True)]


def finite_part(arrays: Arrays) -> Arrays:
    """With zeros in the place of infinities, which have no size."""
    return [np.where(np.isfinite(array), array, 0.0) for array in arrays]
