"""Recognizes common mistakes in the numbers of a wrong gradient."""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from ._flat_function import Arrays, FlatFunction, to_double_precision, to_tensors
from ._numeric import NumericDerivatives
from ._report import UNCERTAIN, Reference

_CLOSE = 1e-4
# Multiplying the upstream by these shows whether a gradient is linear in it.
FACTORS = (1e3, 1e-3)

NOT_LINEAR = (
    "It is not linear in the upstream, so it is not a vector-Jacobian product. If you want that, as when you clip a "
    "gradient, pass intended_gradient=."
)
TANGENT_NOT_LINEAR = (
    "It is not linear in the tangents, so it has no transpose. A rule of custom_jvp must multiply the tangents by the "
    "Jacobian."
)
_SURROGATE = (
    "straight_through differentiates the surrogate that you pass; to pass a derivative itself, write derivative=."
)
_CONJUGATED = "It would be right with the derivative conjugated. TensorFlow's convention is dx = dy * conj(f')."


def hint_from_numbers(reference: Reference, others: Sequence[Reference], gradient: np.ndarray, is_trusted: bool) -> str:
    """A hint from the numbers alone; unless the reference is trusted, also that the reference itself is uncertain."""
    actual, expected = gradient.ravel()[reference.elements], reference.estimate.value
    if not np.all(np.isfinite(actual)):
        return "The gradient is not finite."
    if not np.all(np.isfinite(expected)):
        return "The function itself is not finite near this argument. Pass other numbers."
    if not np.any(gradient):
        return "The gradient is zero everywhere."
    is_zero = expected == 0
    if np.any(is_zero & (actual != 0)) and np.all(is_zero | (reference.estimate.error > 0.01 * np.abs(expected))):
        return (
            "The numeric derivative is zero, or not known. If the gradient differs from it on purpose, as in a "
            "straight-through estimator, pass like= or intended_gradient=."
        )
    for other in others:
        same_shape = other is not reference and other.shape == reference.shape
        same_shape &= np.array_equal(other.elements, reference.elements)
        if same_shape and _is_close(actual, other.estimate.value) and np.any(other.estimate.value):
            return f"It equals the gradient with respect to '{other.name}'. Are the gradients in the right order?"
    errors, uncertainty = np.abs(actual - expected), reference.estimate.error
    if not is_trusted and not reference.is_known(errors, 100.0):
        return (
            f"{UNCERTAIN} by {float(np.max(uncertainty)):.1e}. Perhaps there is a kink nearby, the function changes "
            "faster than any step, the derivative is lost in the rounding of a larger value, or the function computes "
            "in a lower precision than float64. Pass other numbers, or step and rtol."
        )
    return ""


def hint_from_ratio(reference: Reference, gradient: np.ndarray) -> str:
    """A hint if the gradient is a multiple of the reference."""
    actual, expected = gradient.ravel()[reference.elements], reference.estimate.value
    ratio = np.vdot(expected, actual) / max(np.vdot(expected, expected).real, np.finfo(float).tiny)
    if _is_close(actual, ratio * expected):
        factor = ratio.real if abs(np.imag(ratio)) < _CLOSE else ratio
        if abs(factor + 1) < _CLOSE:
            return "The ratio is -1 everywhere, so the sign is wrong."
        if abs(factor - 1) > _CLOSE:
            return f"The ratio is {factor:.5g} everywhere, so a factor is wrong."
    return ""


def hint_from_upstreams(
    function: FlatFunction,
    intended: FlatFunction,
    upstream: Arrays,
    argument: int,
    reference: Reference,
    gradient: np.ndarray,
) -> str:
    """A hint from the gradients for other upstreams, if the gradient is as wrong in eager mode.

    `intended` is the function whose gradient `function` should have.
    """
    x, elements = function.values[argument], reference.elements
    expected, actual = reference.estimate.value, gradient.ravel()[elements]

    def gradient_of(function: FlatFunction, dys: Arrays) -> np.ndarray:
        found = function.gradients(to_tensors(function.values + dys))[0][argument]
        return (np.zeros_like(x) if found is None else to_double_precision(found)).ravel()[elements]

    def gradient_for(part: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        return gradient_of(function, [part(dy) for dy in upstream])

    if _is_close(actual, expected) or not _is_close(gradient_for(np.array), actual):
        return ""
    if intended is not function and len(upstream) == 1 and upstream[0].shape == reference.shape:
        if _is_close(actual, (upstream[0] * intended.outputs(intended.values)[0]).ravel()[elements]):
            return f"It is the upstream times the value of like, not times its derivative. {_SURROGATE}"
        slope = intended.gradient_function(upstream)
        ones = [(i == argument) * np.ones_like(y) for i, y in enumerate(intended.values)]
        if _is_close(actual, gradient_of(slope, ones)):
            return f"It is the derivative of like's derivative. {_SURROGATE}"
    if np.iscomplexobj(actual) and _is_close(np.conj(actual), expected):
        return _CONJUGATED  # The outputs are real.
    if any(map(np.iscomplexobj, upstream)) and _is_close(np.conj(gradient_for(np.conj)), expected):
        return _CONJUGATED
    if _is_close(gradient_for(functools.partial(np.multiply, 2)), actual):
        return "It does not depend on the upstream. Multiply it by dy."
    for factor in FACTORS:
        if not _is_close(gradient_for(functools.partial(np.multiply, factor)), factor * actual):
            return NOT_LINEAR
    uniform = NumericDerivatives(intended, list(map(np.ones_like, upstream))).partial_derivatives(argument, elements)
    if sum(dy.size for dy in upstream) > 1 and _is_close(gradient_for(np.ones_like), uniform.value):
        return "It is right for an upstream of ones, and wrong for this random one."
    if len(upstream) == 1 and upstream[0].size == actual.size == x.size:
        directions = list(map(np.zeros_like, function.values))
        directions[argument] = upstream[0].reshape(x.shape).astype(x.dtype)
        if _is_close(NumericDerivatives(intended).tangents(directions)[0].value, actual):
            return "It is the Jacobian times the upstream. A gradient needs the transposed Jacobian."
    return ""


def _is_close(actual: np.ndarray, expected: np.ndarray) -> bool:
    return actual.size > 0 and bool(np.max(np.abs(actual - expected)) <= _CLOSE * np.max(np.abs(expected)))
