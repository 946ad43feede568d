"""What a wrong gradient is instead: the mistakes that its numbers give away."""

from collections.abc import Sequence

import numpy as np

from . import _errors
from ._numeric import Differentiation, along_direction
from ._problem import Arrays, Problem, tensors_of, wide, zeros_for_none
from ._report import Reference

_CLOSE = 1e-4
# Multiples of the upstream at which a gradient that is not linear in it shows.
FACTORS = (1e3, 1e-3)


def from_numbers(reference: Reference, others: Sequence[Reference], gradient: np.ndarray, is_known: bool) -> str:
    """What the numbers alone say, and whether the reference is known well enough, if that is not clear already."""
    actual, expected = gradient.ravel()[reference.elements], reference.estimate.value
    if not np.all(np.isfinite(actual)):
        return "The gradient is not finite."
    if not np.all(np.isfinite(expected)):
        return "The function itself is not finite around the argument: pass other numbers."
    if not np.any(actual):
        return "The gradient is zero everywhere."
    flat = expected == 0
    if np.any(flat & (actual != 0)) and np.all(flat | (reference.estimate.error > 0.01 * np.abs(expected))):
        return (
            "The numeric derivative is zero wherever it is known: if another gradient is meant, as that of a "
            "straight-through estimator is, declare it by like= or intended_gradient=."
        )
    for other in others:
        same_shape = other is not reference and other.shape == reference.shape
        if same_shape and _equal(actual, other.estimate.value) and np.any(other.estimate.value):
            return f"It is the gradient with respect to '{other.name}': the gradients may be in the wrong order."
    differ = np.abs(actual - expected)
    if not is_known and np.any((differ > 1e-7 * reference.estimate.scale) & (differ < 100 * reference.estimate.error)):
        worst = float(np.max(reference.estimate.error))
        return _errors.HINT_UNCERTAIN.format(error=f"{worst:.1e}")
    return ""


def from_ratio(reference: Reference, gradient: np.ndarray) -> str:
    """What the ratio says."""
    actual, expected = gradient.ravel()[reference.elements], reference.estimate.value
    ratio = np.vdot(expected, actual) / max(np.vdot(expected, expected).real, np.finfo(float).tiny)
    if _equal(actual, ratio * expected):
        number = ratio.real if abs(np.imag(ratio)) < _CLOSE else ratio
        if abs(number - 1) > _CLOSE:
            return (
                ("The ratio is -1 everywhere: the sign is wrong.")
                if abs(number + 1) < _CLOSE
                else _errors.HINT_FACTOR.format(factor=f"{number:.5g}")
            )
    return ""


def from_upstreams(
    problem: Problem, meant: Problem, upstream: Arrays, argument: int, reference: Reference, gradient: np.ndarray
) -> str:
    """What the gradient is for other upstreams, in eager mode, if it is as wrong there."""

    def of(dys: Arrays) -> np.ndarray:
        _, _, found = problem.gradients(tensors_of(problem.values), tensors_of(dys))
        return wide(zeros_for_none(found, tensors_of(problem.values))[argument]).ravel()[reference.elements]

    expected, actual = reference.estimate.value, gradient.ravel()[reference.elements]
    if _equal(actual, expected) or not _equal(of(upstream), actual):
        return ""
    if np.iscomplexobj(actual) and _equal(np.conj(actual), expected):
        return _errors.HINT_CONJ  # The outputs are real.
    if any(np.iscomplexobj(dy) for dy in upstream) and _equal(np.conj(of([np.conj(dy) for dy in upstream])), expected):
        return _errors.HINT_CONJ
    if _equal(of([2 * dy for dy in upstream]), actual):
        return "It does not depend on the upstream: multiply by dy."
    ones = [np.ones_like(dy) for dy in upstream]
    uniform = Differentiation(meant, ones).by_elements(argument, reference.elements)
    if sum(dy.size for dy in upstream) > 1 and _equal(of(ones), uniform.value):
        return "It is right for a uniform upstream only: it is not a vector-Jacobian product."
    if len(upstream) == 1 and upstream[0].size == actual.size and reference.direction is None:
        directions = [np.zeros_like(x) for x in problem.values]
        directions[argument] = upstream[0].reshape(reference.shape).astype(problem.values[argument].dtype)
        if _equal(along_direction(meant, directions)[0].value, actual):
            return "It is the Jacobian times the upstream: the Jacobian is transposed."
    if any(not _equal(of([factor * dy for dy in upstream]), factor * actual) for factor in FACTORS):
        return _errors.HINT_NOT_LINEAR
    return ""


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.size > 0 and bool(np.max(np.abs(one - other)) <= _CLOSE * np.max(np.abs(other)))
