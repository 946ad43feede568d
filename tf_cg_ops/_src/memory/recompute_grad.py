"""`recompute_grad`: a gradient that recomputes the function, so that only its arguments are kept."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import library, pytree, slices, text, tf_internal
from tf_cg_ops._src.core.variables import as_variable, handles_of
from tf_cg_ops._src.custom_gradient.attach import GradFnWithCaptures, call_with_gradient
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.custom_gradient.wording import Wording, WordingWithoutGradientFunction
from tf_cg_ops._src.embed_gradient.api import embed_gradient
from tf_cg_ops._src.memory.checkpoint_name import Keep, check_keep
from tf_cg_ops._src.memory.replay import Replay
from tf_cg_ops._src.rewrite import traces
from tf_cg_ops._src.rewrite.traced_call import TracedCall, explained

_WORDING = WordingWithoutGradientFunction("recompute_grad")


@tf_internal.autograph_artifact
def recompute_grad(f: Callable[..., Any] | None = None, *, keep: Keep = ()) -> Callable[..., Any]:
    """Decorates a function so that its gradient recomputes it, instead of keeping its intermediate values.

    Value and gradients are those of `f`: with the Jacobian `J` of `f`,

        dx = dy @ J(x)

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> f = cg.recompute_grad(lambda x: tf.sin(x) ** 2)
    >>> x = tf.constant(0.5)
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = f(x)
    >>> abs(float(tape.gradient(y, x)) - 0.841471) < 1e-5
    True

    Only the arguments are kept between the passes, and what stateful ops returned. Each gradient computes the rest once
    more: in eager mode, in a graph, and under XLA, which does not merge the two computations.

    The gradient is that of the computation that ran. A random op takes its numbers from a seed, which is kept: dropout
    has one mask for the value and the gradient. Variables are read as they were in the forward pass, and written once.
    With a seed of an op (`tf.random.uniform(..., seed=1)`) the numbers are the same in each run of a program, but not
    those of the plain function.

    Loops and branches may draw random numbers and read variables. Other stateful ops in them are an error if the value
    depends on what they return, as is an op with state and a gradient, such as that of `tf.py_function`.

    `f` is traced, in eager mode once for each signature of its arguments, as by `tf.function`: it sees Tensors without
    values, Python code runs once, and values that it reads from outside stay those of the first call. In eager mode
    outside of tapes `f` itself is called.

    `f` may close over Tensors: they have gradients, too.

    `keep` names values, by `checkpoint_name`, that are kept and not computed again, or is a predicate on the ops of
    `f`, such as `lambda op: op.type == "MatMul"`: less time for more memory. It does not reach into loops and branches.

    Compared with `tf.recompute_grad`: the same contract, but for the tracing in eager mode. There a second call of the
    function draws other random numbers and writes variables again; second derivatives, SavedModels, gradients of
    keyword arguments and of Tensors that `f` closes over fail or are `None`. `keep` is like the policies of
    `jax.checkpoint`.

    Args:
      f: The function; it may read and write variables. Without it, the decorator itself is returned.
      keep: A list of names, or a function of a `tf.Operation`.

    Returns:
      A function with the signature and the value of `f`.

    Raises:
      TypeError: `keep` holds something else than names.
      ValueError: When it is traced: `f` has no value of a name in `keep`. When a gradient is asked for, as
        `custom_gradient`. Errors of `f` come unchanged.
      NotImplementedError: When it is traced: `f` has a stateful op that can neither be kept nor computed again.
    """
    keep = check_keep(keep)
    if f is None:
        return functools.partial(recompute_grad, keep=keep)
    return CustomGradient("recompute_grad", f, functools.partial(run, _WORDING, keep))


def run(wording: Wording, keep: Keep, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Calls a function, with a gradient that recomputes it."""
    if tf.executing_eagerly() and not tf_internal.could_possibly_record():
        return function(*args, **kwargs)

    def with_grad_fn(*args: Any, **kwargs: Any) -> Any:
        call = _RecomputedCall.of(wording, keep, function, args, kwargs)
        tensors = pytree.tensors_in((args, kwargs))
        with tf_internal.stop_recording():
            outputs, residuals = call.replay.forward(tensors)

        def grad_fn(*dys: Any, variables: Sequence[tf.Variable] = ()) -> Any:
            return call.gradients(function, args, kwargs, residuals, dys, variables)

        return call.pack(outputs), GradFnWithCaptures(grad_fn, call.differentiable_captures, call.variables)

    return call_with_gradient(with_grad_fn, args, kwargs, wording=wording, user_function=function)


class _RecomputedCall:
    """A function traced for arguments of one signature, and its gradient."""

    def __init__(
        self,
        wording: Wording,
        keep: Keep,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> None:
        self._api = wording.api
        trace = TracedCall(function, args, kwargs)
        self.pack = trace.pack
        self.variables = trace.variables
        self.replay = Replay(wording, text.name_of(function), trace.graph, trace.inputs, keep)
        self.differentiable_captures = [t for t in self.replay.captures if tf_internal.is_trainable(t)]

    def gradients(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        residuals: Sequence[tf.Tensor],
        dys: Sequence[Any],
        variables: Sequence[tf.Variable],
    ) -> Any:
        """The answer of a `grad_fn`, and the gradients with respect to the captures."""
        upstream = [
            tensor
            for gradient in dys
            for tensor in pytree.tensors_for_gradients(slices.to_dense(gradient))
            if tf_internal.is_trainable(tensor)
        ]
        leaves = pytree.flatten_arguments(self._api, function, args, kwargs).values
        arguments = [variable for leaf in leaves if (variable := as_variable(leaf)) is not None]
        known = {id(handle): variable for variable in [*variables, *arguments] for handle in handles_of(variable)}
        # Derivatives of higher order go from a value that was read to its variable.
        reads = [known.get(id(handle)) for handle in self.replay.read_handles]
        residuals = [r if v is None else _read_of(v, r) for r, v in zip(residuals, reads, strict=True)]
        tensors, captures = pytree.tensors_in((args, kwargs)), self.replay.captures
        values = [*tensors, *captures, *residuals]
        if not tf.executing_eagerly():
            # The barrier makes the recomputation wait for the upstream gradient, and keeps the graph from merging it
            # with the forward pass.
            values = list(library.custom_gradient_barrier(values, upstream)) if values else values
        gradients = self.replay.backward(
            values[: len(tensors) + len(captures)], values[len(tensors) + len(captures) :], upstream
        )
        by_capture = gradients[len(tensors) : len(tensors) + len(captures)]
        by_residual = gradients[len(tensors) + len(captures) :]
        by_tensor: dict[int, list[Any]] = {}
        for tensor, gradient in zip(tensors, gradients, strict=False):
            by_tensor.setdefault(id(tensor), []).append(gradient)

        def of_variable(variable: tf.Variable) -> Any:
            handles = set(map(id, handles_of(variable)))
            by_handle = zip(self.replay.read_handles, by_residual, strict=True)
            found = [gradient for handle, gradient in by_handle if id(handle) in handles]
            return _sum([gradient for gradient in found if gradient is not None])

        given: set[int] = set()

        def of_leaf(leaf: Any) -> Any:
            variable = as_variable(leaf)
            if variable is not None:
                # A variable that comes twice has its whole gradient once.
                handles = set(map(id, handles_of(variable)))
                is_first = given.isdisjoint(handles)
                given.update(handles)
                return of_variable(variable) if is_first else None
            parts = pytree.tensors_for_gradients(leaf)
            found = [by_tensor[id(part)].pop(0) if id(part) in by_tensor else None for part in parts]
            if len(found) <= 1 or all(gradient is None for gradient in found):
                return found[0] if found else None
            return pytree.replace_tensors([leaf], [parts], found)[0]

        by_argument = [of_leaf(leaf) for leaf in leaves]
        answer = (by_argument, [of_variable(v) for v in variables]) if variables else by_argument
        return answer, [g for g, t in zip(by_capture, captures, strict=True) if tf_internal.is_trainable(t)]

    @classmethod
    def of(
        cls,
        wording: Wording,
        keep: Keep,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> "_RecomputedCall":
        """The trace for these arguments: a new one in a graph, the same for the same signature in eager mode."""
        if not tf.executing_eagerly():
            return cls(wording, keep, function, args, kwargs)
        calls = traces.kept_with(function)
        key = keep, traces.signature_of((list(args), kwargs))
        if key not in calls:
            with explained(wording.api, function):
                calls[key] = cls(wording, keep, function, args, kwargs)
        return calls[key]


def _read_of(variable: tf.Variable, value: tf.Tensor) -> tf.Tensor:
    """A value that was read from a variable before, with the derivative 1 with respect to the variable."""
    if tf.executing_eagerly() and not tf_internal.could_possibly_record():
        return value
    return embed_gradient(value, tf.ones([], value.dtype), tf.convert_to_tensor(variable))


def _sum(gradients: list[Any]) -> Any:
    if len(gradients) <= 1:
        return gradients[0] if gradients else None
    return tf.add_n([slices.to_dense(gradient) for gradient in gradients])
