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

from tf_cg_ops._src.core import misplaced_calls, pytree, signature, text, tf_internal
from tf_cg_ops._src.core.types import P, R, Structure
from tf_cg_ops._src.custom_gradient.call import differentiable_leaves, explained_errors
from tf_cg_ops._src.custom_gradient.decorator import CustomGradient, Method
from tf_cg_ops._src.custom_gradient.wording import Wording, without_gradient_function
from tf_cg_ops._src.keras import registration
from tf_cg_ops._src.keras.dispatch import package_of_keras_tensors
from tf_cg_ops._src.memory import checkpoint_name
from tf_cg_ops._src.memory.checkpoint_name import Keep, check_keep
from tf_cg_ops._src.memory.flat_trace import FlatTrace
from tf_cg_ops._src.memory.plan import Memory, Plan, SegmentOps, check_memory, make_plan
from tf_cg_ops._src.memory.segments import SegmentedFunction
from tf_cg_ops._src.rewrite.built_functions import find_or_build
from tf_cg_ops._src.rewrite.traced_call import TracedCall, arrays_to_tensors

_WORDING = without_gradient_function("recompute_grad")
_PURPOSE = "so that the backward pass can compute it again"
# A plan that saves next to nothing is only worth a warning if the function takes this many bytes.
_WORTH_SAVING = 2**20

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

    Use it when training runs out of memory: on the whole model with `memory`, or on blocks of it.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> def model(x):
    ...     for _ in range(16):
    ...         x = tf.sin(x)
    ...     return x
    >>> small = cg.recompute_grad(model, memory="auto")
    >>> plan = small.plan(tf.TensorSpec([1000, 250]))
    >>> plan.plain_bytes, plan.peak_bytes, plan.extra_compute
    (16000000, 6000000, 0.625)

    With `memory`, the traced function is cut into segments, some of which are kept and others computed again, one after
    the other in the backward pass. Say how much memory the values and gradients of a training step may take:

    - `"auto"`: the least that cuts reach. At most one more forward pass.
    - `"2 GiB"` or an int: a number of bytes. As little as possible is computed again.
    - A float: a share of what the plain gradient takes, such as 0.5.

    `recompute_grad(f, memory=0.5).plan(x)` returns the plan for a call with `x`, a Tensor or a `tf.TensorSpec`:
    `peak_bytes`, `plain_bytes`, `extra_compute`, a share of the forward pass, and `segments`. Print it for a table;
    `plan.plot()` draws it. The plan of a method is `obj.method.plan(x)`. With `memory`, `keep` only says what is kept
    in any case. Functions that `f` calls are cut, too; loops, branches and functions with `jit_compile=True` are not.
    If the size of a batch is not known while tracing, as in `fit`, the cuts and shares are the ones for a large batch.
    Gradients of a value that is used in several segments can be summed in another order.

    Without `memory`, as with `@cg.recompute_grad` on each block, `f` is not cut: between the passes only its arguments
    are kept, and what stateful ops returned.

    Values stay the same, except that TensorFlow's random ops draw other numbers than without the decorator. The
    backward pass uses the same random numbers and variable values as the forward pass, so dropout has one mask, and
    variables are written once. Tensors that `f` closes over have gradients, too.

    `keep` chooses values that are kept as well, which saves time and takes memory. List names that `checkpoint_name`
    gave, or pass a function that returns True for the ops whose results to keep. It does not reach into loops and
    branches.

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

    With `memory="auto"`, a warning says why if recomputation saves less than a tenth.

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


def check_plan_arguments(api: str, args: Sequence[Any]) -> None:
    """TypeError if the arguments of a plan are KerasTensors or shapes."""
    got = "a KerasTensor" if package_of_keras_tensors(args) else ""
    if args and tf.nest.is_nested(args[0]) and all(n is None or type(n) is int for n in tf.nest.flatten(args)):
        got = f"{args[0]!r}. Write plan(tf.TensorSpec({args[0]!r}, tf.float32))"
    if got:
        raise TypeError(f"{api}: plan takes Tensors or their tf.TensorSpec, got {got}.")


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
        api, name = self.wording.api, text.name_of(function)
        pytree.flatten_arguments(api, function, args, kwargs)  # It refuses arguments whose gradients would be lost.
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if self.memory is not None and graph is not None and not graph.building_function:
            raise NotImplementedError(
                f"{api}: '{name}' with memory must be called in eager mode or in a tf.function, got a graph of "
                "TensorFlow 1. Leave out memory, or build the graph with tf.function."
            )
        try:
            with explained_errors(self.wording, function, args, kwargs):
                trace, values = _traced(signature.traced(api, function, _PURPOSE), args, kwargs)
        except _MergesReplicasError:
            warnings.warn(
                f"{api}: '{name}' is not recomputed, because it merges the replicas of a strategy, as an all_reduce or "
                "a synchronized batch normalization does. TensorFlow does not trace that. Values and gradients are the "
                "same. Merge outside of the function to save memory.",
                stacklevel=2,
            )
            return function(*args, **kwargs)
        key = api, checkpoint_name.chosen(self.keep, trace.graph), self.memory
        run = find_or_build(key, trace.graph, trace.inside, lambda: self._build(name, trace))
        for variable in trace.variables:  # Their handles are inputs, so running the segments does not report them.
            tf_internal.variable_accessed(variable)
        ordered: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self.memory is not None and graph is not None and not tf_internal.orders_side_effects(graph):
            ordered = tf_internal.control_dependencies_added(graph)
        with ordered:
            outputs = run(values)
        trace.forget_outside()
        value = trace.pack(outputs)
        differentiable_leaves(api, name, value)  # All of it has gradients.
        return value

    def plan(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Plan:
        """The plan for a call with these arguments, Tensors or their specs."""
        check_plan_arguments(self.wording.api, [*args, *kwargs.values()])
        is_spec = lambda leaf: isinstance(leaf, tf.TensorSpec)  # noqa: E731
        if any(map(is_spec, tf.nest.flatten((args, kwargs)))):
            with tf_internal.FuncGraph("plan").as_default():
                placeholder = lambda leaf: tf_internal.graph_placeholder(leaf.dtype, leaf.shape)  # noqa: E731
                args, kwargs = tf.nest.map_structure(
                    lambda leaf: placeholder(leaf) if is_spec(leaf) else leaf, (list(args), kwargs)
                )
                return self.plan(function, args, kwargs)
        traced = signature.traced(self.wording.api, function, _PURPOSE)
        return self._planned(text.name_of(function), _traced(traced, args, kwargs)[0])[1]

    def _build(self, name: str, trace: TracedCall) -> SegmentedFunction:
        if self.memory is None:
            whole = [SegmentOps(trace.graph.get_operations(), True)]
            return SegmentedFunction(self.wording, name, trace.graph, trace.inside, whole, self.keep)
        flat, plan, parts, is_kept = self._planned(name, trace)
        if plan.note and plan.plain_bytes >= _WORTH_SAVING:
            warnings.warn(f"{self.wording.api}: '{name}' with memory='auto': {plan.note}.", stacklevel=2)
        return SegmentedFunction(self.wording, name, flat.graph, flat.inside, parts, is_kept)

    def _planned(
        self, name: str, trace: TracedCall
    ) -> tuple[FlatTrace, Plan, Sequence[SegmentOps], Callable[[Any], bool]]:
        """The trace that the plan cuts, the plan, its parts, and the predicate of what is kept in any case."""
        assert self.memory is not None
        api, flat = self.wording.api, FlatTrace(trace)
        is_kept = checkpoint_name.predicate(self.keep, name, flat.operations, api)
        return flat, *make_plan(api, name, self.memory, flat, trace.are_sources, is_kept), is_kept


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


def _traced(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[TracedCall, list[Any]]:
    """Traces a call; returns the trace and the values of its inputs."""
    args, kwargs = arrays_to_tensors((args, kwargs))
    _thread.depth = getattr(_thread, "depth", 0) + 1
    try:
        with _merges_noticed():
            trace = TracedCall(function, args, kwargs)
    finally:
        _thread.depth -= 1
    return trace, [*pytree.tensors_in((args, kwargs)), *trace.outside.values]
