"""Numeric differentiation that knows how far it can be trusted.

Central differences with Richardson extrapolation (L. F. Richardson, 1911), at steps from a hundredth of the argument
downwards until they agree, and upwards where rounding is in the way.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ._problem import Arrays, Problem

# The golden ratio, of which no two powers are commensurable: no period fits all steps.
_RATIO = (5**0.5 - 1) / 2
_EPS = float(np.finfo(np.float64).eps)
# Estimates that agree so well are taken at once; else the steps that agree best are.
_GOOD = 1e-8
# An error so far below the largest derivative of an argument does not matter.
_NEGLIGIBLE = 1e-11


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Derivatives, how far they may be off, the size of their terms before they cancel, and what rounding makes.

    The rounding is that of the first step, which is about what the analytic derivative of such a value suffers.
    """

    value: np.ndarray
    error: np.ndarray
    scale: np.ndarray
    rounding: np.ndarray


Change = Callable[[float], tuple[np.ndarray, np.ndarray]]


def derivative(change: Change, magnitude: np.ndarray, steps: Iterable[float], negligible: float = 0.0) -> Estimate:
    """The derivative at t=0 of quantities of which `change(t)` says how much they changed, net and in all.

    Net changes at +-h, +-rh and +-r^2 h are odd and even in part. The odd parts give the derivative; the error is what
    the last extrapolation changed, plus what the even parts differ from those of a smooth function: a kink at t=0, and
    a peak that the steps straddle, show there only.
    """
    best: Estimate | None = None
    for step in steps:
        sizes = [step, step * _RATIO, step * _RATIO**2]
        plus, minus = [change(size) for size in sizes], [change(-size) for size in sizes]
        odd = [(p[0] - m[0]) / (2 * size) for p, m, size in zip(plus, minus, sizes, strict=True)]
        even = [p[0] + m[0] for p, m in zip(plus, minus, strict=True)]
        square = _RATIO**2  # Each extrapolation takes the next even power of h out.
        coarse, fine = (odd[1] - square * odd[0]) / (1 - square), (odd[2] - square * odd[1]) / (1 - square)
        value = (fine - square**2 * coarse) / (1 - square**2)
        not_smooth = np.abs(square**3 * even[0] - (square**2 + square) * even[1] + even[2]) / step
        error = np.abs(value - fine) + not_smooth + _EPS * magnitude / step
        error = np.where(np.isfinite(error), error, np.inf)
        scale = np.maximum(plus[2][1], minus[2][1]) / sizes[2]
        rounding = _EPS * magnitude / step if best is None else best.rounding
        found = Estimate(value, error, scale, rounding)
        best = found if best is None else _better_of(best, found)
        if np.all(best.error <= np.maximum(_GOOD * best.scale, negligible)):
            break
    assert best is not None
    return best


def _better_of(one: Estimate, other: Estimate) -> Estimate:
    # Nothing changes where steps are below the resolution of a function that rounds: no zero if larger steps see more.
    unresolved = (other.scale == 0) & (one.error < 0.01 * one.scale)
    better = (other.error < one.error) & ~unresolved
    pairs = zip(dataclasses.astuple(one), dataclasses.astuple(other), strict=True)
    return Estimate(*(np.where(better, new, old) for old, new in pairs))


def unit_of(x: np.ndarray) -> np.ndarray:
    """The size that each element has; zeros have the typical one."""
    size = np.abs(x)
    nonzero = size[size > 0]
    typical = float(np.sqrt(np.mean((nonzero / nonzero.max()) ** 2)) * nonzero.max()) if nonzero.size else 1.0
    return np.where(size > 0, size, typical)


def steps_for(unit: float, step: float | None) -> list[float]:
    """Absolute steps for an element of this size, in the order in which they are tried."""
    if step is not None:
        return [step * unit]
    smaller = [10.0**-k * unit for k in range(2, 10)]
    larger = [0.1 * unit]
    while larger[-1] < 0.01:
        larger.append(10 * larger[-1])
    return smaller + larger


def change_of(outputs: Arrays, center: Arrays) -> Arrays:
    """What is the same infinity at both places did not change."""
    with np.errstate(invalid="ignore"):
        return [np.where(y == y0, 0.0, y - y0) for y, y0 in zip(outputs, center, strict=True)]


def contract(upstream: Sequence[np.ndarray], change: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Re sum(conj(dy) * change), whose derivative TensorFlow's gradient is, and the size of its terms."""
    terms = [np.real(np.conj(dy) * part).ravel() for dy, part in zip(upstream, change, strict=True)]
    total = np.concatenate(terms) if terms else np.zeros(0)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.sum(total)), np.asarray(np.sqrt(np.sum(total**2)))


def magnitude_of(upstream: Sequence[np.ndarray], center: Arrays) -> np.ndarray:
    """The size of what rounds off, in the contraction; infinities do not."""
    finite = [np.where(np.isfinite(y), y, 0.0) for y in center]
    terms = [np.abs(dy * y).ravel() for dy, y in zip(upstream, finite, strict=True)]
    return np.asarray(np.sqrt(np.sum(np.concatenate(terms) ** 2)) if terms else 0.0)


class Differentiation:
    """Derivatives of sum(dy * f) at one place, by elements of the arguments and along a direction."""

    def __init__(self, problem: Problem, upstream: Arrays, step: float | None) -> None:
        self._problem = problem
        self._upstream = upstream
        self._step = step
        self._center = problem.outputs(problem.values)
        self._magnitude = magnitude_of(upstream, self._center)

    def by_elements(self, argument: int, elements: np.ndarray) -> Estimate:
        """By these elements of one argument; by real and imaginary parts of complex ones."""
        x = self._problem.values[argument]
        units = unit_of(x).ravel()
        found: list[Estimate] = []
        largest = 0.0
        for element in elements:
            steps = steps_for(float(units[element]), self._step)
            parts = []
            for direction in (1.0, 1j) if np.iscomplexobj(x) else (1.0,):
                change = self._along_element(argument, int(element), direction)
                parts.append(derivative(change, self._magnitude, steps, _NEGLIGIBLE * largest))
                largest = max(largest, float(parts[-1].scale))
            value = parts[0].value + 1j * parts[1].value if len(parts) == 2 else parts[0].value
            rest = [np.asarray(sum(getattr(p, name) for p in parts)) for name in ("error", "scale", "rounding")]
            found.append(Estimate(value, *rest))
        columns = zip(*(dataclasses.astuple(estimate) for estimate in found), strict=True)
        return Estimate(*(np.array(column) for column in columns)) if found else Estimate(*[np.zeros(0)] * 4)

    def _along_element(self, argument: int, element: int, direction: complex) -> Change:
        x = self._problem.values[argument]

        def change(t: float) -> tuple[np.ndarray, np.ndarray]:
            moved = x.copy()
            moved.reshape(-1)[element] += t * direction
            return self._change({argument: moved})

        return change

    def along(self, argument: int, direction: np.ndarray) -> Estimate:
        """By all elements of one argument together."""
        x = self._problem.values[argument]
        return derivative(
            lambda t: self._change({argument: x + t * direction}), self._magnitude, steps_for(1.0, self._step)
        )

    def _change(self, moved: dict[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        values = [moved.get(i, value) for i, value in enumerate(self._problem.values)]
        return contract(self._upstream, change_of(self._problem.outputs(values), self._center))


def along_direction(problem: Problem, directions: Arrays, step: float | None) -> list[Estimate]:
    """The derivative of each output along a direction of all arguments."""
    center = problem.outputs(problem.values)
    sizes = [y.size for y in center]

    def change(t: float) -> tuple[np.ndarray, np.ndarray]:
        moved = [x + t * v for x, v in zip(problem.values, directions, strict=True)]
        flat = np.concatenate([part.ravel() for part in change_of(problem.outputs(moved), center)])
        return flat, np.abs(flat)

    flat = np.concatenate([np.abs(np.where(np.isfinite(y), y, 0.0)).ravel() for y in center])
    joint = derivative(change, flat, steps_for(1.0, step))
    splits = np.cumsum(sizes)[:-1]
    return [Estimate(*parts) for parts in zip(*(np.split(a, splits) for a in dataclasses.astuple(joint)), strict=True)]
