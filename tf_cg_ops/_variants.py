"""Functions made with `custom_gradient` for frequent purposes: residuals, recomputation, passing gradients through."""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from . import _captures, _checks, _decorator, _errors, _library, _slices, _structure, _tapes, _terms, _tf_internal


@_tf_internal.autograph_artifact
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
        raise TypeError(_errors.BACKWARD_NOT_A_FUNCTION.format(got=_checks.describe_answer(backward)))
    nondiff_argnames = _structure.check_names("custom_vjp", forward, nondiff_argnames)
    parameters = ", ".join(["residuals", "*dys", *nondiff_argnames])
    terms = _terms.Terms(
        "custom_vjp",
        rule=f"backward '{_structure.name_of(backward)}' of '{{function}}'",
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
        constants = _structure.named_arguments("custom_vjp", function, args, kwargs, nondiff_argnames)

        def with_closure(*args: Any, **kwargs: Any) -> Any:
            answer = function(*args, **kwargs)
            if not isinstance(answer, tuple) or len(answer) != 2:
                return answer
            return answer[0], functools.partial(backward, answer[1], **constants)

        return _decorator.run(with_closure, args, kwargs, nondiff_argnames, terms, function)

    return _decorator.CustomGradient("custom_vjp", forward, run)


@_tf_internal.autograph_artifact
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
            reads = None if tf.executing_eagerly() else _captures.GraphReads()
            if reads is None and _tf_internal.could_possibly_record():
                captures = _captures.watched_in_eager_mode(function)
            with _tf_internal.stop_recording():
                result = function(*args, **kwargs)
            if reads is not None:
                captures = reads.tensors()

            def grad_fn(*dy: Any, variables: Sequence[tf.Variable] = ()) -> Any:
                return _gradients_of_recomputation(function, args, kwargs, dy, variables, captures)

            return result, _decorator.GradientByCaptures(grad_fn, captures)

        return _decorator.run(with_closure, args, kwargs, terms=_terms.RECOMPUTE_GRAD, written=function)

    return _decorator.CustomGradient("recompute_grad", f, run)


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
    upstream = [tensor for gradient in dy for tensor in _structure.tensors_for_gradients(gradient)]
    args, kwargs = _structure.replace_all((list(args), kwargs), lambda t: _library.custom_gradient_barrier(t, upstream))
    leaves = _structure.flatten_arguments("recompute_grad", function, args, kwargs).values
    sources = [leaf for leaf in leaves if _structure.tensors_for_gradients(leaf)]
    # What tapes know of a Variable of Keras is the one behind it.
    sources = [leaf if (v := _structure.as_variable(leaf)) is None else v for leaf in sources]
    if tf.executing_eagerly() and not _tapes.new_tapes_record():
        gradients = _gradients_in_a_graph(function, args, kwargs, dy, variables, captures)
    else:
        # As the graph reads them.
        graph = tf.compat.v1.get_default_graph()
        captures = [_tf_internal.capture(graph, tensor) for tensor in captures]
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
    by_argument = [next(by_source) if _structure.tensors_for_gradients(leaf) else None for leaf in leaves]
    by_variable = [next(by_source) for _ in variables]
    return (by_argument, by_variable) if variables else by_argument, list(by_source)


def _outputs_again(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], dy: Sequence[Any]
) -> list[Any]:
    """The outputs of the function, of which there have to be as many as the first time."""
    outputs = tf.nest.flatten(function(*args, **kwargs))
    if len(outputs) != len(dy):
        expected = _checks.count(len(dy), "output")
        message = _errors.RECOMPUTED_OTHERWISE
        raise ValueError(message.format(function=_structure.name_of(function), expected=expected, got=len(outputs)))
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
        targets = [_structure.tensors_for_gradients(output) for output in outputs]
        upstream = [_structure.tensors_for_gradients(gradient) for gradient in dy]
        leaves = _structure.flatten_arguments("recompute_grad", function, args, kwargs).values
        sources = [tensors for leaf in leaves if (tensors := _structure.tensors_for_gradients(leaf))]
        graph = tf.compat.v1.get_default_graph()
        inside = [_tf_internal.capture(graph, tensor) for tensor in captures]
        found = tf.gradients(
            [tensor for tensors in targets for tensor in tensors],
            [*(tensor for tensors in sources for tensor in tensors), *variables, *inside],
            [tensor for tensors in upstream for tensor in tensors],
        )
        return [_slices.to_dense(gradient) for gradient in found]

    # A graph it is also where tf.config.run_functions_eagerly turns functions into Python.
    found = iter(traced.get_concrete_function(args, kwargs, dy)(args, kwargs, dy))
    leaves = _structure.flatten_arguments("recompute_grad", function, args, kwargs).values
    components = [(leaf, tensors) for leaf in leaves if (tensors := _structure.tensors_for_gradients(leaf))]
    gradients = [
        gradient[0] if len(tensors) == 1 else _structure.replace_tensors([leaf], [tensors], gradient)[0]
        for leaf, tensors in components
        for gradient in [[next(found) for _ in tensors]]
    ]
    return gradients + list(found)


@_tf_internal.autograph_artifact
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
                leaves = _structure.flatten_arguments("grad_pass_through", function, args, kwargs).values
                has_gradient = [bool(_structure.tensors_for_gradients(leaf)) for leaf in leaves]
                # A tf.function passes defaults, too, such as the name=None of tf.round: they are no input.
                if sum(has_gradient) == len(dy):
                    upstream = iter(dy)
                    passed = [next(upstream) if is_tensor else None for is_tensor in has_gradient]
                return (passed, [None] * len(variables)) if variables else passed

            return function(*args, **kwargs), grad_fn

        return _decorator.run(with_closure, args, kwargs, terms=_terms.GRAD_PASS_THROUGH, written=function)

    return _decorator.CustomGradient("grad_pass_through", f, run)
