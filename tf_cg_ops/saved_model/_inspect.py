"""`inspect`: the embedded gradients of a SavedModel."""

import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal

from . import _folder, _graph_errors, _malformed
from ._foreign_gradients import SavedGradient, is_foreign, name_of_gradient, saved_gradient
from ._graph_def import functions_in_nodes
from ._imported import import_bodies

_API = "saved_model.inspect"
_FOREIGN = "tf.custom_gradient"
_KINDS = {"CustomGradientEmbed": "embed_gradient", "CustomGradientRule": "custom_gradient"}


@dataclass(frozen=True)
class EmbeddedGradient:
    """A value of a SavedModel that has a custom gradient.

    Attributes:
      function: The function of the graph that holds it; empty if the graph itself does.
      node: Its operation there.
      kind: "embed_gradient", "custom_gradient", which includes all that is made with it, such as `recompute_grad`, or
        "tf.custom_gradient" for a gradient of TensorFlow's decorator, which `adopt` replaces.
      user_function: For "custom_gradient": the name of the decorated Python function.
      dtypes: The dtype of each tensor of the value.
      shapes: The shape of each tensor of the value; None for an unknown rank or dimension.
      inputs_with_gradients: The number of inputs that have a gradient.
      rule_ops: For "custom_gradient": the number of operations of the gradient, with those of called functions.
      error: The reason if there is no gradient: it could not be traced, or the file does not hold it. Else empty.
    """

    function: str
    node: str
    kind: str
    user_function: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int | None, ...] | None, ...]
    inputs_with_gradients: int
    rule_ops: int | None
    error: str


@tf_internal.autograph_artifact
def inspect(path: str | os.PathLike[str]) -> list[EmbeddedGradient]:
    """Lists the embedded gradients of a SavedModel: values `h = fx` that have a derivative `gx` or a gradient rule.

    The model is neither loaded nor run; TensorFlow infers the shapes from its graphs.

    Compared with `saved_model_cli show`: that shows signatures, and of the graphs only the names of their ops.

    Limits: it does not tell which of the gradients a call uses.

    >>> import tempfile
    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> model = tf.Module()
    >>> model.f = tf.function(cg.grad_pass_through(tf.round), input_signature=[tf.TensorSpec([None, 3])])
    >>> folder = tempfile.mkdtemp()
    >>> tf.saved_model.save(model, folder)
    >>> [found] = cg.saved_model.inspect(folder)
    >>> found.kind, found.user_function, found.dtypes, found.shapes
    ('custom_gradient', 'round', ('float32',), ((None, 3),))

    Args:
      path: The folder of a SavedModel.

    Returns:
      A list of EmbeddedGradient, in the order of the graph.

    Raises:
      FileNotFoundError: There is no SavedModel.
      NotADirectoryError: `path` is a file.
      ValueError: The SavedModel cannot be read, is malformed, or needs ops that are not registered.
    """
    path = pathlib.Path(path)
    proto = _folder.read_saved_model(_API, path)
    with _graph_errors.raised_as_value_error(_API, path):
        return [found for meta_graph in proto.meta_graphs for found in _find_in_graph(meta_graph)]


def _find_in_graph(meta_graph: Any) -> Iterator[EmbeddedGradient]:
    graph_def = meta_graph.graph_def
    _malformed.check_graph(graph_def)
    library = {function.signature.name: function for function in graph_def.library.function}
    for body in import_bodies(graph_def, lambda _, nodes: any(node.op in _KINDS or is_foreign(node) for node in nodes)):
        for node in body.nodes:
            if node.op in _KINDS:
                yield _describe(body.function, node, body.graph.get_operation_by_name(node.name), library)
            elif is_foreign(node):
                gradient = saved_gradient(meta_graph, name_of_gradient(node))
                op = body.graph.get_operation_by_name(node.name)
                yield _describe_foreign(body.function, node, op, gradient, library)


def _describe(function: str, node: Any, op: tf.Operation, library: dict[str, Any]) -> EmbeddedGradient:
    is_rule = node.op == "CustomGradientRule"
    with_gradients = len(node.attr["differentiated_inputs"].list.i) if is_rule else op.get_attr("N")
    return EmbeddedGradient(
        function=function,
        node=node.name,
        kind=_KINDS[node.op],
        user_function=tf.compat.as_str(op.get_attr("function_name")) if is_rule else "",
        dtypes=tuple(tensor.dtype.base_dtype.name for tensor in op.outputs),
        shapes=tuple(map(_shape_of, op.outputs)),
        inputs_with_gradients=with_gradients,
        rule_ops=_count_ops(node.attr["rule"].func.name, library) if is_rule else None,
        error=tf.compat.as_str(op.get_attr("error")) if is_rule else "",
    )


def _describe_foreign(
    function: str, node: Any, op: tf.Operation, gradient: SavedGradient | None, library: dict[str, Any]
) -> EmbeddedGradient:
    outputs = list(op.outputs)[: gradient.num_results if gradient else None]
    return EmbeddedGradient(
        function=function,
        node=node.name,
        kind=_FOREIGN,
        user_function="",
        dtypes=tuple(tensor.dtype.base_dtype.name for tensor in outputs),
        shapes=tuple(_shape_of(tensor) for tensor in outputs),
        inputs_with_gradients=sum(spec is not None for spec in gradient.outputs) if gradient else 0,
        rule_ops=_count_ops(gradient.function, library) if gradient else None,
        error="" if gradient else "the file does not hold the gradient function of this tf.custom_gradient",
    )


def _shape_of(tensor: tf.Tensor) -> tuple[int | None, ...] | None:
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def _count_ops(function: str, library: dict[str, Any]) -> int:
    """The number of operations of a function and of all functions that it names, each counted once."""
    seen: set[str] = set()
    pending = [function]
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            pending += functions_in_nodes(library[name].node_def, library)
    return sum(len(library[name].node_def) for name in seen)
