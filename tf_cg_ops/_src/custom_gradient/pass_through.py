"""`grad_pass_through`: a function through which the upstream gradient passes unchanged."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, pytree, tf_internal
from tf_cg_ops._src.core.types import P, R
from tf_cg_ops._src.custom_gradient.call import call_with_gradient
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.keras import registration


@tf_internal.autograph_artifact
@misplaced_calls.explains("grad_pass_through", "Decorate the function, then call the result: grad_pass_through(f)(x).")
def grad_pass_through(f: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function so that the upstream gradient passes through it unchanged: `dx = dy`.

    Use it to train through a rounding or a sign. `straight_through` also takes a surrogate.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x = tf.constant([0.2, 0.7])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = cg.grad_pass_through(tf.round)(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    [1.0, 10.0]

    Variables that `f` reads get no gradient.

    Args:
      f: A function with as many tensors in its arguments as in its value, of the same shapes.

    Returns:
      A function with the signature and the value of `f`.

    Raises:
      ValueError: When you compute a gradient: arguments and value differ in number or shape.
      TypeError: When you compute a gradient: the value is complex and the argument is real. Between floating-point
        dtypes the gradient is cast.

    Differs from `tf.grad_pass_through`:

    - Keyword arguments have gradients.
    - A value of another shape is an error; TensorFlow returns a gradient of the wrong shape.
    """

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        leaves = pytree.flatten_arguments("grad_pass_through", function, args, kwargs).values

        def grad_fn(*dy: Any, variables: Sequence[tf.Variable] = ()) -> Any:
            passed = list(dy)
            if len(leaves) == len(dy):
                pairs = zip(dy, leaves, strict=True)
                passed = [gradient if pytree.tensors_for_gradients(leaf) else None for gradient, leaf in pairs]
            return (passed, [None] * len(variables)) if variables else passed

        def compute(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs), grad_fn

        return call_with_gradient(function, args, kwargs, wording=_WORDING, compute=compute)

    return CustomGradient("grad_pass_through", f, run, options={})


registration.makers["grad_pass_through"] = grad_pass_through


_WORDING = dataclasses.replace(
    without_gradient_function("grad_pass_through", is_for_users_code=True),
    # The gradient passes unchanged, so if it does not fit the input, the value does not.
    subject="'{function}'",
    noun="value",
    advice="Use custom_gradient for a function whose value is unlike its inputs.",
)
