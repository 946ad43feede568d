"""Checks the options of `check_gradient`."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from . import _modes, _wrapped_modes
from ._flat_function import API

# A smaller step is lost in the rounding of the argument; a larger one changes its sign.
_STEP_RANGE = (1e-12, 1.0)
KNOWN = (*_modes.MODES, *_wrapped_modes.MODES)


def check_options(
    f: Callable[..., Any],
    modes: Sequence[str],
    like: Callable[..., Any] | None,
    intended: Callable[..., Any] | None,
    forward_mode: bool,
) -> None:
    """Raises an error if the functions and modes do not fit together."""
    for name, function in (("f", f), ("like", like), ("intended_gradient", intended)):
        if not callable(function) and (function is not None or name == "f"):
            raise TypeError(
                f"{API}: {name} is not a function; expected a callable, got {type(function).__name__}. Pass the "
                "function, not its value."
            )
    if not modes or isinstance(modes, str) or any(mode not in KNOWN for mode in modes):
        raise ValueError(
            f"{API}: modes is not a list of known modes; expected some of {list(KNOWN)}, got {modes!r}. Pass a "
            "list of these names."
        )
    if like is not None and intended is not None:
        raise ValueError(
            f"{API}: pass either like or intended_gradient, not both: each declares the intended gradient."
        )
    if forward_mode and intended is not None:
        raise ValueError(
            f"{API}: forward_mode=True needs intended tangents, which intended_gradient does not give. Pass a function "
            "with that gradient as like, or leave out forward_mode."
        )
    if forward_mode and not set(modes) & set(_modes.FORWARD_MODES):
        raise ValueError(
            f"{API}: forward_mode=True has no mode to run in; expected 'eager' or 'function' among modes, got "
            f"{modes!r}. Add one."
        )
    if not tf.executing_eagerly() or tf.config.functions_run_eagerly():
        raise RuntimeError(
            f"{API}: it needs eager mode for numeric differentiation, but a graph is under construction, or "
            "tf.config.run_functions_eagerly(True) was called. Call it outside of a tf.function, with functions that "
            "run as graphs."
        )


def check_numbers(rtol: Any, atol: Any, step: Any, seed: Any, max_elements: Any) -> None:
    """Raises an error if a tolerance, the step, the seed or the number of elements is out of its range."""
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        _check_number(name, tolerance, float, 0.0, math.inf, "a finite number that is not negative")
    if step is not None:
        _check_number("step", step, float, *_STEP_RANGE, "a number from 1e-12 to 1, or None")
    _check_number("seed", seed, int, 0, math.inf, "an integer that is not negative")
    _check_number("max_elements", max_elements, int, 1, math.inf, "a positive integer")


def _check_number(name: str, value: Any, number_type: type, least: float, most: float, expected: str) -> None:
    message = f"{API}: {name} is invalid; expected {expected}, got {value!r}."
    try:
        number = number_type(value)
        fits = number == value or math.isnan(number)
    except (TypeError, ValueError, OverflowError):
        fits = False
    if isinstance(value, (bool, str)) or not fits:
        raise TypeError(message)
    if not least <= number <= most or math.isinf(number):
        raise ValueError(message)
