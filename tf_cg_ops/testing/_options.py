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
        raise ValueError(_errors.CHECK_MODES.format(api=API, known=list(_modes.MODES), got=repr(modes)))
    if like is not None and intended is not None:
        raise ValueError(_errors.CHECK_TWO_INTENTIONS.format(api=API))
    if forward_mode and intended is not None:
        raise ValueError(_errors.CHECK_TANGENT_INTENDED.format(api=API))
    if forward_mode and not set(modes) & set(_modes.FORWARD_MODES):
        raise ValueError(_errors.CHECK_TANGENT_MODES.format(api=API, got=repr(modes)))
    if not tf.executing_eagerly() or tf.config.functions_run_eagerly():
        raise RuntimeError(_errors.CHECK_NOT_EAGER.format(api=API))


def check_numbers(rtol: Any, atol: Any, step: Any, seed: Any, max_elements: Any) -> None:
    """Tolerances that something exceeds, and a step that something differs by."""
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        _expect(name, tolerance, float, 0.0, math.inf, "a finite number that is not negative")
    if step is not None:
        _expect("step", step, float, *_STEPS, "a number from 1e-12 to 1, or None")
    _expect("seed", seed, int, 0, math.inf, "an integer that is not negative")
    _expect("max_elements", max_elements, int, 1, math.inf, "a positive integer")


def _expect(name: str, value: Any, kind: type, least: float, most: float, expected: str) -> None:
    message = _errors.CHECK_NUMBER.format(api=API, argument=name, expected=expected, got=repr(value))
    try:
        number = kind(value)
        fits = number == value or math.isnan(number)
    except (TypeError, ValueError, OverflowError):
        fits = False
    if isinstance(value, (bool, str)) or not fits:
        raise TypeError(message)
    if not least <= number <= most or math.isinf(number):
        raise ValueError(message)
