"""The expected gradients and tangents, from numeric differentiation or from the user."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import text

from ._flat_function import API, Arguments, Arrays, FlatFunction, has_derivative, numbered, to_tensors
from ._numeric import Estimate, NumericDerivatives, element_sizes, typical_size
from ._report import Reference, exact_reference

_NUMERIC = "numeric differentiation"
# The smallest move of an element along a direction, relative to the typical element.
_MIN_MOVE = 1e-2
# The error, relative to the largest terms, at which a derivative is accurate enough.
_ACCURATE = 1e-7


class RandomNumbers:
    """Draws numbers of similar size and any sign or phase. None is so small that it would hide an error."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rng = np.random.default_rng(seed)

    def draw_like(self, array: np.ndarray) -> np.ndarray:
        """Numbers of the shape and dtype of the array."""
        size = self._rng.uniform(0.5, 1.5, array.shape)
        if np.iscomplexobj(array):
            return np.asarray(size * np.exp(2j * np.pi * self._rng.uniform(size=array.shape)), array.dtype)
        return np.asarray(size * self._rng.choice([-1.0, 1.0], array.shape), array.dtype)

    def draw_direction(self, x: np.ndarray, min_move: float) -> np.ndarray:
        """A direction. Each element moves by about its size, and at least by `min_move` times the typical size."""
        return self.draw_like(x) * np.maximum(element_sizes(x), min_move * typical_size(x))

    def move_towards_zero(self, x: np.ndarray) -> np.ndarray:
        """Other arguments, with each element up to 5 % nearer to zero."""
        return np.asarray(x * (1.0 - 0.05 * self._rng.uniform(size=x.shape)), x.dtype)

    def choose_elements(self, size: int, most: int) -> np.ndarray:
        """The indices of the elements to check, the same for arguments of the same size."""
        if size <= most:
            return np.arange(size)
        return np.sort(np.random.default_rng(self._seed).choice(size, most, replace=False))


def numeric_gradients(
    function: FlatFunction, upstream: Arrays, numbers: RandomNumbers, max_elements: int
) -> list[Reference]:
    """One reference for each argument. If it leaves out elements, it also has a random direction of all of them."""
    numeric = NumericDerivatives(function, upstream)
    references = []
    for i, (name, x) in enumerate(zip(function.names, function.values, strict=True)):
        elements = numbers.choose_elements(x.size, max_elements)
        direction, derivative = None, None
        if elements.size < x.size:
            differentiate = functools.partial(numeric.directional_derivative, i)
            (direction,), (derivative,) = _choose_directions(numbers, [x], differentiate)
        estimate = numeric.partial_derivatives(i, elements)
        references.append(
            Reference(name, x.shape, tf.as_dtype(x.dtype), _NUMERIC, elements, estimate, direction, derivative)
        )
    return references


def numeric_tangents(function: FlatFunction, numbers: RandomNumbers) -> tuple[Arrays, list[Reference]]:
    """Directions of the arguments, and one reference for each output."""
    values = list(filter(has_derivative, function.call(to_tensors(function.values))))
    directions, estimates = _choose_directions(numbers, function.values, NumericDerivatives(function).tangents)
    return directions, [
        Reference(name, tuple(value.shape), value.dtype, _NUMERIC, np.arange(estimate.value.size), estimate)
        for name, value, estimate in zip(numbered("value", len(values)), values, estimates, strict=True)
    ]


def _choose_directions(
    numbers: RandomNumbers, values: Arrays, differentiate: Callable[[Arrays], list[Estimate]]
) -> tuple[Arrays, list[Estimate]]:
    """Random directions and the derivatives along them.

    Small elements move far enough to be seen, unless the derivatives are more accurate if they move only by their own
    size: a small move neither leaves the domain of the function nor crosses a kink.
    """
    candidates = []
    for min_move in (_MIN_MOVE, 0.0):
        directions = [numbers.draw_direction(x, min_move) for x in values]
        estimates = differentiate(directions)
        error, scale = (max(np.max(getattr(e, part), initial=0.0) for e in estimates) for part in ("error", "scale"))
        candidates.append((error, directions, estimates))
        if error <= _ACCURATE * scale:
            break
    _, directions, estimates = min(candidates, key=lambda candidate: candidate[0])
    return directions, estimates


def intended_gradients(
    function_name: str, function: FlatFunction, arguments: Arguments, intended: Callable[..., Any], upstream: Arrays
) -> list[Reference]:
    """One reference for each argument, from the user's NumPy function."""
    args, kwargs = arguments.replace_tensors(function.values)
    gradients = tf.nest.flatten(intended(upstream[0] if len(upstream) == 1 else upstream, *args, **kwargs))
    expected = [list(x.shape) for x in function.values]
    got = [None if gradient is None else list(np.shape(gradient)) for gradient in gradients]
    if len(got) != len(expected) or any(g not in (None, e) for g, e in zip(got, expected, strict=True)):
        raise ValueError(
            f"{API}: intended_gradient must return arrays of the shapes {expected} (one for each of "
            f"{text.quoted(function.names)}) for '{function_name}', got {got}. Return None for zeros."
        )
    return [
        exact_reference(name, np.zeros_like(x) if g is None else np.asarray(g, x.dtype), x.dtype, "intended_gradient")
        for name, g, x in zip(function.names, gradients, function.values, strict=True)
    ]
