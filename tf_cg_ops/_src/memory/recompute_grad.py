"""`recompute_grad`: a gradient that runs the function again, so that only its arguments are kept."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, overload

import tensorflow as tf

from tf_cg_ops._src.core import library, misplaced_calls, pytree, slices, text, tf_internal
from tf_cg_ops._src.core.types import P, R, Structure
from tf_cg_ops._src.core.variables import as_variable
from tf_cg_ops._src.custom_gradient.call import GradFn, call_with_gradient
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient, Method
from tf_cg_ops._src.custom_gradient.variables import handles_of
from tf_cg_ops._src.custom_gradient.wording import Wording, without_gradient_function
from tf_cg_ops._src.keras import registration
from tf_cg_ops._src.keras.dispatch import package_of_keras_tensors
from tf_cg_ops._src.memory import checkpoint_name
from tf_cg_ops._src.memory.checkpoint_name import Keep, check_keep
from tf_cg_ops._src.memory.forward_pass import with_derivative_of
from tf_cg_ops._src.memory.pieces import PiecesOfFunction
from tf_cg_ops._src.memory.plan import Memory, Plan, PlannedPiece, check_memory, make_plan
from tf_cg_ops._src.memory.replay import Replay
from tf_cg_ops._src.rewrite.built_functions import find_or_build
from tf_cg_ops._src.rewrite.traced_call import TracedCall, arrays_to_tensors

_WORDING = without_gradient_function("recompute_grad")

R_co = TypeVar("R_co", covariant=True)


class PlannedFunction(Protocol[P, R_co]):
    """For type checkers, a function with `memory`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any: ...
    def plan(self, *args: P.args, **kwargs: P.kwargs) -> Plan: ...


@overload
def recompute_grad(f: Callable[P, R], *, keep: Keep = (), memory: None = None) -> Callable[P, R]: ...
@overload
def recompute_grad(f: Callable[P, R], *, keep: Keep = (), memory: Memory) -> PlannedFunction[P, R]: ...
@overload
def recompute_grad(
    f: None = None, *, keep: Keep = (), memory: None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@overload
def recompute_grad(
    f: None = None, *, keep: Keep = (), memory: Memory
) -> Callable[[Callable[P, R]], PlannedFunction[P, R]]: ...
@tf_internal.autograph_artifact
@misplaced_calls.explains(
    "recompute_grad",
    "Write recompute_grad(f, keep=['name']), or keep=lambda op: op.type == 'MatMul', where keep says what the policy "
    "of jax.checkpoint does, or recompute_grad(f, memory='auto'). Bind other arguments, such as static ones, with "
    "functools.partial.",
)
def recompute_grad(
    f: Callable[..., Structure] | None = None,
    *,
    keep: Sequence[str] | Callable[[tf.Operation], bool] = (),
    memory: str | int | float | None = None,
) -> Callable[..., Structure]:
    """Decorates a function so that its gradient runs it again instead of keeping its intermediate values.

    Use it when training runs out of memory: on blocks of a model, or with `memory` on the whole model.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> @cg.recompute_grad
    ... def block(x):
    ...     return tf.nn.relu(x) ** 2
    >>> x = tf.constant([-1.0, 0.5, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = block(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0, 100.0])).numpy().tolist()
    [0.0, 10.0, 400.0]

    Values stay the same, except that TensorFlow's random ops draw other numbers than without the decorator. Between the
    passes only the arguments are kept, and what stateful ops returned. The backward pass uses the same random numbers
    and variable values as the forward pass, so dropout has one mask, and variables are written once. Tensors that `f`
    closes over have gradients, too.

    `keep` chooses values that are kept as well, which saves time and takes memory. List names that `checkpoint_name`
    gave, or pass a function that returns True for the ops whose results to keep. It does not reach into loops and
    branches.

    `memory` is for a whole model. The traced function is cut into segments, some of which are kept and others computed
    again, each when its upstream gradient arrives. Say how much memory the values and gradients of a training step may
    take:

    - `"auto"`: the least that cuts reach. At most one more forward pass.
    - `"2 GiB"` or an int: a number of bytes. As little as possible is computed again.
    - A float: a share of what the plain gradient takes, such as 0.5.

    `recompute_grad(f, memory=0.5).plan(x)` returns the plan for a call with `x`, a Tensor or a `tf.TensorSpec`:
    `peak_bytes`, `plain_bytes`, `extra_compute`, a share of the forward pass, and `segments`. Print it for a table;
    `plan.plot()` draws it. The plan of a method is `obj.method.plan(x)`. With `memory`, `keep` only says what is kept
    in any case. Loops, branches and called functions are not cut. Gradients of a value that is used in several segments
    can be summed in another order.

    In eager mode, each call under a tape traces `f`, so `f` reads Python values as they are then. NumPy arrays among
    the arguments arrive as Tensors. For speed, use it in a `tf.function`, which traces once for each signature.

    Loops and branches in `f` can draw random numbers and read variables. If the value depends on another stateful op in
    them, that is an error. `tf.py_function` is an error anywhere in `f`.

    Args:
      f: The function. It can read and write variables. Leave it out to use the decorator with parentheses.
      keep: A list of names, or a function of a `tf.Operation` such as `lambda op: op.type == "MatMul"`.
      memory: `"auto"`, a number of bytes as an int or a string, or a share as a float. By default, `f` is not cut.

    Returns:
      A function with the signature and the value of `f`.

    Raises:
      TypeError: `keep` or `memory` has another type.
      ValueError: `memory` is out of range, less than the least possible peak, or bytes although shapes are not known; a
        name in `keep` is not given in `f`.
      NotImplementedError: `f` has a stateful op that can neither be kept nor run again.

    Differs from `tf.recompute_grad`:

    - It traces `f` in eager mode.
    - The backward pass draws no new random numbers and writes no variables.
    - Second derivatives, SavedModels, and gradients of keyword arguments and captured Tensors work.
    - `keep` is added, like the policies of `jax.checkpoint`, and `memory`.

    Sources of `memory`: Chen et al., "Training deep nets with sublinear memory cost" (2016), arXiv:1604.06174; Kusumoto
    et al. (2019), arXiv:1905.11722; Beaumont et al. (2019), arXiv:1911.13214.
    """
    keep = check_keep(keep)
    if memory is not None:
        memory = check_memory(memory)
    if f is None:
        return functools.partial(recompute_grad, keep=keep, memory=memory)
    recomputation = Recomputation(_WORDING, keep, memory)
    return (CustomGradient if memory is None else Planned)("recompute_grad", f, recomputation)


class Planned(CustomGradient):
    """A function that is recomputed within a given memory."""

    __slots__ = ()

    def plan(self, /, *args: Any, **kwargs: Any) -> Plan:
        """Returns the plan for a call with these arguments: what is kept, what is computed again, and the peak."""
        decoration = self.__tf_cg_ops__()
        if decoration.owners and args and isinstance(args[0], decoration.owners):  # Base.method.plan(self, x)
            return self.__get__(args[0]).plan(*args[1:], **kwargs)
        return decoration.run.plan(decoration.function, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Binds a method, and its `plan`."""
        if super().__get__(instance, owner) is self:
            return self
        return types.MethodType(_PlannedMethod(self, instance), instance)


registration.classes.append(Planned)


class _PlannedMethod(Method):
    """The function of one bound method: Python looks there for `plan`, and does not say on which instance."""

    __slots__ = ("__instance", "__planned")

    def __init__(self, planned: Planned, instance: Any) -> None:
        super().__init__(planned)
        self.__planned, self.__instance = planned, instance

    def plan(self, /, *args: Any, **kwargs: Any) -> Plan:
        """Returns the plan for a call of the method with these arguments."""
        decoration = self.__planned.__tf_cg_ops__()
        instance = self.__instance
        return decoration.run.plan(decoration.function.__get__(instance, type(instance)), args, kwargs)

    def __eq__(self, other: Any) -> bool:
        return type(other) is _PlannedMethod and other.__planned is self.__planned

    def __hash__(self) -> int:
        return hash(self.__planned)

    def __reduce__(self) -> Any:
        return _PlannedMethod, (self.__planned, self.__instance)


@dataclasses.dataclass(frozen=True)
class Recomputation:
    """Calls functions with gradients that run them again, keeping what `keep` chooses, or within a `memory`."""

    wording: Wording
    keep: Keep = ()
    memory: Memory | None = None

    def __call__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The value of the function, with its gradient."""
        if tf.executing_eagerly() and not tf_internal.could_possibly_record():
            return function(*args, **kwargs)
        try:
            if self.memory is not None:
                return self._in_pieces(function, args, kwargs)

            def compute(*args: Any, **kwargs: Any) -> Any:
                trace, values = _traced(self.wording, function, args, kwargs)
                inside = [*trace.inputs, *trace.outside.inside]
                replay = find_or_build(
                    (self.wording.api, checkpoint_name.chosen(self.keep, trace.graph)),
                    trace.graph,
                    inside,
                    lambda: Replay(self.wording, text.name_of(function), trace.graph, inside, self.keep),
                )
                captures = [tensor for _, tensor in trace.outside.captures]
                trace.forget_outside()
                leaves = pytree.flatten_arguments(self.wording.api, function, args, kwargs).values
                outputs, grad_fn = _recomputed(replay, values, leaves, len(trace.inputs), captures, trace.variables)
                return trace.pack(outputs), grad_fn

            return call_with_gradient(function, args, kwargs, wording=self.wording, compute=compute)
        except _MergesReplicasError:
            warnings.warn(
                f"{self.wording.api}: '{text.name_of(function)}' is not recomputed, because it merges the replicas of "
                "a strategy, as an all_reduce or a synchronized batch normalization does. TensorFlow does not trace "
                "that. Values and gradients are the same. Merge outside of the function to save memory.",
                stacklevel=2,
            )
            return function(*args, **kwargs)

    def plan(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Plan:
        """The plan for a call with these arguments, Tensors or their specs."""
        if package_of_keras_tensors((args, kwargs)):
            raise TypeError("recompute_grad: plan takes Tensors or their tf.TensorSpec, got a KerasTensor.")
        is_spec = lambda leaf: isinstance(leaf, tf.TensorSpec)  # noqa: E731
        if any(map(is_spec, tf.nest.flatten((args, kwargs)))):
            with tf_internal.FuncGraph("plan").as_default():
                placeholder = lambda leaf: tf_internal.graph_placeholder(leaf.dtype, leaf.shape)  # noqa: E731
                args, kwargs = tf.nest.map_structure(
                    lambda leaf: placeholder(leaf) if is_spec(leaf) else leaf, (list(args), kwargs)
                )
                return self.plan(function, args, kwargs)
        trace, _ = _traced(self.wording, function, args, kwargs)
        return self._planned(function, trace)[0]

    def _planned(
        self, function: Callable[..., Any], trace: TracedCall
    ) -> tuple[Plan, list[PlannedPiece], Callable[[Any], bool]]:
        """The plan, its pieces, and the predicate of what is kept in any case."""
        assert self.memory is not None
        name, inside = text.name_of(function), [*trace.inputs, *trace.outside.inside]
        trained = {id(handle) for variable in trace.variables for handle in handles_of(variable)}
        outside = [*trace.outside.captures, *(pair for pair in trace.outside.handles if id(pair[1]) in trained)]
        sources = [*filter(tf_internal.is_trainable, trace.inputs), *(inside for inside, _ in outside)]
        is_kept = checkpoint_name.predicate(
            self.keep, name, checkpoint_name.operations_of(trace.graph), self.wording.api
        )
        return *make_plan(self.wording.api, name, self.memory, trace.graph, inside, sources, is_kept), is_kept

    def _in_pieces(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The value of the function, computed in the pieces of a plan."""
        api, name = self.wording.api, text.name_of(function)
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if graph is not None and not graph.building_function:
            raise NotImplementedError(
                f"{api}: '{name}' with memory must be called in eager mode or in a tf.function, got a graph of "
                "TensorFlow 1. Leave out memory, or build the graph with tf.function."
            )
        trace, values = _traced(self.wording, function, args, kwargs)
        inside = [*trace.inputs, *trace.outside.inside]

        def build() -> PiecesOfFunction:
            _, planned, is_kept = self._planned(function, trace)
            return PiecesOfFunction(self.wording, name, trace.graph, inside, planned, is_kept)

        key = api, checkpoint_name.chosen(self.keep, trace.graph), self.memory
        pieces = find_or_build(key, trace.graph, inside, build)
        ordered: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if graph is not None and not tf_internal.orders_side_effects(graph):
            ordered = tf_internal.control_dependencies_added(graph)
        with ordered:
            outputs = pieces(values, self._piece_runner(trace.variables))
        trace.forget_outside()
        return trace.pack(outputs)

    def _piece_runner(self, variables: Sequence[tf.Variable]) -> Callable[..., list[tf.Tensor]]:
        for variable in variables:  # Their handles are inputs of the pieces, which do not report that they read them.
            tf_internal.variable_accessed(variable)

        def run(name: str, replay: Replay, values: list[Any]) -> list[tf.Tensor]:
            tensors = [value for value in values if value.dtype != tf.resource]
            handles = {id(value) for value in values[len(tensors) :]}
            read = [v for v in variables if any(id(handle) in handles for handle in handles_of(v))]

            def piece(*tensors: tf.Tensor) -> Any:
                return _recomputed(replay, values, tensors, len(tensors), [], read)

            piece.__qualname__ = name
            outputs = call_with_gradient(piece, tensors, {}, wording=self.wording, compute=piece)
            return outputs if tf.executing_eagerly() else [*outputs[:1], *map(_alone, outputs[1:])]

        return run


def _recomputed(
    replay: Replay,
    values: list[Any],
    leaves: Sequence[Any],
    num_tensors: int,
    captures: list[tf.Tensor],
    variables: list[tf.Variable],
) -> tuple[list[tf.Tensor], GradFn]:
    """The outputs of a replay for these values, and their gradient with respect to the leaves of the arguments.

    The values are first the Tensors of the arguments, then the captures, then numbers and handles.
    """
    with tf_internal.stop_recording():
        outputs, residuals = replay.forward(values)
    call = _RecomputedCall(replay, values[:num_tensors], captures, values, residuals, variables)
    passed = [variable for leaf in leaves if (variable := as_variable(leaf)) is not None]
    unreported = call.unreported_reads(passed)

    def grad_fn(*dys: Any, needed: Sequence[bool], variables: Sequence[tf.Variable] = ()) -> Any:
        # In a graph, the tapes and the saved rule share one gradient, so nothing is skipped there.
        skipped = {
            id(tensor)
            for leaf, is_needed in zip(leaves, needed, strict=True)
            if not is_needed and tf.executing_eagerly()
            for tensor in pytree.tensors_for_gradients(leaf)
        }
        gradients = call.gradients(dys, [*variables, *passed], skipped)
        by_leaf = [gradients.take_leaf(leaf) for leaf in leaves]
        by_variable = [gradients.take(*handles_of(variable)) for variable in variables]
        sources = [*call.differentiable_captures, *(handle for handle, _ in unreported)]
        by_capture = [gradients.take(source) for source in sources]
        return (by_leaf, by_variable) if variables else by_leaf, by_capture

    captured = [*call.differentiable_captures, *(_read(handle, dtype) for handle, dtype in unreported)]
    return outputs, GradFn(grad_fn, captured, variables, takes_needed=True)


class _MergesReplicasError(Exception):
    """The traced function called `merge_call`, which only works in the graph of the replica."""


@contextlib.contextmanager
def _merges_noticed() -> Iterator[None]:
    """A context for a trace, which ends with _MergesReplicasError if the strategy refuses to merge replicas there."""
    replica = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
    if replica is None:
        yield
        return
    merge_call, refused = replica.merge_call, []

    def noticed(*args: Any, **kwargs: Any) -> Any:
        try:
            return merge_call(*args, **kwargs)
        except RuntimeError as error:
            refused.append(error)
            raise

    replica.merge_call = noticed
    try:
        yield
    except Exception as error:  # tf_keras raises a new one.
        if refused:
            raise _MergesReplicasError from error
        raise
    finally:
        replica.merge_call = merge_call


_thread = threading.local()


def is_recomputing() -> bool:
    """Whether this thread is tracing a function for `recompute_grad`."""
    return getattr(_thread, "depth", 0) > 0


def _traced(
    wording: Wording, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[TracedCall, list[Any]]:
    """Traces a call; returns the trace and the values of its inputs."""
    args, kwargs = arrays_to_tensors((args, kwargs))
    _thread.depth = getattr(_thread, "depth", 0) + 1
    try:
        with _merges_noticed():
            trace = TracedCall(function, args, kwargs)
    finally:
        _thread.depth -= 1
    return trace, [*pytree.tensors_in((args, kwargs)), *trace.outside.values]


@dataclasses.dataclass(frozen=True)
class _RecomputedCall:
    """One call of a traced function, and its gradient."""

    replay: Replay
    tensors: list[tf.Tensor]  # Of the arguments.
    captures: list[tf.Tensor]
    values: list[Any]  # All inputs of the replay: the Tensors, the captures, numbers, and handles.
    residuals: list[tf.Tensor]
    variables: list[tf.Variable]  # Reported by TensorFlow.

    @property
    def differentiable_captures(self) -> list[tf.Tensor]:
        """The captures that have gradients."""
        return [tensor for tensor in self.captures if tf_internal.is_trainable(tensor)]

    @property
    def _read_handles(self) -> list[Any]:
        """For each residual, the handle of the variable that it was read from, or None."""
        return [None if position is None else self.values[position] for position in self.replay.reads]

    def unreported_reads(self, passed: Sequence[tf.Variable]) -> list[tuple[Any, tf.DType]]:
        """The handle and dtype of each variable that was read, but neither passed nor reported by TensorFlow.

        TensorFlow only reports trainable variables, but a tape can watch any variable.
        """
        reported = {id(handle) for variable in (*self.variables, *passed) for handle in handles_of(variable)}
        pairs = zip(self._read_handles, self.residuals, strict=True)
        reads = {id(h): (h, value.dtype) for h, value in pairs if h is not None and tf_internal.is_trainable(value)}
        return [read for key, read in reads.items() if key not in reported]

    def gradients(self, dys: Sequence[Any], variables: Sequence[tf.Variable], skipped: set[int]) -> _Gradients:
        """The gradients of the Tensors without these ids, of all captures, and of the handles of variables."""
        upstream = [
            tensor
            for gradient in dys
            for tensor in pytree.tensors_for_gradients(slices.to_dense(gradient))
            if tf_internal.is_trainable(tensor)
        ]
        # Derivatives of higher order go from a value that was read to its variable.
        variable_of = {id(handle): variable for variable in variables for handle in handles_of(variable)}
        residuals = [
            residual if handle is None else _as_read(residual, handle, variable_of.get(id(handle)))
            for residual, handle in zip(self.residuals, self._read_handles, strict=True)
        ]
        values = list(self.values)
        if not tf.executing_eagerly():
            # The recomputation waits for the upstream gradient, and the graph does not merge it with the forward pass,
            # nor with other gradients: oneDNN would fuse the gradients of a convolution inside and a bias outside.
            values, residuals, upstream = (
                [_alone(value, upstream) for value in each] for each in (values, residuals, upstream)
            )
        sources = [*self.tensors, *self.captures]
        needed = [id(source) not in skipped for source in sources]
        needed += [False] * (len(values) - len(sources))
        found = self.replay.backward(values, residuals, upstream, needed)
        return _Gradients(
            [*sources, *self._read_handles],
            [*found[: len(sources)], *found[len(values) : len(values) + len(residuals)]],
        )


def _alone(value: Any, after: Sequence[tf.Tensor] = ()) -> Any:
    """The value as the only result of an op that TensorFlow does not know, once the other Tensors are computed.

    TensorFlow's optimizers confuse the results of one op: they make relu and max_pool of the second one read the first.
    """
    # Not a handle, nor a shape, which XLA must know while it compiles.
    is_shape = value.dtype in (tf.int32, tf.int64) and value.shape.rank in (0, 1)
    if value.dtype == tf.resource or is_shape:
        return value
    return library.custom_gradient_barrier([value], list(after))[0]


class _Gradients:
    """Gradients by Tensor or by handle of a variable. Each can be taken once.

    If a Tensor or variable is passed in several places, the first place gets its whole gradient.
    """

    def __init__(self, sources: Sequence[Any], gradients: Sequence[Any]) -> None:
        self._left: dict[int, list[Any]] = {}
        for source, gradient in zip(sources, gradients, strict=True):
            if gradient is not None:
                self._left.setdefault(id(source), []).append(gradient)

    def take(self, *sources: Any) -> Any:
        """The sum of the gradients of these sources; None if they have none, or it was taken before."""
        taken = [gradient for source in sources for gradient in self._left.pop(id(source), [])]
        if len(taken) <= 1:
            return taken[0] if taken else None
        return tf.add_n([slices.to_dense(gradient) for gradient in taken])

    def take_leaf(self, leaf: Any) -> Any:
        """The gradient of a leaf of the arguments."""
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
    """A value that was read earlier from a variable, with the derivative 1 with respect to the variable."""
    if (tf.executing_eagerly() and not tf_internal.could_possibly_record()) or not tf_internal.is_trainable(value):
        return value
    read = _read(handle, value.dtype) if variable is None else tf.convert_to_tensor(variable)
    return with_derivative_of(value, read)
