"""`check_gradient`: compares a custom gradient with numeric differentiation."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, text, tf_internal
from tf_cg_ops._src.custom_gradient.custom_jvp import CustomJvp

from . import _modes
from ._compare_modes import ModeComparisons, has_linear_tangents
from ._flat_function import API, Arguments, Arrays, FlatFunction, to_double_precision, to_tensors
from ._references import RandomNumbers, intended_gradients, numeric_gradients, numeric_tangents
from ._report import GradientReport, Tolerances, in_one_line

# A smaller step is lost in the rounding of the argument; a larger one changes its sign.
_STEP_RANGE = (1e-12, 1.0)


@tf_internal.autograph_artifact
def check_gradient(
    f: Callable[..., Any],
    args: Sequence[Any],
    *,
    kwargs: Mapping[str, Any] | None = None,
    modes: Sequence[str] = _modes.MODES,
    like: Callable[..., Any] | None = None,
    intended_gradient: Callable[..., Any] | None = None,
    second_order: bool = False,
    forward_mode: bool = False,
    rtol: float = 1e-6,
    atol: float = 0.0,
    step: float | None = None,
    seed: int = 0,
    max_elements: int = 64,
) -> GradientReport:
    """Compares the gradient of `f` with numeric differentiation, in every mode; raises AssertionError if it is wrong.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> @cg.custom_gradient
    ... def log1pexp(x):
    ...     e = tf.exp(x)
    ...     return tf.math.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))
    >>> report = cg.testing.check_gradient(log1pexp, [tf.constant([0.5, -1.0, 3.0])], second_order=True)
    >>> len(report.failures)
    0

    If the gradient deliberately differs from that of `f`, pass `like=g`, a function that has the intended gradient (for
    a straight-through estimator or a reversed gradient), or `intended_gradient`, which computes it (for a clipped
    gradient: it depends on the upstream as no derivative does).

    >>> straight_through = cg.grad_pass_through(tf.round)
    >>> report = cg.testing.check_gradient(straight_through, [tf.constant([0.2, 0.7])], like=lambda x: x)
    >>> [comparison.mode for comparison in report.comparisons if comparison.order == "value"]
    ['eager', 'function', 'xla', 'vectorized']

    Args:
      f: The function. Arguments and outputs may have any structure, and include values that are no tensors. It must
        return the same value for the same arguments, and compute in float64: if it reads weights of float32, cast the
        arguments inside.
      args: A list or tuple of its arguments. Float tensors, arrays and numbers are converted to float64, complex ones
        to complex128, and differentiated by; all others are passed on as they are.
      kwargs: Keyword arguments, in the same way.
      modes: The modes to check, of "eager", "function", "xla" and "vectorized", which are the default; "while_loop" and
        "cond", inside of which the function is traced; "saved_model", in which it is saved and loaded in this process;
        "functional", in which it is called with the symbolic inputs of a functional model of Keras 3; "mixed_float16"
        and "mixed_bfloat16", in which it gets its real arguments in that precision, as with these policies of Keras.
      like: A function with the same arguments and with outputs of the same shapes, whose gradient is intended.
      intended_gradient: `intended_gradient(dy, *args, **kwargs)` returns the intended gradients as NumPy arrays, one
        for each tensor that is differentiated by; None for zeros. `dy` is an array, or a list of one for each output.
      second_order: Whether to check the derivatives of the gradient, too, by the arguments and by the upstream, against
        numeric differentiation of the gradient that `f` has in eager mode.
      forward_mode: Whether to check the tangents of `tf.autodiff.ForwardAccumulator`, too, for random tangents of the
        arguments, in the modes "eager" and "function". For a function of `tf_cg_ops.custom_jvp` that is always done.
      rtol: The tolerance relative to the size of the gradient's terms.
      atol: An absolute tolerance.
      step: The largest step of numeric differentiation, relative to the element, from 1e-12 to 1. By default, steps
        between 1e-9 and 1e-1 are tried until the derivatives agree.
      seed: The seed of the random upstreams and directions.
      max_elements: The number of elements of an argument that are differentiated by, one by one.

    Returns:
      A `GradientReport`, which prints as a table: for each mode, order and argument the worst element.

    Raises:
      AssertionError: A gradient, a value or a tangent is wrong in some mode, or computing it raised an exception. If
        TensorFlow itself cannot run `f` in that mode, leave it out of `modes`. The message names function, argument,
        mode, element and numbers, and the likely mistake if the numbers show it.
      ValueError: A mode is unknown; there is nothing to differentiate, or to differentiate by; an argument is not
        finite; `f` is random; `like` or `intended_gradient` return other shapes, or both are given; `forward_mode` with
        `intended_gradient` or without a mode for it; a tolerance is negative or not finite, `step` is out of its
        range, or `max_elements` is not positive.
      TypeError: `args` is neither a list nor a tuple, or does not fit the signature of `f`; `f`, `like` or
        `intended_gradient` is no function; a tolerance, `step`, `seed` or `max_elements` is no number; `f` mixes its
        arguments, which are float64, with float32.
      RuntimeError: It is called while a graph is built, or while functions run eagerly.

    Other exceptions of `f` itself, in eager mode, are raised as they are.

    The formula. For a random upstream `dy`, the gradient of each argument must be the vector-Jacobian product

        dx = d/dx sum(dy * f(x)),    for complex numbers dx = dy * conj(f')

    The right side is computed once, in eager mode and in double precision, by central differences with Richardson
    extrapolation. It is compared with the result of `tf.GradientTape` in each mode:

    - "eager": eager mode;
    - "function": inside a `tf.function`;
    - "xla": inside a `tf.function(jit_compile=True)`;
    - "vectorized": inside `tf.vectorized_map(fallback_to_while_loop=False)`, over three different arguments and
      upstreams; the second and the third are compared with eager mode.

    In each mode, the value must be that of eager mode. In the first mode, the gradients for a thousand times and a
    thousandth of `dy` must be such multiples of that for `dy`, since a vector-Jacobian product is linear in the
    upstream; not so with `intended_gradient`. In half precision all tolerances are those of 16 roundings of the largest
    number, at least.

    Tolerances. An element is wrong if it differs by more than `atol + rtol * s`, where `s` is the size of the terms
    `dy_j * df_j/dx` that make the element. Added to that are the estimated error of the numeric derivative, up to the
    tolerance of the argument's largest element, and the error through the rounding of the value, up to a tenth of the
    largest derivative. If nothing changes the value, about `1e-14 / |x|` of its size counts as zero, with 1e-6 for a
    smaller `|x|`. A gradient that is not finite is wrong, and so is any gradient if `f` is not finite around `x`; but
    outputs that stay at one infinity count as constant. None counts as zeros. For a function that computes in float32
    inside, pass a larger `rtol`, such as 1e-3, and `step=0.1`.

    Limits. It does not differentiate by variables that `f` reads: pass their values as arguments. It does not recognize
    kinks, where any number between two slopes may be right: choose other arguments. A derivative that is lost in the
    rounding of the value cannot be told from zero. Of an argument with more than `max_elements` elements, that many are
    differentiated by, and a random direction of all elements, which shows an error of the size of the gradient in a
    single one. Along it, each element moves by about its own size, or by a hundredth of the typical size if that is
    more and does not leave the domain of `f` or cross a kink.

    Compared with `tf.test.compute_gradient`: that returns two Jacobians, with upstreams of ones and zeros, in eager
    mode only, and leaves the comparison to the caller.
    """
    _check_modes(modes)
    # Reverse mode transposes the rule: whether it is linear only its tangents show.
    has_rule = isinstance(f, CustomJvp) and intended_gradient is None and bool(set(modes) & set(_modes.FORWARD_MODES))
    forward_mode = convert.to_bool(API, "forward_mode", forward_mode) or has_rule
    second_order = convert.to_bool(API, "second_order", second_order)
    _check_options(f, modes, like, intended_gradient, forward_mode)
    _check_numbers(rtol, atol, step, seed, max_elements)
    arguments = Arguments(f, args, kwargs)
    name = text.name_of(f)
    function = arguments.flatten_function(f, step)
    values = _differentiable_values(name, function)
    numbers = RandomNumbers(seed)
    upstream = [numbers.draw_like(value) for value in values]
    intended = function
    if like is not None:
        intended = arguments.flatten_function(like, step)
        _check_shapes_of_like(name, intended, values)

    if intended_gradient is None:
        references = numeric_gradients(intended, upstream, numbers, max_elements)
    else:
        references = intended_gradients(name, function, arguments, intended_gradient, upstream)
    # A rule that is not linear has gradients that resemble other mistakes, such as zeros.
    found = ModeComparisons(modes, Tolerances(rtol, atol), not forward_mode or has_linear_tangents(function, seed))
    found.compare_gradients("first", function, None if intended_gradient else intended, upstream, references, numbers)
    if second_order:
        gradient = function.gradient_function(upstream)
        try:
            weights = [numbers.draw_like(output) for output in gradient.outputs(gradient.values)]
            references = numeric_gradients(gradient, weights, numbers, max_elements)
        except Exception as error:
            found.add_exception("eager", "second", gradient.names, error)
        else:
            found.compare_gradients("second", gradient, None, weights, references, numbers)
    if forward_mode:
        found.compare_tangents(function, *numeric_tangents(intended, numbers))
    report = GradientReport(name, found.comparisons)
    if report.failures:
        raise AssertionError(report.failure_text()) from found.error
    return report


def _check_modes(modes: Any) -> None:
    """Raises an error unless these are names of modes."""
    if isinstance(modes, str) or not isinstance(modes, Iterable):
        raise TypeError(f"{API}: modes must be a list of names such as ['eager'], got {modes!r}.")
    if not modes or any(mode not in _modes.KNOWN_MODES for mode in modes):
        raise ValueError(
            f"{API}: modes is not a list of known modes; expected some of {list(_modes.KNOWN_MODES)}, got {modes!r}. "
            "Pass a list of these names."
        )


def _check_options(
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


def _check_numbers(rtol: Any, atol: Any, step: Any, seed: Any, max_elements: Any) -> None:
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


def _differentiable_values(name: str, function: FlatFunction) -> Arrays:
    """The outputs that have derivatives; raises an error if the function cannot be differentiated numerically."""
    if not function.names:
        raise ValueError(
            f"{API}: '{name}' has no float or complex tensor among its arguments to differentiate by. Integers, bools, "
            "strings and None are passed on as they are."
        )
    for argument, value in zip(function.names, function.values, strict=True):
        if not np.all(np.isfinite(value)):
            raise ValueError(
                f"{API}: '{argument}' of '{name}' contains inf or nan, around which nothing can be differentiated "
                "numerically. Pass finite numbers."
            )
    try:
        outputs, others = function.call(to_tensors(function.values))
    except (tf.errors.InvalidArgumentError, TypeError, ValueError) as error:
        if not _is_mix_of_precisions(error):
            raise
        message = (
            f"{API}: '{name}' mixes its arguments with tensors of lower precision; expected a function of "
            f"float64 or complex128, to which the arguments are converted, got {in_one_line(error)}. Cast the "
            "arguments inside the function, and pass rtol=1e-3 and step=0.1."
        )
        raise TypeError(message) from error
    if not outputs:
        got = [output.dtype.name for output in others] or "no tensor"
        raise ValueError(
            f"{API}: '{name}' returns nothing that has a derivative; expected a float or complex tensor, got "
            f"{got}. Check the function before it rounds to integers."
        )
    if not _are_equal([to_double_precision(output) for output in outputs], function.outputs(function.values)):
        raise ValueError(
            f"{API}: '{name}' returns another value when it is called again: it uses random numbers or a state. Use "
            "tf.random.stateless_uniform and the like, with a fixed seed."
        )
    return [np.array(output) for output in outputs]


def _is_mix_of_precisions(error: Exception) -> bool:
    """Whether the message names two dtypes that differ only in precision, by any of TensorFlow's names for them."""
    text = str(error)
    return any(
        re.search(rf"\b({narrow})\b", text) and re.search(rf"\b({double})\b", text)
        for narrow, double in (("float|float32|half|float16|bfloat16", "double|float64"), ("complex64", "complex128"))
    )


def _are_equal(first: Arrays, second: Arrays) -> bool:
    return len(first) == len(second) and all(
        np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True)
    )


def _check_shapes_of_like(name: str, like: FlatFunction, values: Arrays) -> None:
    shapes, expected = [list(y.shape) for y in like.outputs(like.values)], [list(y.shape) for y in values]
    if shapes != expected:
        raise ValueError(
            f"{API}: like returns other shapes than '{name}'; expected {expected}, got {shapes}. Pass a function with "
            f"the intended gradient and outputs like those of '{name}'."
        )
