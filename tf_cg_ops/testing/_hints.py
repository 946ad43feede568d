"""Recognizes common mistakes in the numbers of a wrong gradient."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ._flat_function import Arrays, FlatFunction, replace_none_by_zeros, to_double_precision, to_tensors
from ._numeric import NumericDerivatives, directional_derivatives
from ._report import Reference

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
    if not is_trusted and np.any((errors > 1e-7 * reference.estimate.scale) & (errors < 100 * uncertainty)):
        return (
            f"The numeric derivative itself is uncertain by {float(np.max(uncertainty)):.1e}. Perhaps there is a kink "
            "nearby, the derivative is lost in the rounding of a larger value, or the function computes in a lower "
            "precision than float64. Pass other numbers, or step and rtol."
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

    def gradient_for(dys: Arrays) -> np.ndarray:
        _, _, gradients = function.gradients(to_tensors(function.values), to_tensors(dys))
        gradient = replace_none_by_zeros(gradients, to_tensors(function.values))[argument]
        return to_double_precision(gradient).ravel()[reference.elements]

    expected, actual = reference.estimate.value, gradient.ravel()[reference.elements]
    if _is_close(actual, expected) or not _is_close(gradient_for(upstream), actual):
        return ""
    if intended is not function and len(upstream) == 1 and upstream[0].shape == reference.shape:
        text = _hint_from_surrogate(intended, upstream[0], argument, actual, reference.elements)
        if text:
            return text
    if np.iscomplexobj(actual) and _is_close(np.conj(actual), expected):
        return _CONJUGATED  # The outputs are real.
    is_complex = any(np.iscomplexobj(dy) for dy in upstream)
    if is_complex and _is_close(np.conj(gradient_for([np.conj(dy) for dy in upstream])), expected):
        return _CONJUGATED
    if _is_close(gradient_for([2 * dy for dy in upstream]), actual):
        return "It does not depend on the upstream. Multiply it by dy."
    if any(not _is_close(gradient_for([factor * dy for dy in upstream]), factor * actual) for factor in FACTORS):
        return NOT_LINEAR
    ones = [np.ones_like(dy) for dy in upstream]
    uniform = NumericDerivatives(intended, ones).partial_derivatives(argument, reference.elements)
    if sum(dy.size for dy in upstream) > 1 and _is_close(gradient_for(ones), uniform.value):
        return "It is right only for a uniform upstream, so it is not a vector-Jacobian product."
    if len(upstream) == 1 and upstream[0].size == actual.size == np.prod(reference.shape):
        directions = [np.zeros_like(x) for x in function.values]
        directions[argument] = upstream[0].reshape(reference.shape).astype(function.values[argument].dtype)
        if _is_close(directional_derivatives(intended, directions)[0].value, actual):
            return "It is the Jacobian times the upstream. A gradient needs the transposed Jacobian."
    return ""


def _hint_from_surrogate(
    like: FlatFunction, upstream: np.ndarray, argument: int, actual: np.ndarray, elements: np.ndarray
) -> str:
    """A hint if the function has the value of `like` as its derivative, or the derivative of its derivative."""
    tensors, dy = to_tensors(like.values), to_tensors([upstream])
    with tf.GradientTape() as tape:
        tape.watch(tensors[argument])
        (value,), _, gradients = like.gradients(tensors, dy)
        slope = replace_none_by_zeros(gradients, tensors)[argument]
    if _is_close(actual, to_double_precision(dy[0] * value).ravel()[elements]):
        return (
            "It is the upstream times the value of like, not times its derivative. Pass straight_through the function "
            "as surrogate, or its derivative as derivative=."
        )
    second = tape.gradient(slope, tensors[argument], unconnected_gradients="zero")
    if _is_close(actual, to_double_precision(second).ravel()[elements]):
        return (
            "It is the derivative of like's derivative. straight_through differentiates the surrogate that you pass; "
            "to pass the derivative itself, write derivative=."
        )
    return ""


def _is_close(actual: np.ndarray, expected: np.ndarray) -> bool:
    return actual.size > 0 and bool(np.max(np.abs(actual - expected)) <= _CLOSE * np.max(np.abs(expected)))
