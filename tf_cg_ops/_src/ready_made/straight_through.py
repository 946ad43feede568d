"""`straight_through`: gives a function without a useful derivative the derivative of a surrogate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import library, misplaced_calls, pytree, signature, slices, text, tf_internal
from tf_cg_ops._src.core.types import P, R, TensorLike
from tf_cg_ops._src.custom_gradient.call import call_with_gradient
from tf_cg_ops._src.custom_gradient.checks import can_cast
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.keras import registration

_API = "straight_through"


# The derivative of each built-in surrogate, a function of x and the slope.
DERIVATIVES: dict[str, Callable[[tf.Tensor, float], tf.Tensor]] = {
    "identity": lambda x, slope: tf.ones_like(x),
    "hard_tanh": lambda x, slope: tf.cast(slope * tf.abs(x) <= 1, x.dtype),
    # Not 1 - sigmoid(u), which rounds to zero.
    "sigmoid": lambda x, slope: slope * tf.sigmoid(slope * x) * tf.sigmoid(-slope * x),
    "fast_sigmoid": lambda x, slope: tf.square(1 / (1 + slope * tf.abs(x))),  # Its reciprocal overflows in float16.
}


@overload
def straight_through(
    f: Callable[P, R],
    surrogate: str | Callable[[tf.Tensor], tf.Tensor] = "identity",
    *,
    slope: float = 1.0,
    derivative: Callable[[tf.Tensor], tf.Tensor] | None = None,
) -> Callable[P, R]: ...
@overload
def straight_through(
    f: None = None,
    surrogate: str | Callable[[tf.Tensor], tf.Tensor] = "identity",
    *,
    slope: float = 1.0,
    derivative: Callable[[tf.Tensor], tf.Tensor] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@tf_internal.autograph_artifact
@misplaced_calls.explains(_API, "Name the options, as in slope=2.0.")
def straight_through(
    f: Callable[..., TensorLike] | None = None,
    surrogate: str | Callable[[tf.Tensor], tf.Tensor] = "identity",
    *,
    slope: float = 1.0,
    derivative: Callable[[tf.Tensor], TensorLike] | None = None,
) -> Callable[..., Any]:
    """Gives a function without a useful derivative, such as `tf.sign`, the derivative of a surrogate.

    Use it to train through a rounding, a sign or a spike, as in quantized, binarized and spiking networks.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> sign = cg.straight_through(tf.sign, "hard_tanh")
    >>> x = tf.constant([-2.0, -0.5, 0.5])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = sign(x)
    >>> y.numpy().tolist(), tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0, 100.0])).numpy().tolist()
    ([-1.0, -1.0, 1.0], [0.0, 10.0, 100.0])

    For an upstream gradient `dy`, the gradient with respect to the first argument `x` is

        dx = dy * derivative of the surrogate at x

    | `surrogate`      | a function of `x`            | its derivative                                     |
    |------------------|------------------------------|----------------------------------------------------|
    | `"identity"`     | `x`                          | 1                                                  |
    | `"hard_tanh"`    | `x`, flat beyond `1 / slope` | 1 where `slope * abs(x) <= 1`, and 0 elsewhere     |
    | `"sigmoid"`      | `sigmoid(slope * x)`         | `slope * sigmoid(slope * x) * sigmoid(-slope * x)` |
    | `"fast_sigmoid"` | `x / (1 + slope * abs(x))`   | `1 / (1 + slope * abs(x))**2`                      |
    | a function `s`   | `s(x)`                       | what TensorFlow computes for it                    |

    A surrogate or derivative runs at the call, in eager mode only if a tape or accumulator watches `x`. So variables
    that it reads count as they are then.

    The value is exactly `f(x)`; the formula `x + tf.stop_gradient(f(x) - x)` rounds it, and gives nan where `x` is
    infinite. Second derivatives are the second derivatives of the surrogate. Nothing checks that the surrogate
    resembles `f`. The other arguments of `f`, and variables that `f` or the surrogate reads, get no gradient.

    Args:
      f: A function whose value has the shape of its first argument `x`, a Tensor, Variable or array of dtype float16,
        bfloat16, float32 or float64. The value is cast to the dtype of `x`, so `lambda u: u > 0` can be a spike.
        Without `f` you get a decorator: `@straight_through(surrogate="sigmoid")`.
      surrogate: A name from the table, or a function of `x` whose value has the shape and dtype of `x`. Write it with
        TensorFlow operations; if it has a custom gradient, that is used.
      slope: A finite number above 0: how quickly the derivative of a named surrogate falls off. `"identity"` ignores
        it.
      derivative: Instead of a surrogate: a function of `x` that returns the derivative, in the shape and dtype of `x`,
        or one Python or NumPy number for all elements.

    Returns:
      A function with the signature and the value of `f`.

    Raises:
      TypeError: An argument has the wrong type; `x` does not hold floating-point numbers; the surrogate or derivative
        returns another dtype.
      ValueError: `surrogate` is unknown or has no derivative; `slope` is not positive and finite; you passed two of a
        surrogate function, `derivative` and `slope`; a shape differs from `x`.
      tf.errors.InvalidArgumentError: It differs, but is only known at run time.

    Differs from `tf.grad_pass_through`: it takes a surrogate, and `f` can have more than one argument.

    Sources: Bengio, Leonard and Courville (2013), arXiv:1308.3432, for the identity; Hubara et al. (2016),
    arXiv:1602.02830, for the hard tanh; Neftci, Mostafa and Zenke (2019), arXiv:1901.09948, for the sigmoid; Zenke and
    Ganguli (2018), arXiv:1705.11146, for the fast sigmoid.
    """
    if isinstance(f, str):
        raise TypeError(f"{_API}: f must be a function, got {f!r}. For a decorator, write {_API}(surrogate={f!r}).")
    if f is None:
        check_surrogate(_API, surrogate, slope, derivative)
        return functools.partial(straight_through, surrogate=surrogate, slope=slope, derivative=derivative)
    return with_surrogate(_API, f, surrogate, slope, derivative)


def with_surrogate(api: str, f: Callable[..., Any], surrogate: Any, slope: Any, derivative: Any) -> CustomGradient:
    """`straight_through` of a function, with the name `api` in messages."""
    check_surrogate(api, surrogate, slope, derivative)
    differentiated = "surrogate" if derivative is None else "derivative"
    wording = without_gradient_function(api, differentiated, is_for_users_code=True)

    def gradient_at(x: tf.Tensor, name: str) -> Callable[[Any], Any]:
        """The gradient as a function of the upstream gradient. What the user wrote runs now, as variables are now."""
        if derivative is not None:
            factor = _user_derivative(api, derivative, tf.identity(x), name)
            return lambda dy: slices.to_dense(dy) * factor
        if callable(surrogate):
            return _gradient_of_surrogate(api, surrogate, x, name)
        return functools.partial(_gradient_of_named, DERIVATIVES[surrogate], float(slope), x)

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        def with_grad_fn(*args: Any, **kwargs: Any) -> Any:
            leaves = pytree.flatten_arguments(api, function, args, kwargs).values
            first = next(iter([*args, *kwargs.values()]), None)
            if isinstance(first, (list, tuple)) and isinstance(leaves[0] if leaves else None, (int, float)):
                raise TypeError(
                    f"{api}: the first argument of '{text.name_of(function)}' must be one Tensor, got "
                    f"{text.describe(first)}. Convert it with tf.constant."
                )
            x = _to_real_tensor(api, function, leaves)
            if slope != 1 and slope > float(x.dtype.max):
                raise ValueError(
                    f"{api}: slope must be finite in the dtype of x, {x.dtype.name}, got {slope!r}. Pass a slope below "
                    f"{float(x.dtype.max)}, or cast x."
                )
            returned = function(*args, **kwargs)
            pytree.check_leaves(api, text.name_of(function), returned)
            value = tf.cast(tf.convert_to_tensor(returned), x.dtype)
            message = (
                f"{api}: '{text.name_of(function)}' must return the shape of x, {{expected}}, got {{got}}. For a "
                "function that changes the shape, use custom_gradient."
            )
            _check_static(value, x, message)
            gradient = None
            if not tf.executing_eagerly() or tf_internal.possible_gradient_types([x]):
                gradient = gradient_at(x, text.name_of(function))

            def grad_fn(dy: Any, variables: Sequence[tf.Variable] = ()) -> Any:
                dy = slices.kept(dy)
                if tf.is_tensor(dy) and not isinstance(dy, tf.IndexedSlices):
                    dy = _with_shape_of(x, dy, message)
                dx = gradient(dy) if gradient else None  # No tape watched x.
                gradients = [dx, *[None] * (len(leaves) - 1)]
                return (gradients, [None] * len(variables)) if variables else gradients

            return value, grad_fn

        return call_with_gradient(function, args, kwargs, wording=wording, compute=with_grad_fn)

    options = (
        {"surrogate": surrogate, "slope": float(slope)} if isinstance(surrogate, str) and derivative is None else None
    )
    return CustomGradient(api, f, run, options)


registration.makers[_API] = straight_through


def _gradient_of_named(derivative: Callable[..., tf.Tensor], slope: float, x: tf.Tensor, dy: Any) -> Any:
    # The named surrogates are elementwise, so slices can stay slices.
    if isinstance(dy, tf.IndexedSlices):
        return tf.IndexedSlices(dy.values * derivative(tf.gather(x, dy.indices), slope), dy.indices, dy.dense_shape)
    return dy * derivative(x, slope)


def _gradient_of_surrogate(
    api: str, surrogate: Callable[..., Any], x: tf.Tensor, name: str
) -> Callable[[Any], tf.Tensor]:
    """The gradient of the user's surrogate, by automatic differentiation, as a function of the upstream gradient."""
    subject = f"{api}: the surrogate {text.name_of(surrogate)!r} of '{name}'"
    message = f"{subject} must return the shape of x, {{expected}}, got {{got}}. {_ADVICE}"
    point = tf.identity(x)  # A surrogate that closes over x has no derivative by that.
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(point)
        value = _call_surrogate(api, "surrogate", surrogate, point, name)
        _check_static(value, x, message)

    def gradient(dy: Any) -> tf.Tensor:
        # This reads `dy`, which has the shape of x, because some gradients do not read the value.
        dy = _with_shape_of(
            value, tf.convert_to_tensor(slices.to_dense(dy)), message.format(expected="{got}", got="{expected}")
        )
        dx = slices.to_dense(tape.gradient(value, point, output_gradients=dy))
        if dx is None:
            raise ValueError(f"{subject} must have a derivative, but TensorFlow finds none. {_ADVICE}")
        return dx

    return gradient


def _check_static(value: tf.Tensor, x: tf.Tensor, message: str) -> None:
    """ValueError with this message if the value cannot have the shape of x."""
    if not value.shape.is_compatible_with(x.shape):
        raise ValueError(message.format(expected=x.shape, got=value.shape))


def _with_shape_of(x: tf.Tensor, value: tf.Tensor, message: str) -> tf.Tensor:
    """Returns the value, and raises this message, at run time if necessary, unless it has the shape of x."""
    _check_static(value, x, message)
    if value.shape.is_fully_defined() and x.shape.is_fully_defined():
        return value
    return library.custom_gradient_check_shape(value, tf.shape(x, tf.int64), message=message)


_ADVICE = "If it is the derivative of a surrogate, pass it as derivative=."


def _call_surrogate(api: str, noun: str, function: Callable[..., Any], x: tf.Tensor, name: str) -> tf.Tensor:
    """Calls the user's surrogate or derivative; TypeError unless it returns a Tensor of the dtype of `x`."""
    subject = f"{api}: the {noun} {text.name_of(function)!r} of '{name}'"
    advice = f"Use TensorFlow operations. {_ADVICE}" if noun == "surrogate" else "Return the derivative at x."
    value = signature.call(function, [x], {}, f"{subject} must take x alone", "Write it as a function of x.")
    if noun == "derivative":
        value = _cast(value, x)
    value = pytree.to_output(value) if tf.is_tensor(value) else value
    if not isinstance(value, tf.Tensor):
        raise TypeError(f"{subject} must return a Tensor, got {text.describe(value)}. {advice}")
    if value.dtype != x.dtype:
        raise TypeError(
            f"{subject} must return the dtype of x, {x.dtype.name}, got {value.dtype.name}. Cast it with tf.cast."
        )
    return value


def _cast(value: Any, x: tf.Tensor) -> Any:
    """A floating-point derivative cast to the dtype of x, as gradients are; a number fills the shape of x."""
    if isinstance(value, (int, float, np.integer, np.floating)):
        return tf.fill(tf.shape(x), tf.cast(value, x.dtype))
    if isinstance(value, (np.ndarray, np.generic)):
        value = tf.convert_to_tensor(value)
    return tf.cast(value, x.dtype) if tf.is_tensor(value) and can_cast(value.dtype, x.dtype) else value


def _user_derivative(api: str, derivative: Callable[[tf.Tensor], Any], x: tf.Tensor, name: str) -> tf.Tensor:
    message = (
        f"{api}: the derivative {text.name_of(derivative)!r} of '{name}' must return the shape of x, {{expected}}, "
        "got {got}. Return one number for each element of x."
    )
    return _with_shape_of(x, _call_surrogate(api, "derivative", derivative, x, name), message)


def _to_real_tensor(api: str, function: Callable[..., Any], leaves: Sequence[Any]) -> tf.Tensor:
    """The first argument as a Tensor, or TypeError."""
    first = leaves[0] if leaves else None
    is_number = isinstance(first, (tf.Tensor, np.ndarray, np.generic, float))
    if is_number or pytree.is_read_as_tensor(first):
        x = tf.convert_to_tensor(first)
        if x.dtype.is_floating:
            return x
        first = x
    got = text.describe(first) if leaves else "no argument"
    raise TypeError(
        f"{api}: the first argument of '{text.name_of(function)}' must hold floating-point numbers, got {got}. "
        "Pass a Tensor or Variable of a floating-point dtype."
    )


def check_surrogate(api: str, surrogate: Any, slope: Any, derivative: Any) -> None:
    """TypeError or ValueError unless these options define one derivative."""
    if isinstance(slope, bool) or not isinstance(slope, (int, float, np.number)):
        raise TypeError(f"{api}: slope must be a number above 0, got {text.describe(slope)}.")
    if not 0 < slope < float("inf"):
        raise ValueError(f"{api}: slope must be a finite number above 0, got {slope!r}.")
    if derivative is not None:
        misplaced_calls.check_function(api, "derivative", derivative, noun="a function of x")
    if isinstance(surrogate, str):
        if surrogate not in DERIVATIVES:
            raise ValueError(
                f"{api}: surrogate must be one of {text.quoted(DERIVATIVES)}, or a function of x, got {surrogate!r}."
            )
    else:
        noun = "a name such as 'sigmoid', or a function of x"
        misplaced_calls.check_function(api, "surrogate", surrogate, noun=noun)
    if derivative is not None and surrogate != "identity":
        raise ValueError(f"{api}: pass either surrogate or derivative, got both.")
    if slope != 1 and (derivative is not None or callable(surrogate)):
        raise ValueError(f"{api}: slope is for named surrogates, got a function. Multiply x by it there.")
