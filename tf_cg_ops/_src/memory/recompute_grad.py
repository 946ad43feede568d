"""`recompute_grad`: a gradient that recomputes the function, so that only its arguments are kept."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import library, pytree, slices, tapes, text, tf_internal
from tf_cg_ops._src.core.variables import as_variable
from tf_cg_ops._src.custom_gradient.attach import GradFnWithCaptures, call_with_gradient
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.custom_gradient.wording import WordingWithoutGradientFunction
from tf_cg_ops._src.memory.captured_tensors import GraphCaptureWatcher, find_watched_captures

_WORDING = WordingWithoutGradientFunction("recompute_grad")


@tf_internal.autograph_artifact
def recompute_grad(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function so that its gradient recomputes it, instead of keeping its intermediate values.

    Value and gradients are those of `f`: with the Jacobian `J` of `f`,

        dx = dy @ J(x)

    Only the arguments are kept between the passes. Each gradient calls `f` once more: in eager mode, in a graph, and
    under XLA, which does not merge the two computations.

    Tensors that `f` closes over have gradients. In a graph all of them have. In eager mode only those have that are
    found before `f` runs: in its closure, its defaults, the arguments of a `functools.partial`, the globals and
    attributes that its code names, and lists and dictionaries of them. Others get `None`: pass them as arguments.

    A stateful function is stateful twice: one that draws random numbers, or writes to variables, does so again in the
    gradient.

    Compared with `tf.recompute_grad`: the same contract; also second derivatives, SavedModels, and gradients of keyword
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
      ValueError: When a gradient is asked for, as `custom_gradient`. Errors of the recomputation come unchanged.
    """

    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        def with_grad_fn(*args: Any, **kwargs: Any) -> Any:
            captures: list[tf.Tensor] = []
            watcher = None if tf.executing_eagerly() else GraphCaptureWatcher()
            if watcher is None and tf_internal.could_possibly_record():
                captures = find_watched_captures(function)
            with tf_internal.stop_recording():
                value = function(*args, **kwargs)
            if watcher is not None:
                captures = watcher.captures()

            def grad_fn(*dys: Any, variables: Sequence[tf.Variable] = ()) -> Any:
                return _recomputed_gradients(function, args, kwargs, dys, variables, captures)

            return value, GradFnWithCaptures(grad_fn, captures)

        return call_with_gradient(with_grad_fn, args, kwargs, wording=_WORDING, user_function=function)

    return CustomGradient("recompute_grad", f, run)


def _recomputed_gradients(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    dys: Sequence[Any],
    variables: Sequence[tf.Variable],
    captures: Sequence[tf.Tensor],
) -> Any:
    """The answer of a `grad_fn`, and the gradients with respect to the captures."""
    # The barrier makes the recomputation wait for the upstream gradient, and keeps a graph from merging it with the
    # first computation.
    upstream = [tensor for gradient in dys for tensor in pytree.tensors_for_gradients(gradient)]
    args, kwargs = pytree.map_tensors((list(args), kwargs), lambda t: library.custom_gradient_barrier(t, upstream))
    leaves = pytree.flatten_arguments("recompute_grad", function, args, kwargs).values
    sources = [leaf for leaf in leaves if pytree.tensors_for_gradients(leaf)]
    # Tapes know the tf.Variable behind a Variable of Keras.
    sources = [leaf if (v := as_variable(leaf)) is None else v for leaf in sources]
    if tf.executing_eagerly() and not tapes.new_tapes_record():
        gradients = _gradients_in_graph(function, args, kwargs, dys, variables, captures)
    else:
        graph = tf.compat.v1.get_default_graph()
        captures = [tf_internal.capture(graph, tensor) for tensor in captures]
        with tf.GradientTape() as tape:
            tape.watch([*sources, *captures])
            outputs = _recompute_outputs(function, args, kwargs, len(dys))
        targets = [(output, dy) for output, dy in zip(outputs, dys, strict=True) if tf.is_tensor(output)]
        gradients = tape.gradient(
            [output for output, _ in targets],
            [*sources, *variables, *captures],
            output_gradients=[dy for _, dy in targets],
        )
    by_source = iter(gradients)
    by_argument = [next(by_source) if pytree.tensors_for_gradients(leaf) else None for leaf in leaves]
    by_variable = [next(by_source) for _ in variables]
    return (by_argument, by_variable) if variables else by_argument, list(by_source)


def _recompute_outputs(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], num_outputs: int
) -> list[Any]:
    """The flat outputs of a second call; ValueError if their number is not that of the first."""
    outputs = tf.nest.flatten(function(*args, **kwargs))
    if len(outputs) != num_outputs:
        raise ValueError(
            f"recompute_grad: '{text.name_of(function)}' returned another structure when it was computed again; "
            f"expected {text.count(num_outputs, 'output')}, got {len(outputs)}. Make it a function of its arguments "
            "alone."
        )
    return outputs


def _gradients_in_graph(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    dys: Sequence[Any],
    variables: Sequence[tf.Variable],
    captures: Sequence[tf.Tensor],
) -> list[Any]:
    """The gradients with respect to the differentiable leaves, the variables and the captures.

    For forward mode in eager mode, where no tape records.
    """

    @tf.function(autograph=False)
    def traced(args: Sequence[Any], kwargs: dict[str, Any], dys: Sequence[Any]) -> list[Any]:
        outputs = _recompute_outputs(function, args, kwargs, len(dys))
        targets = [pytree.tensors_for_gradients(output) for output in outputs]
        upstream = [pytree.tensors_for_gradients(gradient) for gradient in dys]
        leaves = pytree.flatten_arguments("recompute_grad", function, args, kwargs).values
        sources = [tensors for leaf in leaves if (tensors := pytree.tensors_for_gradients(leaf))]
        graph = tf.compat.v1.get_default_graph()
        captures_in_graph = [tf_internal.capture(graph, tensor) for tensor in captures]
        gradients = tf.gradients(
            [tensor for tensors in targets for tensor in tensors],
            [*(tensor for tensors in sources for tensor in tensors), *variables, *captures_in_graph],
            [tensor for tensors in upstream for tensor in tensors],
        )
        return [slices.to_dense(gradient) for gradient in gradients]

    # A concrete function stays a graph under tf.config.run_functions_eagerly.
    flat_gradients = iter(traced.get_concrete_function(args, kwargs, dys)(args, kwargs, dys))
    leaves = pytree.flatten_arguments("recompute_grad", function, args, kwargs).values
    components = [(leaf, tensors) for leaf in leaves if (tensors := pytree.tensors_for_gradients(leaf))]
    gradients = [
        gradient[0] if len(tensors) == 1 else pytree.replace_tensors([leaf], [tensors], gradient)[0]
        for leaf, tensors in components
        for gradient in [[next(flat_gradients) for _ in tensors]]
    ]
    return gradients + list(flat_gradients)
