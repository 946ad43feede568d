"""`recompute_grad`: a gradient that recomputes the function, so that only its arguments are kept."""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, overload

import tensorflow as tf

from tf_cg_ops._src.core import library, pytree, slices, text, tf_internal
from tf_cg_ops._src.core.types import P, R
from tf_cg_ops._src.core.variables import as_variable, handles_of
from tf_cg_ops._src.custom_gradient.call import GradFn, call_with_gradient
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient
from tf_cg_ops._src.custom_gradient.wording import Wording, without_gradient_function
from tf_cg_ops._src.memory.checkpoint_name import Keep, check_keep
from tf_cg_ops._src.memory.forward_pass import with_derivative_of
from tf_cg_ops._src.memory.replay import Replay
from tf_cg_ops._src.rewrite import traces
from tf_cg_ops._src.rewrite.traced_call import TracedCall

_WORDING = without_gradient_function("recompute_grad")


@overload
def recompute_grad(f: Callable[P, R], *, keep: Keep = ()) -> Callable[P, R]: ...
@overload
def recompute_grad(f: None = None, *, keep: Keep = ()) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
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

    `f` is traced. In eager mode `tf.function` decides when to trace it again: Tensors and NumPy arrays are inputs, so a
    new batch runs the same trace; a Python number is a constant, so each new number is a new trace, and TensorFlow
    warns if there are many; other objects count by identity and aren't kept alive. Inside, `f` sees Tensors without
    values. Python values that it reads from outside stay those of the first call, but a new Tensor or variable in its
    closure, its module or its object is a new trace. Without a tape, `f` itself is called.

    A recomputed function inside another one is recomputed once more in the backward pass. Layers in a
    `keras.RematScope` aren't: the outermost one counts.

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
    return CustomGradient("recompute_grad", f, functools.partial(call_with_recomputation, _WORDING, keep))


def call_with_recomputation(
    wording: Wording,
    keep: Keep,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    traced_for: Callable[..., Any] | None = None,
) -> Any:
    """Calls a function, with a gradient that recomputes it.

    In eager mode a trace of it is kept as long as the function, or the one that it is `traced_for`.
    """
    if tf.executing_eagerly() and not tf_internal.could_possibly_record():
        with traces.variables_reused(function if traced_for is None else traced_for):
            return function(*args, **kwargs)

    def with_grad_fn(*args: Any, **kwargs: Any) -> Any:
        inputs = traces.arrays_to_tensors((args, kwargs))
        key = ("recompute_grad", keep, *inputs)
        call = traces.find_or_make(
            wording.api, function, key, lambda: _RecomputedCall(wording, keep, function, *inputs), owner=traced_for
        )
        tensors = pytree.tensors_in(inputs)
        leaves = pytree.flatten_arguments(wording.api, function, args, kwargs).values
        passed = [variable for leaf in leaves if (variable := as_variable(leaf)) is not None]
        unreported = call.unreported_reads(passed)
        with tf_internal.stop_recording():
            outputs, residuals = call.replay.forward(tensors)

        def grad_fn(*dys: Any, needed: Sequence[bool], variables: Sequence[tf.Variable] = ()) -> Any:
            # A graph has one gradient for its tapes and for the rule that it holds.
            skipped = {
                id(tensor)
                for leaf, is_needed in zip(leaves, needed, strict=True)
                if not is_needed and tf.executing_eagerly()
                for tensor in pytree.tensors_for_gradients(leaf)
            }
            needs = [id(tensor) not in skipped for tensor in tensors]
            gradients = call.gradients(tensors, residuals, dys, [*variables, *passed], needs)
            by_leaf = [gradients.take_leaf(leaf) for leaf in leaves]
            by_variable = [gradients.take(*handles_of(variable)) for variable in variables]
            sources = [*call.differentiable_captures, *(handle for handle, _ in unreported)]
            by_capture = [gradients.take(source) for source in sources]
            return (by_leaf, by_variable) if variables else by_leaf, by_capture

        captures = [*call.differentiable_captures, *(_read(handle, dtype) for handle, dtype in unreported)]
        return call.pack(outputs), GradFn(grad_fn, captures, call.variables, takes_needed=True)

    return call_with_gradient(function, args, kwargs, wording=wording, compute=with_grad_fn)


_thread = threading.local()


def is_recomputing() -> bool:
    """Whether a function is traced now whose gradient will recompute it."""
    return getattr(_thread, "depth", 0) > 0


class _RecomputedCall:
    """A function traced for arguments of one signature, and its gradient."""

    def __init__(
        self, wording: Wording, keep: Keep, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        _thread.depth = getattr(_thread, "depth", 0) + 1
        try:
            trace = TracedCall(function, args, kwargs)
        finally:
            _thread.depth -= 1
        self.pack = trace.pack
        self.variables = trace.variables
        self.replay = Replay(wording, text.name_of(function), trace.graph, trace.inputs, keep)
        self.differentiable_captures = [t for t in self.replay.captures if tf_internal.is_trainable(t)]

    def unreported_reads(self, passed: Sequence[tf.Variable]) -> list[tuple[Any, tf.DType]]:
        """The handle and dtype of each variable that was read, but not passed, and that TensorFlow did not report.

        It reports no variable that is not trainable, but a tape may watch one.
        """
        reported = {id(handle) for variable in (*self.variables, *passed) for handle in handles_of(variable)}
        reads = {id(handle): (handle, dtype) for handle, dtype in self.replay.reads if tf_internal.is_trainable(dtype)}
        return [read for key, read in reads.items() if key not in reported]

    def gradients(
        self,
        tensors: Sequence[tf.Tensor],
        residuals: Sequence[tf.Tensor],
        dys: Sequence[Any],
        variables: Sequence[tf.Variable],
        needed: Sequence[bool],
    ) -> "_Gradients":
        """The gradients with respect to the Tensors that need them, all captures, and the handles of variables."""
        upstream = [
            tensor
            for gradient in dys
            for tensor in pytree.tensors_for_gradients(slices.to_dense(gradient))
            if tf_internal.is_trainable(tensor)
        ]
        # Derivatives of higher order go from a value that was read to its variable.
        variable_of = {id(handle): variable for variable in variables for handle in handles_of(variable)}
        handles = self.replay.read_handles
        residuals = [
            residual if handle is None else _as_read(residual, handle, variable_of.get(id(handle)))
            for residual, handle in zip(residuals, handles, strict=True)
        ]
        values = [*tensors, *self.replay.captures, *residuals]
        if not tf.executing_eagerly() and values:
            # The barrier makes the recomputation wait for the upstream gradient, and keeps the graph from merging it
            # with the forward pass.
            values = list(library.custom_gradient_barrier(values, upstream))
        return _Gradients([*tensors, *self.replay.captures, *handles], self.replay.backward(values, upstream, needed))


class _Gradients:
    """Gradients by their Tensor or handle of a variable. Each is taken once.

    A Tensor or variable that is passed in several places has its whole gradient in the first one.
    """

    def __init__(self, sources: Sequence[Any], gradients: Sequence[Any]) -> None:
        self._left: dict[int, list[Any]] = {}
        for source, gradient in zip(sources, gradients, strict=True):
            if gradient is not None:
                self._left.setdefault(id(source), []).append(gradient)

    def take(self, *sources: Any) -> Any:
        """The sum of the gradients with respect to these sources; None if there is none, or none is left."""
        taken = [gradient for source in sources for gradient in self._left.pop(id(source), [])]
        if len(taken) <= 1:
            return taken[0] if taken else None
        return tf.add_n([slices.to_dense(gradient) for gradient in taken])

    def take_leaf(self, leaf: Any) -> Any:
        """The gradient with respect to a leaf of the arguments."""
        variable = as_variable(leaf)
        if variable is not None:
            return self.take(*handles_of(variable))
        parts = pytree.tensors_for_gradients(leaf)
        found = [self.take(part) for part in parts]
        if len(found) <= 1 or all(gradient is None for gradient in found):
            return found[0] if found else None
        return pytree.replace_tensors([leaf], [parts], found)[0]


def _read(handle: Any, dtype: tf.DType) -> tf.Tensor:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def _as_read(value: tf.Tensor, handle: Any, variable: tf.Variable | None) -> tf.Tensor:
    """A value that was read from a variable before, with the derivative 1 with respect to the variable."""
    if (tf.executing_eagerly() and not tf_internal.could_possibly_record()) or not tf_internal.is_trainable(value):
        return value
    read = _read(handle, value.dtype) if variable is None else tf.convert_to_tensor(variable)
    return with_derivative_of(value, read)
