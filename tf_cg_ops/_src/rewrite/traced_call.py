"""Traces a call into a graph whose inputs are the Tensors in the arguments."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import pytree, tf_internal


def trace(function: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> Any:
    """Traces the function for Tensors of these specs, like `tf.function`, but does not keep the function alive."""
    # TensorFlow keeps what it traces in a reference cycle until garbage is collected. The cycle must not keep the
    # function alive, because other things are freed when the function is.
    held = [function]
    scope = tf.compat.v1.get_variable_scope()

    def call(*tensors: tf.Tensor) -> Any:
        # TensorFlow traces a function that makes variables twice, and numbers scopes with a default name.
        with tf.compat.v1.variable_scope(scope, auxiliary_name_scope=False):
            return held[0](*tensors)

    try:
        return tf.function(call, autograph=False).get_concrete_function(*specs)
    finally:
        held.clear()


class TracedCall:
    """A function traced for one signature.

    Attributes:
      graph: The graph of the function.
      inputs: Its placeholders for the Tensors in the arguments.
      variables: The variables that the function read.
    """

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        arguments = (list(args), kwargs)
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in pytree.tensors_in(arguments)]
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
            self.graph = trace(flat_function, specs).graph
        self.inputs = self.graph.inputs[: len(specs)]
        self.variables = list(watcher.watched_variables())

    def pack(self, outputs: Sequence[tf.Tensor]) -> Any:
        """The value of the function with these Tensors as outputs."""
        return pytree.map_tensors(self._value, lambda _: outputs)


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
