"""Are the options of `check_gradient` such that it can find anything?"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from . import _errors, _modes
from ._problem import API

# Below, a step is lost in the rounding of the argument; above, it changes the sign of it.
_STEPS = (1e-12, 1.0)


def check_options(
    f: Callable[..., Any],
    modes: Sequence[str],
    like: Callable[..., Any] | None,
    intended: Callable[..., Any] | None,
    forward_mode: bool,
) -> None:
    """Functions and modes that fit each other."""
    for name, function in (("f", f), ("like", like), ("intended_gradient", intended)):
        if not callable(function) and (function is not None or name == "f"):
            message = _errors.CHECK_NOT_CALLABLE
            raise TypeError(message.format(api=API, argument=name, got=type(function).__name__))
    unknown = not modes or isinstance(modes, str) or any(mode not in _modes.MODES for mode in modes)
    if unknown:
        raise ValueError(
            f"{API}: modes names no way to run a function; expected some of {list(_modes.MODES)}, got "
            f"{modes!r}. Leave out what is unknown."
        )
    if like is not None and intended is not None:
        raise ValueError(
            f"{API}: the intended gradient is declared twice; expected like or intended_gradient, got both. Leave "
            "out one."
        )
    if forward_mode and intended is not None:
        raise ValueError(
            f"{API}: intended_gradient says nothing about tangents; expected like for forward_mode=True, got "
            "intended_gradient. Pass a function with that gradient as like, or leave out forward_mode."
        )
    if forward_mode and not set(modes) & set(_modes.FORWARD_MODES):
        raise ValueError(
            f"{API}: forward_mode=True has no mode to run in; expected 'eager' or 'function' among modes, got "
            f"{modes!r}. Add one."
        )
    if not tf.executing_eagerly() or tf.config.functions_run_eagerly():
        raise RuntimeError(
            f"{API}: it differentiates numerically, by many calls; expected eager mode, got a graph under "
            "construction or tf.config.run_functions_eagerly(True). Call it outside of a tf.function, with "
            "functions that run as graphs."
        )


def check_numbers(rtol: Any, atol: Any, step: Any, seed: Any, max_elements: Any) -> None:
    """Tolerances that something exceeds, and a step that something differs by."""
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        _expect(name, tolerance, float, 0.0, math.inf, "a finite number that is not negative")
    if step is not None:
        _expect("step", step, float, *_STEPS, "a number from 1e-12 to 1, or None")
    _expect("seed", seed, int, 0, math.inf, "an integer that is not negative")
    _expect("max_elements", max_elements, int, 1, math.inf, "a positive integer")


def _expect(name: str, value: Any, kind: type, least: float, most: float, expected: str) -> None:
    message = f"{API}: {name} is no number to check a gradient with; expected {expected}, got {value!r}. Correct it."
    try:
        number = kind(value)
        fits = number == value or math.isnan(number)
    except (TypeError, ValueError, OverflowError):
        fits = False
    if isinstance(value, (bool, str)) or not fits:
        raise TypeError(message)
    if not least <= number <= most or math.isinf(number):
        raise ValueError(message)
