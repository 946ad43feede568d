"""`check_gradient`: is a custom gradient right?"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import text, tf_internal

from . import _modes
from ._compare_modes import ModeComparisons
from ._exceptions import in_one_line, mixes_precisions
from ._options import check_numbers, check_options
from ._problem import API, Arguments, Arrays, Problem, tensors_of, wide
from ._references import RandomNumbers, intended_gradients, numeric_gradients, numeric_tangents
from ._report import GradientReport, Tolerances


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
    """Compares the gradient of `f` with numeric differentiation, in every mode.

    For a random upstream `dy`, the gradient of each argument has to be the vector-Jacobian product

        dx = d/dx sum(dy * f(x)),    for complex numbers dx = dy * conj(f')

    whose right side is computed by central differences with Richardson extrapolation, once, in eager mode and in double
    precision. It is compared to what `tf.GradientTape` gives in each mode:

    - "eager": eager mode;
    - "function": inside a `tf.function`;
    - "xla": inside a `tf.function(jit_compile=True)`;
    - "vectorized": inside `tf.vectorized_map(fallback_to_while_loop=False)`, over three different arguments and
      upstreams, of which the second and the third are compared to eager mode.

    The value has to be that of eager mode, in each of them. In the first of the modes, the gradients for a thousand
    times and a thousandth of `dy` have to be such multiples of that for `dy`, unless `intended_gradient` is given: a
    vector-Jacobian product is linear in the upstream.

    What is meant to differ from the derivative of `f` is declared: `like=g` says that the gradient is meant to be that
    of `g`, which is differentiated in the place of `f` (a straight-through estimator, a reversed gradient).
    `intended_gradient` computes it (a gradient that is clipped: it depends on the upstream as no derivative does).

    Relation to `tf.test.compute_gradient`: that returns two Jacobians, of ones and zeros as upstreams, in eager mode
    only, and leaves the comparison to the caller.

    What it does not do: differentiate by variables that `f` reads (pass what they hold as an argument), know of kinks
    (at one, any number between two slopes may be right: choose other arguments), or see an error in an element that it
    does not look at. Of an argument with more than `max_elements` elements, that many are differentiated by, and a
    random direction of all of them, which shows an error of the size of the gradient in a single one: each moves by
    about its own size, or by a hundredth of the typical one where that is more (and does not leave the domain of `f`,
    or cross a kink). A derivative so small that it drowns in the rounding of the value cannot be told from zero.

    Tolerances. An element is wrong if it differs by more than `atol + rtol * s`, where `s` is the size of the terms
    `dy_j * df_j/dx` that make the element; what is known to be the numeric derivative's own error is added, but never
    more than the tolerance of the argument's largest element, and so is what the rounding of the value hides, but never
    more than a tenth of the largest derivative. Where nothing changes the value, about `1e-14 / |x|` of its size passes
    for zero, with 1e-6 in the place of a smaller `|x|`. A gradient that is not finite is wrong, and so is one
    where `f` is not finite around `x`; but outputs that stay at one infinity count as constant. None counts as zeros.
    For a function that computes in float32 inside, pass a larger `rtol`, such as 1e-3, and `step=0.1`.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> @cg.custom_gradient
    ... def log1pexp(x):
    ...     e = tf.exp(x)
    ...     return tf.math.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))
    >>> report = cg.testing.check_gradient(log1pexp, [tf.constant([0.5, -1.0, 3.0])], second_order=True)
    >>> len(report.failures)
    0
    >>> straight_through = cg.grad_pass_through(tf.round)
    >>> report = cg.testing.check_gradient(straight_through, [tf.constant([0.2, 0.7])], like=lambda x: x)
    >>> [comparison.mode for comparison in report.comparisons if comparison.order == "value"]
    ['eager', 'function', 'xla', 'vectorized']

    Args:
      f: The function, of any structures of tensors and other arguments; its outputs may have any structure, too. It has
        to give the same value whenever it is called with the same arguments, and to compute in float64: where it reads
        weights of float32, cast the arguments inside.
      args: A list or tuple of its arguments. Float tensors, arrays and numbers are converted to float64, complex ones
        to complex128, and differentiated by; all others are passed on as they are.
      kwargs: Keyword arguments, in the same way.
      modes: Where to check the gradient.
      like: A function of the same arguments with outputs of the same shapes, the gradient of which is meant.
      intended_gradient: `intended_gradient(dy, *args, **kwargs)` returns the intended gradients as NumPy arrays, one
        for each tensor that is differentiated by; None for zeros. `dy` is an array, or a list of one for each output.
      second_order: If True, the derivatives of the gradient are checked, too, by the arguments and by the upstream,
        against numeric differentiation of the gradient that `f` has in eager mode.
      forward_mode: If True, the tangents of `tf.autodiff.ForwardAccumulator` are checked, too, for random tangents of
        the arguments, in the modes "eager" and "function".
      rtol: The tolerance relative to the size of the gradient's terms.
      atol: An absolute tolerance.
      step: The largest step of numeric differentiation, relative to the element. Without it, steps between 1e-9 and
        1e-1 are tried until the derivatives agree. It may be from 1e-12 to 1.
      seed: Of the random upstreams and directions.
      max_elements: How many elements of one argument are differentiated by, one by one.

    Returns:
      A `GradientReport`, which prints as a table: for each mode, order and argument the worst element.

    Raises:
      AssertionError: A gradient, a value or a tangent is wrong in some mode, or computing it raised an exception,
        also where TensorFlow itself cannot run `f` in that mode: leave it out of `modes` then. The message names
        function, argument, mode, element and numbers, and says what the gradient is instead, where the numbers tell.
      ValueError: A mode is unknown; there is nothing to differentiate, by or of; an argument is not finite; `f` is
        random; `like` or `intended_gradient` return other shapes, or both are given; `forward_mode` with
        `intended_gradient` or without a mode for it; a tolerance is negative or not finite, `step` is out of its
        range, or `max_elements` is not positive.
      TypeError: `args` is neither a list nor a tuple, or does not fit the signature of `f`; `f`, `like` or
        `intended_gradient` is no function; a tolerance, `step`, `seed` or `max_elements` is no number; `f` mixes its
        arguments, which are float64, with float32.
      RuntimeError: It is called while a graph is built, or where functions run eagerly.

    Other exceptions of `f` itself, in eager mode, come as they are.
    """
    check_options(f, modes, like, intended_gradient, forward_mode)
    check_numbers(rtol, atol, step, seed, max_elements)
    arguments = Arguments(f, args, kwargs)
    function = text.name_of(f)
    problem = arguments.problem(f, step)
    values = _values_of(function, problem)
    numbers = RandomNumbers(seed)
    upstream = [numbers.like(value) for value in values]
    meant = problem if like is None else _problem_meant(function, arguments.problem(like, step), values)

    if intended_gradient is None:
        references = numeric_gradients(meant, upstream, numbers, max_elements)
    else:
        references = intended_gradients(function, problem, arguments, intended_gradient, upstream)
    found = ModeComparisons(modes, Tolerances(rtol, atol))
    found.gradients("first", problem, None if intended_gradient else meant, upstream, references, numbers)
    if second_order:
        derived = problem.derived(upstream)
        try:
            weights = [numbers.like(gradient) for gradient in derived.outputs(derived.values)]
            references = numeric_gradients(derived, weights, numbers, max_elements)
        except Exception as error:
            found.raised("eager", "second", derived.names, error)
        else:
            found.gradients("second", derived, None, weights, references, numbers)
    if forward_mode:
        found.tangents(problem, *numeric_tangents(meant, numbers))
    report = GradientReport(function, found.comparisons)
    if report.failures:
        raise AssertionError(report.text_of_failures()) from found.error
    return report


def _values_of(function: str, problem: Problem) -> Arrays:
    """The outputs that have derivatives, after checks of what cannot be differentiated numerically."""
    if not problem.names:
        raise ValueError(
            f"{API}: '{function}' has nothing to differentiate by; expected a float or complex tensor among its "
            "arguments, got none. Integers, bools, strings and None are passed on as they are."
        )
    for name, value in zip(problem.names, problem.values, strict=True):
        if not np.all(np.isfinite(value)):
            raise ValueError(
                f"{API}: '{name}' of '{function}' is not finite; expected finite numbers, got inf or nan, around "
                "which nothing can be differentiated numerically. Pass other numbers."
            )
    try:
        outputs, others = problem.call(tensors_of(problem.values))
    except (tf.errors.InvalidArgumentError, TypeError, ValueError) as error:
        if not mixes_precisions(error):
            raise
        message = (
            f"{API}: '{function}' mixes its arguments with tensors of lower precision; expected a function of "
            f"float64 or complex128, to which the arguments are converted, got {in_one_line(error)}. Cast the "
            "arguments inside the function, and pass rtol=1e-3 and step=0.1."
        )
        raise TypeError(message) from error
    if not outputs:
        got = [output.dtype.name for output in others] or "no tensor"
        raise ValueError(
            f"{API}: '{function}' returns nothing that has a derivative; expected a float or complex tensor, got "
            f"{got}. Check the function before it rounds to integers."
        )
    again = problem.outputs(problem.values)
    if len(again) != len(outputs) or not all(
        np.array_equal(wide(one), other, equal_nan=True) for one, other in zip(outputs, again, strict=True)
    ):
        raise ValueError(
            f"{API}: '{function}' gives another value when it is called again; expected a function of its "
            "arguments, got random numbers or a state. Use tf.random.stateless_uniform and the like, with a "
            "fixed seed."
        )
    return [np.array(output) for output in outputs]


def _problem_meant(function: str, meant: Problem, values: Arrays) -> Problem:
    shapes, expected = [list(y.shape) for y in meant.outputs(meant.values)], [list(y.shape) for y in values]
    if shapes != expected:
        raise ValueError(
            f"{API}: like returns something else than '{function}'; expected tensors of shapes {expected}, got "
            f"{shapes}. Return what '{function}' returns, with the gradient that is meant."
        )
    return meant
