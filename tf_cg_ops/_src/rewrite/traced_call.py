"""Traces a call into a graph whose inputs are the Tensors in the arguments."""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import pytree, tf_internal
from tf_cg_ops._src.custom_gradient import foreign_rule
from tf_cg_ops._src.custom_gradient.variables import handles_of
from tf_cg_ops._src.graphs.graph_copy import GraphCopy, captures_of


def trace(function: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> Any:
    """Traces the function for Tensors of these specs, like `tf.function`, but does not keep the function alive."""
    # TensorFlow keeps what it traces in a reference cycle until garbage is collected. The cycle must not keep the
    # function alive, because other things are freed when the function is.
    held = [function]

    def call(*tensors: tf.Tensor) -> Any:
        return held[0](*tensors)

    try:
        return tf.function(call, autograph=False).get_concrete_function(*specs)
    finally:
        held.clear()


def graph_to_copy(function: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> Any:
    """Traces the function into a graph in which ops of `tf.custom_gradient` have become ops of this library."""
    graph = trace(function, specs).graph
    converted = foreign_rule.conversion(graph)
    if converted is None:
        return graph
    try:
        return trace(converted, specs).graph
    finally:
        if tf.executing_eagerly():
            tf_internal.forget_captures(graph)


def spec_of(tensor: Any) -> tf.TensorSpec:
    """The spec of a tensor; for a handle, with the shape and dtype of its variable."""
    return tensor.__tf_tracing_type__(None)


@dataclasses.dataclass(frozen=True)
class Outside:
    """What a traced graph takes from outside, in pairs of its tensor inside and the value or handle.

    With these as inputs, a function that is made from the graph belongs to no call.
    """

    captures: list[tuple[Any, Any]]  # Tensors that can have gradients.
    numbers: list[tuple[Any, Any]]  # Constants.
    handles: list[tuple[Any, Any]]  # Of variables and other resources.

    @classmethod
    def of(cls, graph: Any, with_numbers: bool = False) -> "Outside":
        """What the graph takes from outside.

        In eager mode that can include its floating-point numbers. Then a number that changes from call to call needs no
        new function.
        """
        captures, handles = captures_of(graph)
        numbers = []
        if with_numbers and tf.executing_eagerly():
            known = {id(inside) for inside, _ in captures}
            constants = [op.outputs[0] for op in graph.get_operations() if op.type == "Const"]
            scalars = [c for c in constants if c.dtype.is_floating and c.shape.rank == 0 and id(c) not in known]
            numbers = [(scalar, tf.constant(tf.make_ndarray(scalar.op.get_attr("value")))) for scalar in scalars]
        return cls(captures, numbers, handles)

    @property
    def inside(self) -> list[Any]:
        """The tensors inside, in the order of `values`."""
        return [inside for inside, _ in (*self.captures, *self.numbers, *self.handles)]

    @property
    def values(self) -> list[Any]:
        """The values and handles."""
        return [value for _, value in (*self.captures, *self.numbers, *self.handles)]


def arrays_to_tensors(structure: Any) -> Any:
    """In eager mode, replaces NumPy arrays and numbers by Tensors, so that they are inputs, as for a tf.function."""
    if not tf.executing_eagerly():  # In a graph, an array is a constant.
        return structure
    return tf.nest.map_structure(lambda leaf: tf.convert_to_tensor(leaf) if _is_array(leaf) else leaf, structure)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "biufc"


class TracedCall:
    """A function traced for one signature.

    Attributes:
      graph: The graph of the function.
      inputs: Its placeholders for the Tensors in the arguments.
      outside: What it takes from outside.
      variables: The variables that the function read.
    """

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        arguments = (list(args), kwargs)
        specs = [spec_of(tensor) for tensor in pytree.tensors_in(arguments)]
        # Layers of tf_keras ask whether AutoGraph may translate them.
        autograph = tf_internal.autograph_scope()
        self._value: Any = None

        def flat_function(*tensors: tf.Tensor) -> list[tf.Tensor]:
            args, kwargs = pytree.map_tensors(arguments, lambda _: tensors)
            with autograph:
                value = function(*args, **kwargs)
            self._value = tf.nest.map_structure(pytree.to_output, value)
            return pytree.tensors_in(self._value)

        with tf_internal.VariableWatcher() as watcher:
            self.graph = graph_to_copy(flat_function, specs)
        self.inputs = self.graph.inputs[: len(specs)]
        self.outside = Outside.of(self.graph, with_numbers=True)
        self.variables = list(watcher.watched_variables())

    @property
    def inside(self) -> list[Any]:
        """The tensors of the graph that stand for the arguments and for what it takes from outside."""
        return [*self.inputs, *self.outside.inside]

    @property
    def are_sources(self) -> list[bool]:
        """Whether each tensor of `inside` has a gradient: arguments, captures and trainable variables."""
        outside, trained = self.outside, {id(handle) for variable in self.variables for handle in handles_of(variable)}
        of_arguments = [*map(tf_internal.is_trainable, self.inputs), *[True] * len(outside.captures)]
        return [*of_arguments, *[False] * len(outside.numbers), *(id(h) in trained for _, h in outside.handles)]

    def forget_outside(self) -> None:
        """In eager mode, releases what the graph captured: it is garbage that Python collects late."""
        if tf.executing_eagerly():
            tf_internal.forget_captures(self.graph)

    def pack(self, outputs: Sequence[tf.Tensor]) -> Any:
        """The value of the function with these Tensors as outputs."""
        return pytree.map_tensors(self._value, lambda _: outputs)


def flat_copy(
    graph: Any,
    inside: Sequence[Any],
    shapes: Sequence[tf.TensorShape] | None = None,
    replace: Callable[[Any, Any, list[Any]], list[Any] | None] = lambda graph, op, inputs: None,
) -> tuple[Any, list[Any], GraphCopy]:
    """Copies a traced graph into a new one in which calls are inlined; returns it with its inputs and the copy.

    `inside` are the inputs of the old graph, and `shapes` their shapes in the new one. `replace` gets the new graph, an
    op and its copied inputs, and returns the outputs, or None to copy the op.
    """
    with graph.as_default():  # So that captures have what TensorFlow knows about handles.
        flat = tf_internal.FuncGraph("flat")
    # In forward mode, a recorded call would add its tangents.
    with flat.as_default(), tf_internal.stop_recording():
        inputs = [flat.capture(tensor) for tensor in inside]
        for i, (tensor, shape) in enumerate(zip(inputs, shapes or (), strict=False)):
            if not tensor.shape.is_fully_defined() and tensor.dtype != tf.resource:
                inputs[i] = tf_internal.graph_placeholder(tensor.dtype, shape)
        pairs = zip(inside, inputs, strict=True)
        copy = GraphCopy(pairs, lambda _, op, values: replace(flat, op, values), names=True)
        flat.outputs = copy.outputs_of(graph)
    tf_internal.forget_captures(flat)
    return flat, inputs, copy


class ThreadSafeFunction:
    """Calls a `tf.function` that several threads share in eager mode.

    TensorFlow builds the gradient in the first call that a tape records, without a lock. Here that call takes a lock.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._lock = threading.RLock()
        self._built: set[Any] = set()

    def __call__(self, *args: Any) -> Any:
        tensors = [tensor for tensor in tf.nest.flatten(args) if tf.is_tensor(tensor)]
        # Each order of derivative and each trace has its own functions.
        key = tf_internal.possible_gradient_types(tensors), *(tensor.shape for tensor in tensors)
        if key in self._built:
            return self._function(*args)
        with self._lock:
            results = self._function(*args)
        self._built.add(key)
        return results
