"""`custom_vjp`: a forward and a backward pass that share residuals."""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tf_cg_ops._src.core import convert, misplaced_calls, text, tf_internal
from tf_cg_ops._src.core.signature import arguments_by_name, as_function, check_argument_names, has_parameter
from tf_cg_ops._src.core.types import P, R
from tf_cg_ops._src.custom_gradient.call import GradFn, call_with_gradient
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient, check_saved_orders
from tf_cg_ops._src.custom_gradient.wording import Wording

_NOT_AS_IN_JAX = (
    "Write f = tf_cg_ops.custom_vjp(forward, backward, nondiff_argnames=[...]), where forward(*args) returns (value, "
    "residuals): unlike jax.custom_vjp, it takes no third function and is not a decorator."
)


@tf_internal.autograph_artifact
@misplaced_calls.explains("custom_vjp", _NOT_AS_IN_JAX)
def custom_vjp(
    forward: Callable[P, tuple[R, Any]],
    backward: Callable[..., Any],
    *,
    nondiff_argnames: Collection[str] = (),
    materialize_grads: bool = True,
    saved_orders: int | None = None,
) -> Callable[P, R]:
    """Makes a function of a forward and a backward pass, which share residuals instead of a closure.

    `forward(*args, **kwargs)` returns `(y, residuals)`; the gradient for the upstream gradients `dy` is

        dx = backward(residuals, *dy, **nondiff)

    with one entry for each differentiable argument, or a dict with their names as keys. `nondiff` holds the arguments
    that `nondiff_argnames` names, as they were passed.

    If `backward` has a parameter `needed`, it gets a tuple of bools, one for each entry of `dx`: whether somebody can
    ask for that gradient. It need not compute the others, and returns `None` for them. In eager mode, and for a tape
    inside of a `tf.function`, these are the inputs that no tape watches. Otherwise a graph is made for all gradients,
    and all are needed: in a graph TensorFlow does not run the operations of a gradient that nobody reads, unless they
    have side effects, as Python functions do. For a tape around a `tf.function` it runs them all.

    With `materialize_grads=False`, the upstream gradient of an output that nobody used is `None` where that is known:
    in eager mode, and in a graph for a tape or `tf.gradients` in the same function. Elsewhere, such as for a tape
    around a `tf.function` and in a loaded model, it stays a Tensor of zeros.

    If `forward` reads variables, `backward` also takes `variables`. Everything else is as in
    `tf_cg_ops.custom_gradient`, with `backward` for `grad_fn`.

    Compared with others: `jax.custom_vjp` and TensorFlow Probability's internal decorator have the same two passes;
    `needed` is the `ctx.needs_input_grad` of `torch.autograd.Function`, and `materialize_grads` its
    `ctx.set_materialize_grads`.

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
      forward: Computes the value, and the residuals that the backward pass needs, in any structure.
      backward: Computes the gradients of the arguments, flat or in their structure; `None` for none. It may have
        parameters `variables` and `needed`.
      nondiff_argnames: The names of arguments of `forward` that have no gradient.
      materialize_grads: Whether `backward` gets zeros for an output that nobody used.
      saved_orders: As in `custom_gradient`: the highest order of derivative that a loaded model can compute if
        `backward` calls decorated functions.

    Returns:
      A function with the signature of `forward` that returns its `y`.

    Raises:
      ValueError: As `custom_gradient`; at the decoration, if `nondiff_argnames` names no arguments of `forward`, or
        `saved_orders` is less than 1.
      TypeError: As `custom_gradient`; at the decoration, if an argument has a wrong type; at the call, if `forward`
        does not return a pair.
    """
    for name, function, call in (("forward", forward, "*args"), ("backward", backward, "residuals, *dys")):
        if not callable(function):
            raise TypeError(
                f"custom_vjp: {name} must be a function, got {text.describe_type(function)}. Pass the function itself: "
                f"{name}({call})."
            )
    backward = as_function(backward)
    nondiff_argnames = check_argument_names("custom_vjp", forward, nondiff_argnames, _NOT_AS_IN_JAX)
    saved_orders = check_saved_orders("custom_vjp", saved_orders)
    materialize_grads = convert.to_bool("custom_vjp", "materialize_grads", materialize_grads)
    takes_needed = "needed" not in nondiff_argnames and has_parameter(backward, "needed")
    wording = Wording(
        "custom_vjp",
        subject=f"backward '{text.name_of(backward)}' of '{{function}}'",
        gradient_function="backward",
        parameters=", ".join(["residuals", "*dys", *nondiff_argnames, *["needed"][:takes_needed]]),
        binds_arguments=True,
        takes_other_upstream=_TAKES_OTHER_UPSTREAM,
    )

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        nondiff = arguments_by_name("custom_vjp", function, args, kwargs, nondiff_argnames)

        def compute(*args: Any, **kwargs: Any) -> Any:
            answer = function(*args, **kwargs)
            if not isinstance(answer, (tuple, list)) or len(answer) != 2:
                raise TypeError(
                    f"custom_vjp: '{text.name_of(function)}' did not return its value with its residuals; expected a "
                    f"pair (value, residuals), got {text.describe_type(answer)}. End it with: return value, residuals"
                )
            value, residuals = answer
            bound = functools.partial(backward, residuals, **nondiff)
            if materialize_grads and not takes_needed:
                return value, bound
            return value, GradFn(bound, takes_needed=takes_needed, materialize=materialize_grads)

        return call_with_gradient(
            function,
            args,
            kwargs,
            wording=wording,
            compute=compute,
            nondiff_argnames=nondiff_argnames,
            saved_orders=saved_orders,
        )

    return CustomGradient("custom_vjp", forward, run)


_TAKES_OTHER_UPSTREAM = (
    "{subject} does not take its residuals and upstream gradients; expected parameters for residuals and {upstream} "
    "(one for each leaf of the value), got backward{signature}. Write backward({parameters})."
)
