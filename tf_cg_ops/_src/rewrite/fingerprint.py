"""A fingerprint of a traced graph: two traces that compute the same from their inputs have the same one."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal


def of(graph: Any, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]) -> bytes:
    """The ops of a graph with their attributes, and those of the functions that they call.

    The names of ops and functions do not count, nor do the values of the inputs. A gradient that is a Python function
    has an attribute of its own in each trace, which makes the fingerprint unique.
    """
    digest = hashlib.sha256()
    given = {id(tensor) for tensor in inputs}
    place_of = {id(op): place for place, op in enumerate(graph.get_operations())}
    for op in graph.get_operations():
        digest.update(repr((op.type, op.device, [place_of[id(t.op)] for t in op.inputs])).encode())
        digest.update(repr([t.value_index for t in op.inputs] + [place_of[id(c)] for c in op.control_inputs]).encode())
        if any(id(output) in given for output in op.outputs):
            digest.update(repr([(output.dtype, output.shape) for output in op.outputs]).encode())
            continue
        for name, attribute in sorted(op.node_def.attr.items()):
            called = [function.name for function in (attribute.func, *attribute.list.func) if function.name]
            digest.update(name.encode())
            if not called:
                digest.update(attribute.SerializeToString(deterministic=True))
            for other in called:
                digest.update(_of_function(graph, other))
    digest.update(repr([_places(tensors, place_of) for tensors in (inputs, outputs)]).encode())
    return digest.digest()


def _of_function(graph: Any, name: str) -> bytes:
    body = tf_internal.graph_of_function(tf_internal.find_function(graph, name))
    return of(body, body.inputs, body.outputs)


def _places(tensors: Iterable[tf.Tensor], place_of: dict[int, int]) -> list[tuple[int, int]]:
    return [(place_of[id(tensor.op)], tensor.value_index) for tensor in tensors]
