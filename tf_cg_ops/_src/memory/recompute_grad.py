"""`recompute_grad`: the gradient computes the function again, and keeps its arguments alone."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src import errors
from tf_cg_ops._src.core import library, pytree, slices, tapes, text, tf_internal
from tf_cg_ops._src.core.variables import as_variable
from tf_cg_ops._src.custom_gradient import decorator, wording
from tf_cg_ops._src.memory import captured_tensors


@tf_internal.autograph_artifact
def recompute_grad(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function so that its gradient computes it again instead of keeping what it computed.

    Value and gradients are those of `f`: with the Jacobian `J` of `f`,

        dx = dy @ J(x)

    Between the passes only the arguments are kept. Each gradient calls `f` once more, in a graph as in eager mode, and
    under XLA, which does not merge it with the first computation.

    Tensors that `f` reads beside its arguments have gradients: all of them in a graph; in eager mode those that are
    found before `f` runs, in its closure, its defaults, the arguments of a `functools.partial`, the globals and
    attributes that its code names, and lists and dictionaries of them. Others get `None`: pass them as arguments.

    What it does not do: keep a function from being stateful. One that draws random numbers, or writes to variables,
    does so again in the gradient.

    Relation to `tf.recompute_grad`: the same contract; also second derivatives, SavedModels, and gradients of keyword
    arguments and of Tensors that `f` closes over, which get `None` there.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> f = cg.recompute_grad(lambda x: tf.sin(x) ** 2)
    >>> x = tf.constant(0.5)
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = f(x)
    >>> abs(float(tape.gradient(y, x)) - 0.841471) < 1e-5
    True

    Args:
      f: The function; it may read variables.

    Returns:
      A function with the signature and the value of `f`.

    Raises:
      ValueError: Where a gradient is asked for, as `custom_gradient`; what the recomputation raises comes as it is.
    """

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        def with_closure(*args: Any, **kwargs: Any) -> Any:
            captures: list[tf.Tensor] = []
            reads = None if tf.executing_eagerly() else captured_tensors.GraphReads()
            if reads is None and tf_internal.could_possibly_record():
                captures = captured_tensors.watched_in_eager_mode(function)
            with tf_internal.stop_recording():
                result = function(*args, **kwargs)
            if reads is not None:
                captures = reads.tensors()

            def grad_fn(*dy: Any, variables: Sequence[tf.Variable] = ()) -> Any:
                return _gradients_of_recomputation(function, args, kwargs, dy, variables, captures)

            return result, decorator.GradientByCaptures(grad_fn, captures)

        return decorator.run(with_closure, args, kwargs, terms=wording.RECOMPUTE_GRAD, written=function)

    return decorator.CustomGradient("recompute_grad", f, run)


def _gradients_of_recomputation(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    dy: Sequence[Any],
    variables: Sequence[tf.Variable],
    captures: Sequence[tf.Tensor],
) -> Any:
    """What a gradient function returns, and the gradients by the captures."""
    # After the upstream is there, and apart from the first computation, or a graph could compute it early or never.
    upstream = [tensor for gradient in dy for tensor in pytree.tensors_for_gradients(gradient)]
    args, kwargs = pytree.map_tensors((list(args), kwargs), lambda t: library.custom_gradient_barrier(t, upstream))
    leaves = pytree.flatten_arguments("recompute_grad", function, args, kwargs).values
    sources = [leaf for leaf in leaves if pytree.tensors_for_gradients(leaf)]
    # What tapes know of a Variable of Keras is the one behind it.
    sources = [leaf if (v := as_variable(leaf)) is None else v for leaf in sources]
    if tf.executing_eagerly() and not tapes.new_tapes_record():
        gradients = _gradients_in_a_graph(function, args, kwargs, dy, variables, captures)
    else:
        # As the graph reads them.
        graph = tf.compat.v1.get_default_graph()
        captures = [tf_internal.capture(graph, tensor) for tensor in captures]
        with tf.GradientTape() as tape:
            tape.watch([*sources, *captures])
            outputs = _outputs_again(function, args, kwargs, dy)
        targets = [(output, gradient) for output, gradient in zip(outputs, dy, strict=True) if tf.is_tensor(output)]
        gradients = tape.gradient(
            [output for output, _ in targets],
            [*sources, *variables, *captures],
            output_gradients=[gradient for _, gradient in targets],
        )
    by_source = iter(gradients)
    by_argument = [next(by_source) if pytree.tensors_for_gradients(leaf) else None for leaf in leaves]
    by_variable = [next(by_source) for _ in variables]
    return (by_argument, by_variable) if variables else by_argument, list(by_source)


def _outputs_again(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], dy: Sequence[Any]
) -> list[Any]:
    """The outputs of the function, of which there have to be as many as the first time."""
    outputs = tf.nest.flatten(function(*args, **kwargs))
    if len(outputs) != len(dy):
        expected = text.count(len(dy), "output")
        message = errors.RECOMPUTED_OTHERWISE
        raise ValueError(message.format(function=text.name_of(function), expected=expected, got=len(outputs)))
    return outputs


def _gradients_in_a_graph(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    dy: Sequence[Any],
    variables: Sequence[tf.Variable],
    captures: Sequence[tf.Tensor],
) -> list[Any]:
    """The gradients by the differentiable leaves, the variables and the captures, without a tape.

    Forward mode stops those.
    """

    @tf.function(autograph=False)
    def traced(args: Sequence[Any], kwargs: dict[str, Any], dy: Sequence[Any]) -> list[Any]:
        outputs = _outputs_again(function, args, kwargs, dy)
        targets = [pytree.tensors_for_gradients(output) for output in outputs]
        upstream = [pytree.tensors_for_gradients(gradient) for gradient in dy]
        leaves = pytree.flatten_arguments("recompute_grad", function, args, kwargs).values
        sources = [tensors for leaf in leaves if (tensors := pytree.tensors_for_gradients(leaf))]
        graph = tf.compat.v1.get_default_graph()
        inside = [tf_internal.capture(graph, tensor) for tensor in captures]
        found = tf.gradients(
            [tensor for tensors in targets for tensor in tensors],
            [*(tensor for tensors in sources for tensor in tensors), *variables, *inside],
            [tensor for tensors in upstream for tensor in tensors],
        )
        return [slices.to_dense(gradient) for gradient in found]

    # A graph it is also where tf.config.run_functions_eagerly turns functions into Python.
    found = iter(traced.get_concrete_function(args, kwargs, dy)(args, kwargs, dy))
    leaves = pytree.flatten_arguments("recompute_grad", function, args, kwargs).values
    components = [(leaf, tensors) for leaf in leaves if (tensors := pytree.tensors_for_gradients(leaf))]
    gradients = [
        gradient[0] if len(tensors) == 1 else pytree.replace_tensors([leaf], [tensors], gradient)[0]
        for leaf, tensors in components
        for gradient in [[next(found) for _ in tensors]]
    ]
    return gradients + list(found)
