"""Checks of the arrays that a user's Python function returns."""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import text
from tf_cg_ops._src.external.arguments import Arguments

_as_numpy = functools.cache(lambda dtype: dtype.as_numpy_dtype)  # The property takes longer than the copy below.


def to_array(subject: str, result: Any, noun: str, dtype: tf.DType) -> np.ndarray:
    """A copy of a result in this dtype."""
    try:
        array = np.asarray(result)
    except ValueError:  # Lists of different lengths.
        array = np.asarray(None)
    kind = array.dtype.kind
    if kind in "OSUmM":
        raise ValueError(
            f"{subject} returned a {noun} that is not an array of numbers; expected numbers, got "
            f"{text.describe(result)}. Return NumPy arrays."
        )
    if kind == "c" and not dtype.is_complex:
        raise ValueError(
            f"{subject} returned a complex {noun}; expected {dtype.name}, got {array.dtype.name}. Return its "
            "real part, or make the dtype of output complex."
        )
    return array.astype(_as_numpy(dtype))  # A copy: the function may reuse its memory.


def check_shape(subject: str, noun: str, got: tuple[int, ...], expected: tuple[int | None, ...], hint: str) -> None:
    """Raises ValueError if a result has another shape than this, in which None stands for any size."""
    if got != expected and not tf.TensorShape(expected).is_compatible_with(got):
        raise ValueError(
            f"{subject} returned a {noun} of the wrong shape; expected {tf.TensorShape(expected)}, got "
            f"{tf.TensorShape(got)}. {hint}"
        )


def not_none(subject: str, gradient: Any, noun: str) -> Any:
    """The gradient; ValueError if it is None."""
    if gradient is None:
        raise ValueError(
            f"{subject} returned no {noun}; expected an array, got None. Name an input that has no gradient in "
            "nondiff_argnames."
        )
    return gradient


def one_for_each_input(subject: str, gradients: Any, arguments: Arguments) -> list[Any]:
    """The gradients as a list, one for each input that has one."""
    expected = len(arguments.x)
    is_list = isinstance(gradients, (tuple, list))
    # With one input, a list may be the gradient itself.
    if expected == 1 and not (is_list and len(gradients) == 1 and isinstance(gradients[0], np.ndarray)):
        return [gradients]
    if expected == 0 and gradients is None:
        return []
    if not is_list or len(gradients) != expected:
        got = str(len(gradients)) if is_list else text.describe_type(gradients)
        raise ValueError(
            f"{subject} returned a wrong number of gradients; expected {expected} (one for each differentiable input: "
            f"{text.quoted(spec.name for spec in arguments.x)}), got {got}. Name inputs that have no gradient in "
            "nondiff_argnames."
        )
    return list(gradients)
