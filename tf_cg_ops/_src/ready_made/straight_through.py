"""`straight_through`: a function without a useful derivative, with the derivative of a surrogate."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import pytree, slices, text, tf_internal
from tf_cg_ops._src.core.signature import mismatched_signature
from tf_cg_ops._src.core.types import P, R
from tf_cg_ops._src.core.variables import as_variable
from tf_cg_ops._src.custom_gradient.call import call_with_gradient
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.keras import registration
from tf_cg_ops._src.ready_made.scale import broadcasts_to

_API = "straight_through"


# The derivative of each built-in surrogate, a function of x and the slope.
_DERIVATIVES: dict[str, Callable[[tf.Tensor, float], tf.Tensor]] = {
    "identity": lambda x, slope: tf.ones_like(x),
    "hard_tanh": lambda x, slope: tf.cast(slope * tf.abs(x) <= 1, x.dtype),
    # Not 1 - sigmoid(u), which rounds to zero.
    "sigmoid": lambda x, slope: slope * tf.sigmoid(slope * x) * tf.sigmoid(-slope * x),
    "fast_sigmoid": lambda x, slope: 1 / tf.square(1 + slope * tf.abs(x)),
}


@overload
def straight_through(
    f: Callable[P, R], surrogate: str | Callable[[tf.Tensor], tf.Tensor] = "identity", *, slope: float = 1.0
) -> Callable[P, R]: ...
@overload
def straight_through(
    f: None = None, surrogate: str | Callable[[tf.Tensor], tf.Tensor] = "identity", *, slope: float = 1.0
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@tf_internal.autograph_artifact
def straight_through(
    f: Callable[..., Any] | None = None,
    surrogate: str | Callable[[tf.Tensor], tf.Tensor] = "identity",
    slope: float = 1.0,
) -> Callable[..., Any]:
    """Gives a function without a useful derivative the derivative of a surrogate.

    For an upstream gradient `dy`, the gradient with respect to the first argument `x` is

        dx = dy * derivative of the surrogate at x

    | `surrogate`      | a function of `x`            | its derivative                                     |
    |------------------|------------------------------|----------------------------------------------------|
    | `"identity"`     | `x`                          | 1                                                  |
    | `"hard_tanh"`    | `x`, flat beyond `1 / slope` | 1 where `slope * abs(x) <= 1`, and 0 elsewhere     |
    | `"sigmoid"`      | `sigmoid(slope * x)`         | `slope * sigmoid(slope * x) * sigmoid(-slope * x)` |
    | `"fast_sigmoid"` | `x / (1 + slope * abs(x))`   | `1 / (1 + slope * abs(x))**2`                      |
    | a function `d`   |                              | `d(x)`                                             |

    The value is that of `f`; the surrogate is computed only when a gradient is asked for. Second derivatives are those
    of the surrogate's derivative. Other arguments of `f`, and variables that it reads, get no gradient. You choose a
    surrogate that resembles `f`: nothing checks it. A spike is `straight_through(lambda u: u > 0)` of the membrane
    potential minus the threshold.

    Compared with TensorFlow: `tf.grad_pass_through` is the `"identity"` for functions of one argument. The common
    formula `x + tf.stop_gradient(f(x) - x)` rounds the value, and makes it nan where `x` is infinite.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> sign = cg.straight_through(tf.sign, "hard_tanh")
    >>> x = tf.constant([-2.0, -0.5, 0.5])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = sign(x)
    >>> y.numpy().tolist(), tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0, 100.0])).numpy().tolist()
    ([-1.0, -1.0, 1.0], [0.0, 10.0, 100.0])

    Args:
      f: A function whose value has the shape of its first argument `x`, a Tensor, Variable or array of dtype float16,
        bfloat16, float32 or float64. A value of another dtype, such as bool, is cast to that of `x`. Without `f`, the
        decorator itself is returned, for use with parentheses.
      surrogate: A name from the table, or a function that returns the derivative at `x`, in the shape and dtype of `x`.
      slope: A number above 0: how quickly the derivative falls off. `"identity"` and functions do not use it.

    Returns:
      A function with the signature and the value of `f`.

    Raises:
      TypeError: At the call: the first argument holds no real numbers.
      ValueError: The surrogate is unknown, or the slope is not a positive number. At the call: the value does not have
        the shape of `x`.
      tf.errors.InvalidArgumentError: The same, if the shapes are known at run time only, when a gradient is asked for.

    Sources: Bengio, Leonard and Courville, "Estimating or propagating gradients through stochastic neurons" (2013),
    arXiv:1308.3432, for the identity; Hubara et al., "Binarized neural networks" (2016), arXiv:1602.02830, for the hard
    tanh; Neftci, Mostafa and Zenke, "Surrogate gradient learning in spiking neural networks" (2019), arXiv:1901.09948,
    for the sigmoid; Zenke and Ganguli, "SuperSpike" (2018), arXiv:1705.11146, for the fast sigmoid.
    """
    if f is None:
        to_derivative(_API, surrogate, slope)
        return functools.partial(straight_through, surrogate=surrogate, slope=slope)
    return with_surrogate(_API, f, surrogate, slope)


def with_surrogate(api: str, f: Callable[..., Any], surrogate: Any, slope: Any) -> CustomGradient:
    """`straight_through` of a function, with the name `api` in messages."""
    derivative = to_derivative(api, surrogate, slope)
    wording = without_gradient_function(api, differentiated="surrogate")

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        def with_grad_fn(*args: Any, **kwargs: Any) -> Any:
            leaves = pytree.flatten_arguments(api, function, args, kwargs).values
            x = _to_real_tensor(api, function, leaves)
            value = tf.cast(tf.convert_to_tensor(function(*args, **kwargs)), x.dtype)
            if not value.shape.is_compatible_with(x.shape):
                raise ValueError(
                    f"{api}: '{text.name_of(function)}' does not keep the shape of x; expected {x.shape}, got "
                    f"{value.shape}. Use custom_gradient for a function that changes shapes."
                )

            def grad_fn(dy: Any, variables: Sequence[tf.Variable] = ()) -> Any:
                dy = slices.kept(dy)
                if isinstance(dy, tf.IndexedSlices) and isinstance(surrogate, str):  # Built-in ones are elementwise.
                    rows = derivative(tf.gather(x, dy.indices))
                    dx: Any = tf.IndexedSlices(dy.values * rows, dy.indices, dy.dense_shape)
                elif isinstance(surrogate, str):
                    dx = dy * derivative(x)
                else:
                    dx = slices.to_dense(dy) * _user_derivative(api, derivative, x, function)
                gradients = [dx, *[None] * (len(leaves) - 1)]
                return (gradients, [None] * len(variables)) if variables else gradients

            return value, grad_fn

        return call_with_gradient(function, args, kwargs, wording=wording, compute=with_grad_fn)

    options = {"surrogate": surrogate, "slope": float(slope)} if isinstance(surrogate, str) else None
    return CustomGradient(api, f, run, options)


registration.makers[_API] = straight_through


def _user_derivative(
    api: str, surrogate: Callable[[tf.Tensor], Any], x: tf.Tensor, function: Callable[..., Any]
) -> tf.Tensor:
    """The derivative that the user's surrogate returns, checked."""
    subject = f"{api}: the surrogate {text.name_of(surrogate)!r} of '{text.name_of(function)}'"
    try:
        derivative = surrogate(x)
    except TypeError as error:
        signature = mismatched_signature(surrogate, [x], {})
        if signature is None:
            raise
        raise TypeError(
            f"{subject} does not take x alone; expected a function of one argument, got {signature}. Write it as a "
            "function of x."
        ) from error
    if isinstance(derivative, (int, float, np.ndarray, np.generic)):
        derivative = tf.cast(derivative, x.dtype)
    if not tf.is_tensor(derivative):
        raise TypeError(
            f"{subject} returned no derivative; expected a Tensor, got {text.describe(derivative)}. Return the "
            "derivative at x, in its shape and dtype."
        )
    if derivative.dtype != x.dtype:
        raise ValueError(
            f"{subject} returned a derivative of the wrong dtype; expected {x.dtype.name}, the dtype of x, got "
            f"{derivative.dtype.name}. Cast it with tf.cast."
        )
    if not broadcasts_to(derivative.shape, x.shape):
        raise ValueError(
            f"{subject} returned a derivative of the wrong shape; expected {x.shape}, the shape of x, got "
            f"{derivative.shape}. Return one number for each element of x."
        )
    return derivative


def _to_real_tensor(api: str, function: Callable[..., Any], leaves: Sequence[Any]) -> tf.Tensor:
    """The first argument as a Tensor, or TypeError."""
    first = leaves[0] if leaves else None
    is_number = isinstance(first, (tf.Tensor, np.ndarray, np.generic, float))
    if is_number or as_variable(first) is not None:
        x = tf.convert_to_tensor(first)
        if x.dtype.is_floating:
            return x
        first = x
    got = text.describe(first) if leaves else "no argument"
    raise TypeError(
        f"{api}: '{text.name_of(function)}' has no x to differentiate with respect to; expected real numbers as its "
        f"first argument, got {got}. Pass a Tensor or Variable of a floating dtype first."
    )


def to_derivative(api: str, surrogate: Any, slope: Any) -> Callable[[tf.Tensor], tf.Tensor]:
    """The derivative of a surrogate, built-in or the user's own, as a function of x."""
    if isinstance(slope, bool) or not isinstance(slope, (int, float, np.number)) or not slope > 0:
        raise ValueError(
            f"{api}: the slope is not a positive number; expected a number above 0, got {slope!r}. Pass its size."
        )
    if isinstance(surrogate, str) and surrogate in _DERIVATIVES:
        return lambda x: _DERIVATIVES[surrogate](x, float(slope))
    if callable(surrogate):
        return surrogate
    raise ValueError(
        f"{api}: unknown surrogate; expected one of {', '.join(map(repr, _DERIVATIVES))}, or a "
        f"function of x that returns the derivative, got {surrogate!r}. Pass one of those names."
    )
