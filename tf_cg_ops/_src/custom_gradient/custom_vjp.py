"""`custom_vjp`: a forward and a backward pass that share residuals."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tf_cg_ops._src.core import convert, misplaced_calls, pytree, text, tf_internal
from tf_cg_ops._src.core.signature import arguments_by_name, as_function, check_argument_names, has_parameter
from tf_cg_ops._src.core.types import P, R, Structure
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
    forward: Callable[P, tuple[R, Structure]],
    backward: Callable[..., Structure],
    *,
    nondiff_argnames: Collection[str] = (),
    materialize_grads: bool = True,
    saved_orders: int | None = None,
) -> Callable[P, R]:
    """Makes a function from a forward pass and a backward pass, which share residuals instead of a closure.

    Use it if you have both passes as functions, as in `torch.autograd.Function` and `jax.custom_vjp`.

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

    `forward(*args, **kwargs)` returns `(y, residuals)`. With one upstream gradient in `dy` for each tensor of `y`, of
    its shape and dtype, the gradient is

        dx = backward(residuals, *dy, **nondiff)

    with one entry for each differentiable argument, as in `tf_cg_ops.custom_gradient`. `nondiff` has the arguments that
    you name in `nondiff_argnames`.

    `backward` can take two more keyword arguments:

    - `variables`, if `forward` reads variables: as in `custom_gradient`.
    - `needed`, a tuple of bools, one for each entry of `dx`: False if no tape watches the argument, so that you can
      return `None` without computing its gradient. For a tape around a `tf.function`, in a session and in a loaded
      model all are True.

    Args:
      forward: Computes the value, and the residuals that the backward pass needs, in any structure.
      backward: Computes the gradients of the arguments, flat or in their structure; `None` for no gradient.
      nondiff_argnames: The names of the arguments of `forward` that have no gradient.
      materialize_grads: If False, `backward` gets `None` instead of zeros for an output that you did not use, except
        for a tape around a `tf.function` and in a loaded model.
      saved_orders: The highest order of derivative that a loaded model can compute if `backward` calls decorated
        functions, as in `custom_gradient`.

    Returns:
      A function with the signature of `forward` that returns its `y`.

    Raises:
      TypeError: An argument has the wrong type; `forward` does not return a pair; `backward` does not take the
        `variables` that `forward` reads. When you compute a gradient: as in `custom_gradient`.
      ValueError: `nondiff_argnames` has a name that is not an argument of `forward`, or `saved_orders` is less than 1.
        When you compute a gradient: as in `custom_gradient`.

    Differs from `jax.custom_vjp`:

    - You pass both functions at once; it is not a decorator.
    - Arguments without a gradient are named, and reach `backward` as keywords.
    - `needed` and `materialize_grads` come from `torch.autograd.Function`, where they are `ctx.needs_input_grad` and
      `ctx.set_materialize_grads`.
    """
    for name, function, call in (("forward", forward, "*args"), ("backward", backward, "residuals, *dys")):
        misplaced_calls.check_function("custom_vjp", name, function, f"Pass the function itself: {name}({call}).")
    backward = as_function(backward)
    nondiff_argnames = check_argument_names("custom_vjp", forward, nondiff_argnames, _NOT_AS_IN_JAX)
    saved_orders = check_saved_orders("custom_vjp", saved_orders)
    materialize_grads = convert.to_bool("custom_vjp", "materialize_grads", materialize_grads)
    takes_needed = "needed" not in nondiff_argnames and has_parameter(backward, "needed")
    parameters = ", ".join(["residuals", "*dys", *nondiff_argnames, *["needed"][:takes_needed]])
    wording = Wording(
        "custom_vjp",
        subject=f"backward '{text.name_of(backward)}' of '{{function}}'",
        gradient_function="backward",
        parameters=parameters,
        binds_arguments=True,
        names_keywords=True,
        how_to_call="Unlike in PyTorch, forward takes no ctx: it returns (value, residuals).",
        takes=f"the residuals and {Wording.takes}",
        advice=f"The order of its arguments is backward({parameters}).",
    )

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        nondiff = arguments_by_name("custom_vjp", function, args, kwargs, nondiff_argnames)
        nondiff = {name: pytree.with_own_containers(value) for name, value in nondiff.items()}

        def compute(*args: Any, **kwargs: Any) -> Any:
            answer = function(*args, **kwargs)
            value, residuals = pytree.pair(f"custom_vjp: '{text.name_of(function)}'", "value, residuals", answer)
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
