"""`grad_pass_through`: the upstream gradient, unchanged."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import pytree, tf_internal
from tf_cg_ops._src.custom_gradient import decorator, wording


@tf_internal.autograph_artifact
def grad_pass_through(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function so that upstream gradients pass through it unchanged: `dx = dy`.

    Relation to `tf.grad_pass_through`: the same contract. Variables that `f` reads get no gradient.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x = tf.constant([0.2, 0.7])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = cg.grad_pass_through(tf.round)(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    [1.0, 10.0]

    Args:
      f: A function with as many tensors in its arguments as in its value, of the same shapes.

    Returns:
      A function with the signature and the value of `f`.

    Raises:
      ValueError: Where a gradient is asked for: arguments and value differ in number, dtype or shape.
    """

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        def with_closure(*args: Any, **kwargs: Any) -> Any:
            def grad_fn(*dy: Any, variables: Sequence[tf.Variable] = ()) -> Any:
                passed = list(dy)
                leaves = pytree.flatten_arguments("grad_pass_through", function, args, kwargs).values
                has_gradient = [bool(pytree.tensors_for_gradients(leaf)) for leaf in leaves]
                # A tf.function passes defaults, too, such as the name=None of tf.round: they are no input.
                if sum(has_gradient) == len(dy):
                    upstream = iter(dy)
                    passed = [next(upstream) if is_tensor else None for is_tensor in has_gradient]
                return (passed, [None] * len(variables)) if variables else passed

            return function(*args, **kwargs), grad_fn

        return decorator.run(with_closure, args, kwargs, terms=wording.GRAD_PASS_THROUGH, written=function)

    return decorator.CustomGradient("grad_pass_through", f, run)
