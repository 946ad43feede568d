"""`check_gradient`: compares a custom gradient with numeric differentiation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, misplaced_calls, text, tf_internal
from tf_cg_ops._src.core.types import Structure
from tf_cg_ops._src.custom_gradient.custom_jvp import CustomJvp
from tf_cg_ops._src.keras.dispatch import package_of_keras_tensors

from . import _modes
from ._compare_modes import ModeComparisons
from ._flat_function import API, Arguments, Arrays, FlatFunction, has_derivative, to_double_precision, to_tensors
from ._references import RandomNumbers, intended_gradients, numeric_gradients, numeric_tangents
from ._report import GradientReport, Tolerances

# A smaller step is lost in the rounding of the argument; a larger one changes its sign.
_STEP_RANGE = (1e-12, 1.0)
# What numeric differentiation can reach if the value has less than double precision.
_LEAST_TOLERANCE = 1e-5


@tf_internal.autograph_artifact
@misplaced_calls.explains(
    API, f"Write {API}(f, [x]), and name the options, as in step=1e-3, rtol=1e-4, modes=['eager']."
)
def check_gradient(
    f: Callable[..., Structure],
    args: Sequence[Structure],
    *,
    kwargs: Mapping[str, Structure] | None = None,
    modes: Sequence[str] = _modes.MODES,
    like: Callable[..., Structure] | None = None,
    intended_gradient: Callable[..., Structure] | None = None,
    second_order: bool = False,
    forward_mode: bool = False,
    rtol: float = 1e-6,
    atol: float = 0.0,
    step: float | None = None,
    seed: int = 0,
    max_elements: int = 64,
) -> GradientReport:
    """Checks the gradient of `f` against numeric differentiation in several modes; raises AssertionError if it differs.

    Use it in a test for every gradient that you write.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> @cg.custom_gradient
    ... def log1pexp(x):
    ...     y = tf.maximum(x, 0.0) + tf.math.log1p(tf.exp(-tf.abs(x)))
    ...     return y, lambda dy: dy * tf.sigmoid(x)
    >>> report = cg.testing.check_gradient(log1pexp, [tf.constant([0.0, -1000.0, 100.0])], second_order=True)
    >>> len(report.failures)
    0

    For a random upstream gradient `dy`, the gradient of each argument must be the vector-Jacobian product

        dx = d/dx sum(dy * f(x)),    for complex numbers dx = dy * conj(f')

    If `f` has another gradient on purpose, pass `like=g`, a function with that gradient (for a straight-through
    estimator or a reversed gradient), or `intended_gradient`, which computes it (for a clipped gradient, which no
    function has):

    >>> straight_through = cg.grad_pass_through(tf.round)
    >>> report = cg.testing.check_gradient(straight_through, [tf.constant([0.2, 0.7])], like=lambda x: x)
    >>> [comparison.mode for comparison in report.comparisons if comparison.order == "value"]
    ['eager', 'function', 'xla', 'vectorized']

    The guide "Check a gradient" explains the modes, the tolerances and kinks, and shows a test for CI.

    Args:
      f: The function. Its arguments and outputs can have any structure, and values other than tensors are fine. It must
        return the same value for the same arguments, and compute in float64: if it reads float32 weights, cast the
        arguments inside.
      args: A list or tuple of arguments. Float tensors, arrays and numbers are converted to float64, complex ones to
        complex128, and `f` is differentiated by them. All other arguments are passed on as they are.
      kwargs: Keyword arguments, treated in the same way.
      modes: The modes to check. The default is "eager", "function" (inside a `tf.function`), "xla" (with
        `jit_compile=True`) and "vectorized" (inside `tf.vectorized_map`). You can add "while_loop" and "cond" (`f` runs
        inside a loop or conditional), "saved_model" (`f` is saved, and loaded in this process), "functional" (`f` gets
        the symbolic inputs of a functional Keras 3 model), "mixed_float16" and "mixed_bfloat16" (real arguments have
        that precision, as under Keras's policies of these names).
      like: A function with the arguments of `f` and outputs of the same shapes, whose gradient `f` should have.
      intended_gradient: `intended_gradient(dy, *args, **kwargs)` returns the gradients that `f` should have: NumPy
        arrays, one for each tensor that `f` is differentiated by, or None for zeros. `dy` is an array, or a list with
        one for each output.
      second_order: Whether to check the derivatives of the gradient, too, with respect to the arguments and the
        upstream. They are compared with numeric differentiation of the gradient that `f` has in eager mode.
      forward_mode: Whether to check `tf.autodiff.ForwardAccumulator`, too, with random tangents of the arguments, in
        the modes "eager" and "function". A function of `tf_cg_ops.custom_jvp` is always checked in this way.
      rtol: The tolerance relative to the size of the gradient's terms.
      atol: An absolute tolerance, added to it.
      step: The largest step of numeric differentiation, relative to the element, from 1e-12 to 1. By default, steps
        between 1e-9 and 1e-1 are tried until the derivatives agree.
      seed: The seed of the random upstreams and directions.
      max_elements: How many elements of an argument to differentiate by, one at a time. If an argument has more, the
        derivative along a random direction of all its elements is checked, too.

    Returns:
      A `GradientReport`, which prints as a table: the worst element for each mode, order and argument.

    Raises:
      AssertionError: A gradient, value or tangent is wrong or raised an exception.
      ValueError: A mode is unknown; nothing is differentiable; an argument is not finite; `f` is random or imprecise;
        options do not fit.
      TypeError: An argument has the wrong type or does not fit `f`, or `f` mixes float32 with float64.
      RuntimeError: You call it in a graph.

    The message names the function, argument, mode, element and numbers, and the likely mistake. If TensorFlow itself
    cannot run `f` in a mode, leave it out of `modes`. Other exceptions of `f` in eager mode reach you unchanged.

    `f` is not differentiated by the variables that it reads, so pass their values as arguments. Choose arguments that
    are not at a kink.

    Differs from `tf.test.compute_gradient`, which returns two Jacobians: it compares for you, in several modes, and
    with random upstream gradients.
    """
    _check_modes(modes)
    # Reverse mode transposes the rule, so only its tangents show whether it is linear.
    has_rule = isinstance(f, CustomJvp) and intended_gradient is None and bool(set(modes) & set(_modes.FORWARD_MODES))
    forward_mode = convert.to_bool(API, "forward_mode", forward_mode) or has_rule
    second_order = convert.to_bool(API, "second_order", second_order)
    _check_options(f, modes, like, intended_gradient, forward_mode)
    for argument, tolerance in (("rtol", rtol), ("atol", atol)):
        _check_number(argument, tolerance, float, 0.0, math.inf, "a finite number that is not negative")
    if step is not None:
        _check_number("step", step, float, *_STEP_RANGE, "a number from 1e-12 to 1, or None")
    _check_number("seed", seed, int, 0, math.inf, "an integer that is not negative")
    _check_number("max_elements", max_elements, int, 1, math.inf, "a positive integer")
    arguments = Arguments(f, args, kwargs)
    name = text.name_of(f)
    function = arguments.flatten_function(f, step)
    values = _differentiable_values(name, function)
    _check_precision(f, name, values, max(rtol, atol))
    numbers = RandomNumbers(seed)
    upstream = [numbers.draw_like(value) for value in values]
    intended = function
    if like is not None:
        intended = arguments.flatten_function(like, step)
        shapes, expected = ([list(y.shape) for y in ys] for ys in (intended.outputs(intended.values), values))
        if shapes != expected:
            raise ValueError(f"{API}: like must return the same shapes as '{name}', {expected}, got {shapes}.")

    if intended_gradient is None:
        references = numeric_gradients(intended, upstream, numbers, max_elements)
    else:
        references = intended_gradients(name, function, arguments, intended_gradient, upstream)
    found = ModeComparisons(modes, Tolerances(rtol, atol))
    if forward_mode:
        found.compare("tangent", function, *numeric_tangents(intended, numbers), numbers)
    found.compare("first", function, upstream, references, numbers, None if intended_gradient else intended)
    if second_order:
        gradient = function.gradient_function(upstream)
        try:
            weights = [numbers.draw_like(output) for output in gradient.outputs(gradient.values)]
            references = numeric_gradients(gradient, weights, numbers, max_elements)
        except Exception as error:
            found.add_exception("eager", "second", gradient.names, error)
        else:
            found.compare("second", gradient, weights, references, numbers)
    report = GradientReport(name, sorted(found.comparisons, key=lambda c: c.order == "tangent"), seed)
    if report.failures:
        raise AssertionError(report.failure_text()) from found.error
    return report


def _check_modes(modes: Any) -> None:
    """Raises an error unless `modes` is a list of known modes."""
    if isinstance(modes, str) or not isinstance(modes, Iterable):
        raise TypeError(f"{API}: modes must be a list of names such as ['eager'], got {modes!r}.")
    if not modes or any(mode not in _modes.KNOWN_MODES for mode in modes):
        raise ValueError(
            f"{API}: modes must be one or more of {text.quoted(_modes.KNOWN_MODES)}, in a list, got {modes!r}."
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
        if function is not None or name == "f":
            misplaced_calls.check_function(API, name, function, "Pass the function, not its value.")
    if like is not None and intended is not None:
        raise ValueError(
            f"{API}: like and intended_gradient must not both be given, because each says which gradient is right. "
            "Leave one out."
        )
    if forward_mode and intended is not None:
        raise ValueError(
            f"{API}: forward_mode=True needs tangents to compare with, which intended_gradient does not give. Pass a "
            "function with that gradient as like, or leave out forward_mode."
        )
    if forward_mode and not set(modes) & set(_modes.FORWARD_MODES):
        raise ValueError(
            f"{API}: modes must contain 'eager' or 'function' if forward_mode=True, got {modes!r}. Add one of them."
        )
    if not tf.executing_eagerly() or tf.config.functions_run_eagerly():
        raise RuntimeError(
            f"{API} must be called in eager mode, got a call in a graph or after "
            "tf.config.run_functions_eagerly(True). Call it outside of tf.function."
        )


def _check_number(name: str, value: Any, number_type: type, least: float, most: float, expected: str) -> None:
    message = f"{API}: {name} must be {expected}, got {value!r}."
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
            f"{API}: args must contain a float or complex number or tensor to differentiate '{name}' by, got none. "
            "Integers, bools, strings and None are passed on as they are: cast the Tensor that you differentiate by."
        )
    for argument, value in zip(function.names, function.values, strict=True):
        if not np.all(np.isfinite(value)):
            raise ValueError(
                f"{API}: the argument '{argument}' of '{name}' must be finite for numeric differentiation, got inf or "
                "nan. Pass finite numbers."
            )
    try:
        outputs = function.call(to_tensors(function.values))
    except (tf.errors.InvalidArgumentError, TypeError, ValueError) as error:
        if not any(_runs_in(function, dtype) for dtype in (tf.float32, tf.bfloat16, tf.half)):
            raise
        message = (
            f"{API}: '{name}' must compute in float64 or complex128, to which its arguments are converted, got "
            f"{text.in_one_line(error)}. Cast the arguments inside the function to the lower precision, and pass "
            "rtol=1e-3 and step=0.1."
        )
        raise TypeError(message) from error
    values = [np.array(output) for output in outputs if has_derivative(output)]
    if not values:
        got = f"only {text.quoted(output.dtype.name for output in outputs)}" if outputs else "no tensor"
        raise ValueError(
            f"{API}: '{name}' must return a float or complex tensor, got {got}. If it rounds to integers at the end, "
            "check the part before."
        )
    again = function.call(to_tensors(function.values))
    if len(outputs) != len(again) or not all(map(_is_equal, outputs, again)):
        raise ValueError(
            f"{API}: '{name}' must return the same value each time, got a different one in the second call. If it uses "
            "random numbers, draw them with a fixed seed, as with tf.random.stateless_uniform."
        )
    return values


def _check_precision(f: Any, name: str, values: Arrays, tolerance: float) -> None:
    """ValueError if the function is known to compute in less than double precision, and the tolerance is too small."""
    known = [str(value.real.dtype) for value in values]
    inputs = getattr(f, "inputs", None) or ()
    if package_of_keras_tensors(inputs):  # A functional model of Keras casts its inputs to these dtypes.
        known += [tf.as_dtype(tensor.dtype).name for tensor in inputs]
    else:  # Another layer of Keras casts to this one.
        known.append(getattr(f, "compute_dtype", "float64"))
    lower = next((dtype for dtype in known if dtype in ("float32", "float16", "bfloat16")), None)
    if lower and tolerance < _LEAST_TOLERANCE:
        raise ValueError(
            f"{API}: cannot check '{name}' with a tolerance of {tolerance:g}, because it computes in {lower}. Pass "
            "rtol=1e-3 and step=0.1, or let it compute in float64: in Keras, give Input and all layers dtype='float64'."
        )


def _is_equal(first: tf.Tensor, second: tf.Tensor) -> bool:
    return np.array_equal(to_double_precision(first), to_double_precision(second), equal_nan=True)


def _runs_in(function: FlatFunction, dtype: tf.DType) -> bool:
    """Whether the function runs in a lower precision: then it fails in double precision because it mixes the two."""
    tensors = [tf.cast(t, tf.complex64 if t.dtype.is_complex else dtype) for t in to_tensors(function.values)]
    try:
        function.call(tensors)
    except (tf.errors.InvalidArgumentError, TypeError, ValueError):
        return False
    return True
