"""Finds what an earlier call in eager mode has built from an equal graph.

In eager mode every call traces the user's function, so it reads Python values as plain eager code does. Building
functions from the trace takes longest, so they are found again by a fingerprint of the traced graph. Arguments,
captured Tensors and variables are inputs of these functions, so nothing of a call is kept.
"""

import functools
import hashlib
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import calls, tf_internal
from tf_cg_ops._src.custom_gradient import live_rule


class _Entry:
    """A place in the table. Its lock lets other threads wait for what the first one builds."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.built: Any = None


class NotSharedError(Exception):
    """A rule in the graph is not traced, so only Python knows it, or a function has no graph."""


class Table:
    """The entries of this many graphs; the least recently used are dropped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.entries = functools.lru_cache(maxsize=most)(lambda key: _Entry())
        self._lock = threading.Lock()

    def entry(self, key: Hashable) -> _Entry:
        """The entry for a key; the same one for threads that ask at the same time."""
        with self._lock:
            return self.entries(key)

    def __reduce__(self) -> Any:
        """In another process the table is empty."""
        return Table, (self._most,)


_table = Table(128)


def find_or_build(
    key: Hashable, graph: Any, inputs: Sequence[tf.Tensor], build: Callable[[], Any], table: Table = _table
) -> Any:
    """Returns `build()`; in eager mode, what an earlier call built for the same key and an equal graph.

    `inputs` are the tensors of the graph that are inputs of what is built: its arguments, and all that it captures.
    """
    if not tf.executing_eagerly():
        return build()
    try:
        entry = table.entry((key, fingerprint(graph, inputs)))
    except NotSharedError:
        return build()
    with entry.lock:
        if entry.built is None:
            entry.built = build()
    return entry.built


def fingerprint(graph: Any, inputs: Sequence[tf.Tensor]) -> bytes:
    """A hash of the ops of a graph, their attributes, and the functions they call.

    Two traces that compute the same from their inputs have the same hash: it ignores the names of ops and functions,
    and the values of the inputs.
    """
    # Not hash(), whose 64 bits collide too easily: a wrong hit would silently be another function's gradient.
    digest = hashlib.sha256()
    given = {id(tensor) for tensor in inputs}
    number_of = {id(op): number for number, op in enumerate(graph.get_operations())}

    def places(tensors: Iterable[tf.Tensor]) -> list[tuple[int, int]]:
        return [(number_of[id(tensor.op)], tensor.value_index) for tensor in tensors]

    for op in graph.get_operations():
        if live_rule.is_needed(op):
            raise NotSharedError
        waits = sorted(number_of[id(other)] for other in op.control_inputs)  # TensorFlow orders them by address.
        # Shapes depend on the values of some inputs, and on calls of set_shape.
        shapes = [output.shape for output in op.outputs]
        digest.update(repr((op.type, op.device, places(op.inputs), waits, shapes)).encode())
        # The attributes of an input are not hashed: a constant that is captured has its value there.
        if any(id(output) in given for output in op.outputs):
            digest.update(repr([(output.dtype, _behind_handle(output)) for output in op.outputs]).encode())
            continue
        for name, attribute in sorted(op.node_def.attr.items()):
            called = [function.name for function in calls.functions_in([attribute])]
            digest.update(name.encode())
            if not called:  # Otherwise it has names with serial numbers, which differ between equal traces.
                digest.update(attribute.SerializeToString(deterministic=True))
            for other in called:
                digest.update(fingerprint_of_function(graph, other))
    digest.update(repr([places(inputs), places(graph.outputs)]).encode())
    return digest.digest()


def fingerprint_of_function(graph: Any, name: str) -> bytes:
    """The fingerprint of a function that a graph holds."""
    body = tf_internal.graph_of_function(tf_internal.find_function(graph, name))
    if body is None:
        raise NotSharedError
    return fingerprint(body, body.inputs)


def _behind_handle(tensor: tf.Tensor) -> Any:
    """The shape and dtype of the variable that a handle belongs to."""
    return tf_internal.shape_and_dtype(tensor) if tf_internal.supports_default_grad(tensor) else None
