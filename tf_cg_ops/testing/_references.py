"""What gradients and tangents should be: by numeric differentiation, or as the user says."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from . import _errors
from ._numeric import Differentiation, Estimate, along_direction, typical_of, unit_of
from ._problem import API, Arguments, Arrays, Problem, tensors_of
from ._report import Reference, exactly

_NUMERIC = "numeric differentiation"
# How much an element moves along a direction, at least, relative to the typical element.
_LEAST_MOVE = 1e-2
# The error, relative to the largest terms, of a derivative that is known well enough.
_WELL_KNOWN = 1e-7


class RandomNumbers:
    """Numbers of one size and any sign or phase: none is so small that an error at it would not be seen."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rng = np.random.default_rng(seed)

    def like(self, array: np.ndarray) -> np.ndarray:
        """Of the shape and dtype of the array."""
        size = self._rng.uniform(0.5, 1.5, array.shape)
        if np.iscomplexobj(array):
            return np.asarray(size * np.exp(2j * np.pi * self._rng.uniform(size=array.shape)), array.dtype)
        return np.asarray(size * self._rng.choice([-1.0, 1.0], array.shape), array.dtype)

    def direction(self, x: np.ndarray, least: float) -> np.ndarray:
        """A direction in which each element of x moves by about its own size, but at least by this typical part."""
        return self.like(x) * np.maximum(unit_of(x), least * typical_of(x))

    def near(self, x: np.ndarray) -> np.ndarray:
        """Other arguments, a little nearer to zero."""
        return np.asarray(x * (1.0 - 0.05 * self._rng.uniform(size=x.shape)), x.dtype)

    def elements(self, size: int, most: int) -> np.ndarray:
        """Which elements are looked at: the same ones for arguments of the same size."""
        if size <= most:
            return np.arange(size)
        return np.sort(np.random.default_rng(self._seed).choice(size, most, replace=False))


def numeric_gradients(problem: Problem, upstream: Arrays, numbers: RandomNumbers, max_elements: int) -> list[Reference]:
    """One reference for each argument. Where elements are left out, a direction stands for all of them."""
    numeric = Differentiation(problem, upstream)
    references = []
    for i, (name, x) in enumerate(zip(problem.names, problem.values, strict=True)):
        elements = numbers.elements(x.size, max_elements)
        direction, along = None, None
        if elements.size < x.size:
            (direction,), (along,) = _along(numbers, [x], functools.partial(_along_one, numeric, i))
        estimate = numeric.by_elements(i, elements)
        references.append(
            Reference(name, x.shape, tf.as_dtype(x.dtype), _NUMERIC, elements, estimate, direction, along)
        )
    return references


def _along_one(numeric: Differentiation, argument: int, directions: Arrays) -> list[Estimate]:
    return [numeric.along(argument, directions[0])]


def _along(
    numbers: RandomNumbers, values: Arrays, differentiate: Callable[[Arrays], list[Estimate]]
) -> tuple[Arrays, list[Estimate]]:
    """Random directions and the derivatives along them.

    Small elements move by enough to be seen, but by their own size where derivatives are known better so: small moves
    do not leave the domain, nor cross a kink.
    """
    found = []
    for least in (_LEAST_MOVE, 0.0):
        directions = [numbers.direction(x, least) for x in values]
        estimates = differentiate(directions)
        error = max((np.max(e.error, initial=0.0) for e in estimates), default=0.0)
        scale = max((np.max(e.scale, initial=0.0) for e in estimates), default=0.0)
        if error <= _WELL_KNOWN * scale:
            return directions, estimates
        found.append((error, directions, estimates))
    _, directions, estimates = min(found, key=lambda one: one[0])
    return directions, estimates


def numeric_tangents(problem: Problem, numbers: RandomNumbers) -> tuple[Arrays, list[Reference]]:
    """Directions of the arguments, and one reference for each output."""
    values, _ = problem.call(tensors_of(problem.values))
    directions, estimates = _along(numbers, problem.values, lambda chosen: along_direction(problem, chosen))
    return directions, [
        Reference(name, tuple(value.shape), value.dtype, _NUMERIC, np.arange(estimate.value.size), estimate)
        for name, value, estimate in zip(names_of_values(len(values)), values, estimates, strict=True)
    ]


def names_of_values(count: int) -> list[str]:
    """What the outputs are called."""
    return ["value"] if count == 1 else [f"value[{i}]" for i in range(count)]


def intended_gradients(
    function: str, problem: Problem, arguments: Arguments, intended: Callable[..., Any], upstream: Arrays
) -> list[Reference]:
    """One reference for each argument, from the user's NumPy function."""
    args, kwargs = arguments.replaced(problem.values)
    answer = tf.nest.flatten(intended(upstream[0] if len(upstream) == 1 else upstream, *args, **kwargs))
    shapes = [None if gradient is None else np.shape(gradient) for gradient in answer]
    fits = len(answer) == len(problem.values) and all(
        shape is None or shape == x.shape for shape, x in zip(shapes, problem.values, strict=True)
    )
    if not fits:
        expected, got = [_show_shape(x.shape) for x in problem.values], [_show_shape(shape) for shape in shapes]
        message = _errors.CHECK_INTENDED
        names = ", ".join(repr(name) for name in problem.names)
        raise ValueError(message.format(api=API, function=function, expected=expected, names=names, got=got))
    arrays = [
        np.zeros_like(x) if g is None else np.asarray(g, x.dtype) for g, x in zip(answer, problem.values, strict=True)
    ]
    return [
        exactly(name, array, tf.as_dtype(array.dtype), "intended_gradient")
        for name, array in zip(problem.names, arrays, strict=True)
    ]


def _show_shape(shape: Sequence[int] | None) -> Any:
    return None if shape is None else list(shape)
