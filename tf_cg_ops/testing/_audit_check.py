"""The gradient of one place against numeric differentiation of what it computes, at the numbers of a recorded run.

Everything is computed in double precision, the rule as well. TensorFlow's own gradient of the same ops stands in for
numeric derivatives by single elements, but only if it agrees with the numeric derivative along a random direction of
all elements: ops can have a wrong gradient, or none.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from . import _hints
from ._audit_record import API, Place, Run
from ._audit_replay import Gradients, PlaceFunction, Replay
from ._flat_function import Arrays, FlatFunction, to_double_precision, to_tensors
from ._numeric import Estimate, changes_of, finite_part, norm, typical_size
from ._references import RandomNumbers
from ._report import Reference

# By the lowest dtype that a place needs: the relative tolerance, the step relative to each element, and the rounding.
_PRECISION: dict[tf.DType, tuple[float, float, float]] = {
    tf.float64: (1e-4, 1e-6, 2.3e-16),
    tf.float32: (2e-3, 1e-2, 1.2e-7),
    tf.half: (3e-2, 0.1, 1e-3),
    tf.bfloat16: (6e-2, 0.1, 8e-3),
}
# The relative tolerance if constants, such as 0.1, were rounded to these dtypes.
_ROUNDED_CONSTANTS = {tf.half: 3e-3, tf.bfloat16: 3e-2}
# Roundings of the value that may show in its changes.
_ROUNDINGS = 64
# How far the slopes on both sides may differ. More shows a kink.
_MAX_BEND = 1e-2
# How much rounding may hide, relative to the terms.
_MAX_NOISE = 0.1
# An error may be so much of the tolerance at the largest element, for small elements of the same input.
_SHARED_TOLERANCE = 1e-2
# From this relative error on, the rounding of the model's dtypes is mentioned.
_MENTIONED_ROUNDING = 0.05
OTHERS_ARE_WRONG = "It is right for the upstream gradient of this run, and wrong for others."

State = Literal["right", "own", "uncertain", "wrong"]  # The later one counts if two upstream gradients disagree.
_STATES = ("right", "own", "uncertain", "wrong")


@dataclasses.dataclass(frozen=True)
class InputCheck:
    """What was found for one input.

    Attributes:
      name: The input.
      state: "right", "wrong", "uncertain" (there is a kink, or rounding hides the derivative), or "own": the gradient
        equals TensorFlow's own gradient of the same ops, but not the numeric one.
      size: How many elements there are.
      checked: How many elements were compared one by one.
      together: How many others were moved together, in a random direction.
      error: The largest error, relative to the largest that passes.
      detail: The likely mistake.
    """

    name: str
    state: State
    size: int
    checked: int = 0
    together: int = 0
    error: float = 0.0
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Findings:
    """What one run of a place shows.

    Attributes:
      value_norm, upstream_norm, gradient_norm: Of all results, of what arrived, and of what left.
      inputs: One entry for each input that has a gradient; none if the place cannot be checked.
      without_gradient: The names of inputs that the value depends on, and that the rule has no gradient for.
      rounding: A sentence if the rounding of the model's dtypes matters.
      reason: Why the rule cannot be checked; empty if it can.
    """

    value_norm: float
    upstream_norm: float
    gradient_norm: float
    inputs: list[InputCheck] = dataclasses.field(default_factory=list)
    without_gradient: list[str] = dataclasses.field(default_factory=list)
    rounding: str = ""
    reason: str = ""


@np.errstate(all="ignore")  # What is not finite is noticed.
def check(name: str, place: Place, run: Run, like: Callable[..., Any] | None, max_elements: int) -> Findings:
    """Compares the gradient at the numbers of one run, for its upstream gradient and for a random one."""
    replay = Replay(place, run)
    results = replay.results
    arrived = [to_double_precision(tf.constant(dy)) for dy in run.upstream[: len(results)]]
    value_norm, upstream_norm = _norm(results), _norm(arrived)
    if place.reason:
        return Findings(value_norm, upstream_norm, place.gradient_norm)
    recorded = replay.rule(arrived)
    norms = value_norm, upstream_norm, _norm([g for g in recorded if g is not None])
    if replay.draws():
        return Findings(*norms, reason="its rule draws random numbers")
    replay.leave_out(recorded)
    if not replay.values or any(np.any(np.isnan(y)) for y in results):
        return Findings(*norms, without_gradient=replay.without_gradient)
    # An infinite value, such as the -inf of a mask, has no derivative.
    finite = [np.isfinite(y) for y in results]
    upstream = [np.where(mask, dy, 0) for mask, dy in zip(finite, arrived, strict=True)]
    function = intended = replay.function(upstream)
    if like is not None:
        intended = dataclasses.replace(function, call=replay.intended(like))
        _check_like(name, intended, results)
    inputs: list[InputCheck] = []
    if 0 < _norm(upstream) < np.inf:
        inputs = _Checker(replay, function, intended, upstream, max_elements).inputs()
    if all(one.state != "wrong" for one in inputs):
        # Zeros in the upstream hide errors, and so does an output that is small beside another one.
        numbers, pairs = RandomNumbers(0), zip(results, finite, strict=True)
        random = [np.where(mask, numbers.draw_like(y) / typical_size(y[mask]), 0) for y, mask in pairs]
        others = _Checker(replay, function, intended, random, max_elements).inputs()
        inputs = [_worse(*pair) for pair in zip(inputs, others, strict=True)] if inputs else others
    rounding = ""
    if all(np.all(mask) for mask in finite):
        rounding = _rounding(place, [g for g in recorded if g is not None], function.rule(upstream))
    reason = ""
    if rounding and (replay.low_in_value or replay.low_in_rule) and any(one.state == "wrong" for one in inputs):
        reason = "computed in float64, its gradient is another one, because an op or a residual has no float64"
    return Findings(*norms, inputs, replay.without_gradient, rounding, reason)


def _check_like(name: str, like: FlatFunction, results: Arrays) -> None:
    """ValueError unless a function in `like` returns values of the right shapes."""
    got, expected = [list(y.shape) for y in like.outputs(like.values)], [list(y.shape) for y in results]
    if got != expected:
        raise ValueError(f"{API}: like[{name!r}] must return the shapes of the value, {expected}, got {got}.")


def _own_gradients(function: FlatFunction, finite: Arrays, upstream: Arrays) -> Gradients:
    """TensorFlow's own gradient of a function, None where there is none."""
    try:
        _, _, found = FlatFunction.gradients(function, to_tensors(function.values), to_tensors(upstream))
    # An op has no gradient, or none for its attributes, or one that does not run.
    except (LookupError, NotImplementedError, TypeError, ValueError, tf.errors.OpError):
        return [None] * len(function.values)
    return [None if g is None else np.where(m, to_double_precision(g), 0) for g, m in zip(found, finite, strict=True)]


def _worse(first: InputCheck, other: InputCheck) -> InputCheck:
    """The finding for the upstream gradient of the run, unless the one for a random upstream gradient is worse."""
    if _STATES.index(other.state) <= _STATES.index(first.state):
        return first
    has_hint = not other.detail.startswith(other.name)
    if other.state == "wrong" and first.state == "right" and not has_hint:
        return dataclasses.replace(other, detail=OTHERS_ARE_WRONG)
    return other


def _rounding(place: Place, recorded: Arrays, exact: Arrays) -> str:
    """A sentence if the gradient in the model's dtypes is far from the one in double precision."""
    dtypes = {t.dtype.base_dtype.real_dtype for t in place.inputs if t.dtype.is_floating or t.dtype.is_complex}
    error, size = _norm([g - e for g, e in zip(recorded, exact, strict=True)]), _norm(exact)
    if not dtypes or not error > _MENTIONED_ROUNDING * size or not size < math.inf:
        return ""
    dtype = min(dtypes, key=lambda dtype: dtype.size).name
    return f"Rounding in {dtype} changes it by {100 * error / size:.0f} %." if size else f"Without {dtype}, it is zero."


def _norm(arrays: Arrays) -> float:
    return float(norm(np.concatenate([np.abs(array).ravel() for array in arrays]))) if arrays else 0.0


@dataclasses.dataclass(frozen=True)
class _Slope:
    """A numeric derivative along a direction.

    Attributes:
      value: The derivative.
      bend: How much the slopes on both sides differ.
      noise: Its error through rounding.
    """

    value: float
    bend: float
    noise: float

    def is_known(self, size: float) -> bool:
        """Whether it can be compared with a gradient whose terms have this size."""
        size = max(size, abs(self.value))
        if not self.bend <= _MAX_BEND * size + self.noise:  # There is a kink, or what is not finite.
            return False
        return self.noise <= _MAX_NOISE * size or (size <= self.noise and self.value == 0)


_UNKNOWN = _Slope(math.nan, math.inf, 0.0)


class _Checker:
    """Compares the rule of a place with numeric differentiation, for one upstream gradient."""

    def __init__(
        self,
        replay: Replay,
        function: PlaceFunction,
        intended: FlatFunction,
        upstream: Arrays,
        max_elements: int,
    ) -> None:
        self._finite = replay.finite
        self._upstream = upstream
        self._max_elements = max_elements
        self._gradients = function.rule(upstream)
        self._own = _own_gradients(intended, replay.finite, upstream)
        _, self._step, rounding = _precision(replay.low_in_value)
        rounded = (_ROUNDED_CONSTANTS[dtype] for dtype in replay.rounded_constants)
        self._rtol = max([_precision(replay.low_in_value | replay.low_in_rule)[0], *rounded])
        # The terms of a small element can be as large as the largest element.
        self._shared = 1.0 if replay.rounded_constants else _SHARED_TOLERANCE
        self._function = function
        self._intended = dataclasses.replace(intended, step=None if self._step < 1e-3 else self._step)
        self._center = intended.outputs(intended.values)
        pairs = zip(upstream, finite_part(self._center), strict=True)
        self._noise = _ROUNDINGS * rounding * _norm([dy * y for dy, y in pairs])
        self._numbers = RandomNumbers(1)  # Not the numbers of the random upstream gradient.

    def inputs(self) -> list[InputCheck]:
        """What is found for each input."""
        return [self._input(i) for i in range(len(self._gradients))]

    def _input(self, i: int) -> InputCheck:
        name, gradient, own = self._function.names[i], self._gradients[i], self._own[i]
        size = gradient.size
        if not size:
            return InputCheck(name, "right", size)
        if own is not None and not np.all(np.isfinite(own)):
            own = None
        if self._reads_one_triangle(i):
            return self._symmetric(i)
        failure = None
        for direction, step in self._directions(i):
            leaves_out = np.any((direction == 0) & self._finite[i])
            if not np.any(direction) or (failure and leaves_out):  # It would not see what has failed.
                continue
            terms = max(_norm([gradient * direction]), 0.0 if own is None else _norm([own * direction]))
            slope = self._known_slope(i, direction, step, terms)
            if slope is None:
                continue
            along = self._along(i, direction, slope, terms, "a random direction")
            if own is not None and self._error_along(own, direction, slope, terms) <= 1:
                return self._against_own(i, own, along if along.state == "wrong" else None)
            if along.state == "right":
                return along
            failure = failure or along
        if own is not None and np.any(own) and not np.any(self._differ(gradient, own)):
            return InputCheck(name, "own", size)
        elements = self._numbers.choose_elements(size, self._max_elements)
        known, numeric = self._by_elements(i, elements)
        elements, numeric = elements[known], numeric[known]
        if np.any(self._differ(gradient.ravel()[elements], numeric)):
            return self._wrong(i, elements, numeric, elements, numeric)
        if elements.size and size <= self._max_elements:
            return InputCheck(name, "right", size, checked=elements.size)
        return failure or InputCheck(name, "uncertain", size)

    def _along(self, i: int, direction: np.ndarray, slope: "_Slope", terms: float, where: str) -> InputCheck:
        """Compares the gradient with a slope along a direction."""
        name, gradient = self._function.names[i], self._gradients[i]
        error, size = self._error_along(gradient, direction, slope, terms), gradient.size
        if error <= 1:
            return InputCheck(name, "right", size, together=size, error=error)
        detail = f"{name}, along {where}: {_got(_along(gradient, direction), slope.value)}"
        return InputCheck(name, "wrong", size, together=size, error=error, detail=detail)

    def _error_along(self, gradient: np.ndarray, direction: np.ndarray, slope: "_Slope", terms: float) -> float:
        """The error of a gradient along a direction, relative to the largest that passes."""
        # A few kinks among many elements bend the slope a little.
        allowed = self._rtol * max(terms, abs(slope.value)) + slope.noise + slope.bend
        return abs(_along(gradient, direction) - slope.value) / allowed if allowed else 0.0

    def _against_own(self, i: int, own: np.ndarray, failure: InputCheck | None) -> InputCheck:
        """Compares all elements with TensorFlow's own gradient, and those that differ with the numeric derivative.

        If none of these derivatives is known, `failure` counts: what was found along the direction.
        """
        gradient, name, size = self._gradients[i], self._function.names[i], self._gradients[i].size
        differ = np.flatnonzero(self._differ(gradient, own))
        if not differ.size:
            return InputCheck(name, "right", size, checked=size)
        worst = differ[np.argsort(-np.abs(gradient - own).ravel()[differ])][: self._max_elements]
        known, numeric = self._by_elements(i, worst)
        worst, numeric = worst[known], numeric[known]
        is_wrong = self._differ(gradient.ravel()[worst], numeric, float(np.max(np.abs(own))))
        if np.any(is_wrong):
            sample = self._numbers.choose_elements(size, self._max_elements)
            return self._wrong(i, worst[is_wrong], numeric[is_wrong], sample, own.ravel()[sample], differ.size)
        if failure:
            return failure
        checked = size - differ.size + worst.size  # The others are at a kink.
        return InputCheck(name, "right" if checked else "uncertain", size, checked=checked)

    def _directions(self, i: int) -> Iterator[tuple[np.ndarray, float]]:
        """Directions of all elements, and steps, in the order in which they are tried."""
        x, finite = self._function.values[i], self._finite[i]

        def draw(min_move: float) -> np.ndarray:
            return self._numbers.draw_direction(x, min_move) * finite

        smaller, larger = (0.01, 100.0) if self._step < 1e-3 else (0.3, 3.0)
        yield draw(1.0), self._step
        # Zeros can be kinks, and a small element can be near the end of the domain.
        yield draw(0.0) * (x != 0), self._step
        yield draw(1.0), smaller * self._step
        yield draw(0.0) * (x != 0), larger * self._step
        yield draw(1.0), smaller**2 * self._step

    def _reads_one_triangle(self, i: int) -> bool:
        """Whether an input is a symmetric matrix of which only one triangle is read, as `cholesky` does."""
        x = self._function.values[i]
        is_square = x.ndim > 1 and x.shape[-1] == x.shape[-2] > 1
        if not is_square or not np.array_equal(x, np.swapaxes(x, -1, -2).conj()):
            return False
        direction = self._numbers.draw_direction(x, 1.0) * self._finite[i]
        triangles = (np.triu(direction, 1), np.tril(direction, -1))
        slopes = [self._slope(i, triangle, self._step) for triangle in triangles]
        return sum(slope.value == 0 and slope.bend == 0 for slope in slopes) == 1

    def _symmetric(self, i: int) -> InputCheck:
        """Compares along directions that keep a matrix symmetric."""
        name, gradient = self._function.names[i], self._gradients[i]
        for direction, step in self._directions(i):
            direction = (direction + np.swapaxes(direction, -1, -2).conj()) / 2
            terms = _norm([gradient * direction])
            slope = self._known_slope(i, direction, step, terms)
            if slope is not None:
                return self._along(i, direction, slope, terms, "a random symmetric direction")
        return InputCheck(name, "uncertain", gradient.size)

    def _known_slope(self, i: int, direction: np.ndarray, step: float, terms: float) -> "_Slope | None":
        """The derivative along a direction, or None if it cannot be compared with a gradient of this size."""
        slope = self._slope(i, direction, step)
        if slope.is_known(terms):
            return slope
        finer = self._slope(i, direction, 0.1 * step)
        # Where a derivative vanishes, the curvature shows, which a smaller step removes; a kink stays.
        is_smooth = finer.bend <= 0.2 * slope.bend < math.inf
        return finer if is_smooth and finer.noise <= _MAX_NOISE * max(terms, abs(finer.value)) else None

    def _slope(self, i: int, direction: np.ndarray, step: float) -> "_Slope":
        """The derivative of Re sum(conj(dy) * f) by input `i`, along a direction."""
        net = []
        for t in (step, -step):
            values = list(self._intended.values)
            values[i] = values[i] + t * direction
            try:
                outputs = self._intended.outputs(values)
            except tf.errors.OpError:  # Outside of the domain.
                return _UNKNOWN
            if [y.shape for y in outputs] != [y.shape for y in self._center]:
                return _UNKNOWN
            pairs = zip(self._upstream, changes_of(outputs, self._center), strict=True)
            net.append(sum(float(np.sum(np.real(np.conj(dy) * change))) for dy, change in pairs))
        right, left = net[0] / step, -net[1] / step
        return _Slope((right + left) / 2, abs(right - left), self._noise / step)

    def _by_elements(self, i: int, elements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whether the numeric derivative by each of these elements is known, and the derivative."""
        x, gradient = self._function.values[i], self._gradients[i].ravel()
        known, found = self._finite[i].ravel()[elements], np.zeros(elements.size, x.dtype)
        typical = typical_size(x)
        for k, element in enumerate(elements):
            move = max(abs(x.ravel()[element]), typical)
            for part in (1.0, 1j) if np.iscomplexobj(x) else (1.0,):
                direction = np.zeros_like(x)
                direction.reshape(-1)[element] = part * move
                slope = self._known_slope(i, direction, self._step, abs(gradient[element]) * move)
                if slope is None:
                    known[k] = False
                elif abs(slope.value) > slope.noise:
                    found[k] += part * slope.value / move
        return known, found

    def _differ(self, actual: np.ndarray, expected: np.ndarray, largest: float | None = None) -> np.ndarray:
        """Where two gradients are not equal up to the tolerance."""
        return ~(np.abs(actual - expected) <= self._allowed(expected, largest))

    def _allowed(self, expected: np.ndarray, largest: float | None = None) -> np.ndarray:
        """The errors that pass, by element."""
        if largest is None:
            largest = float(np.max(np.abs(expected), initial=0.0))
        return self._rtol * (np.abs(expected) + self._shared * largest)

    def _wrong(
        self, i: int, wrong: np.ndarray, numeric: np.ndarray, sample: np.ndarray, expected: np.ndarray, count: int = 0
    ) -> InputCheck:
        """The finding for a gradient with wrong elements. The hint is from a sample of all elements."""
        gradient, name = self._gradients[i], self._function.names[i]
        errors = np.abs(gradient.ravel()[wrong] - numeric)
        worst = int(np.argmax(errors))
        index = [int(k) for k in np.unravel_index(wrong[worst], gradient.shape)]
        detail = f"{name}{f' at {index}' if index else ''}: {_got(gradient[tuple(index)], numeric[worst])}"
        if count > 1:
            detail += f" {count:,} of {gradient.size:,} elements differ."
        hint = ""
        if np.any(self._differ(gradient.ravel()[sample], expected)):
            hint = self._hint(i, sample, expected)
        checked = gradient.size if count else sample.size
        error = float(np.max(np.nan_to_num(errors / self._allowed(numeric), nan=np.inf)))
        return InputCheck(name, "wrong", gradient.size, checked, gradient.size - checked, error, hint or detail)

    def _hint(self, i: int, elements: np.ndarray, expected: np.ndarray) -> str:
        zeros = np.zeros(elements.size)

        def reference(j: int, values: np.ndarray) -> Reference:
            shape, dtype = self._gradients[j].shape, tf.as_dtype(self._gradients[j].dtype)
            estimate = Estimate(values, zeros, np.abs(values), zeros, zeros)
            return Reference(self._function.names[j], shape, dtype, "", elements, estimate)

        pairs = ((j, g) for j, g in enumerate(self._own) if j != i and g is not None)
        others = [reference(j, g.ravel()[elements]) for j, g in pairs if g.shape == self._gradients[i].shape]
        wrong, gradient = reference(i, expected), self._gradients[i]
        return (
            _hints.hint_from_numbers(wrong, others, gradient, is_trusted=True)
            or _hints.hint_from_ratio(wrong, gradient)
            or _hints.hint_from_upstreams(self._function, self._intended, self._upstream, i, wrong, gradient)
        )


def _along(gradient: np.ndarray, direction: np.ndarray) -> float:
    return float(np.sum(np.real(np.conj(gradient) * direction)))


def _got(got: complex, expected: complex) -> str:
    return f"got {got:.6g}, expected {expected:.6g}."


def _precision(low: set[tf.DType]) -> tuple[float, float, float]:
    """The tolerance, step and rounding for the lowest of these dtypes."""
    return max((_PRECISION[dtype.real_dtype] for dtype in low), default=_PRECISION[tf.float64])
