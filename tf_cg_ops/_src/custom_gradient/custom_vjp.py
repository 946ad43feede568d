"""`custom_vjp`: a forward and a backward pass that share residuals."""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tf_cg_ops._src.core import text, tf_internal
from tf_cg_ops._src.core.signature import arguments_by_name, check_argument_names
from tf_cg_ops._src.custom_gradient import decorator, wording


@tf_internal.autograph_artifact
def custom_vjp(
    forward: Callable[..., Any], backward: Callable[..., Any], nondiff_argnames: Collection[str] = ()
) -> Callable[..., Any]:
    """Makes a function of a forward and a backward pass that share residuals instead of a closure.

    `forward(*args, **kwargs)` returns `(y, residuals)`; the gradient for the upstream gradients `dy` is

        dx = backward(residuals, *dy, **nondiff)

    with one entry for each differentiable argument. `nondiff` holds the arguments that `nondiff_argnames` names, as
    they were passed.

    Relation to upstream: `jax.custom_vjp` and TensorFlow Probability's internal decorator have the same two passes.
    `tf_cg_ops.custom_gradient` is the same thing with a closure: all that it says holds here, for `backward` in the
    place of `grad_fn`. Where `forward` reads variables, `backward` takes `variables`, too.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> def forward(x, limit):
    ...     return tf.clip_by_value(x, -limit, limit), tf.abs(x)
    >>> def backward(size, dy, limit):
    ...     return tf.where(size <= 2 * limit, dy, tf.zeros_like(dy))
    >>> clip = cg.custom_vjp(forward, backward, nondiff_argnames=["limit"])
    >>> x = tf.constant([0.5, 1.5, 2.5])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = clip(x, limit=1.0)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0, 100.0])).numpy().tolist()
    [1.0, 10.0, 0.0]

    Args:
      forward: Computes the value and whatever the backward pass needs of it, in any structure.
      backward: Computes the gradients of the arguments, flat or in their structure; `None` for none.
      nondiff_argnames: The names of arguments of `forward` that have no gradient.

    Returns:
      A function with the signature of `forward` that returns its `y`.

    Raises:
      ValueError: As `custom_gradient`; at the decoration, where `nondiff_argnames` names no arguments of `forward`.
      TypeError: As `custom_gradient`; at the call, where `forward` returns no pair.
    """
    if not callable(backward):
        raise TypeError(
            "custom_vjp: backward is not a function; expected a function or another callable, got "
            f"{text.describe_type(backward)}. Pass the function itself: backward(residuals, *dys)."
        )
    nondiff_argnames = check_argument_names("custom_vjp", forward, nondiff_argnames)
    parameters = ", ".join(["residuals", "*dys", *nondiff_argnames])
    terms = wording.Terms(
        "custom_vjp",
        rule=f"backward '{text.name_of(backward)}' of '{{function}}'",
        name="backward",
        leading="residuals and ",
        parameters=parameters,
        parameters_with_variables=f"{parameters}, variables=None",
        beside_the_value=("residuals", "residuals"),
        traced="a backward",
        traced_in="backward",
        written=backward,
    )

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        constants = arguments_by_name("custom_vjp", function, args, kwargs, nondiff_argnames)

        def with_closure(*args: Any, **kwargs: Any) -> Any:
            answer = function(*args, **kwargs)
            if not isinstance(answer, tuple) or len(answer) != 2:
                return answer
            return answer[0], functools.partial(backward, answer[1], **constants)

        return decorator.run(with_closure, args, kwargs, nondiff_argnames, terms, function)

    return decorator.CustomGradient("custom_vjp", forward, run)
