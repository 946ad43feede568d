"""`inspect`: lists the custom gradients in a SavedModel."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal

from ._folder import read_saved_model, to_path
from ._foreign_gradients import is_foreign, saved_gradient
from ._graphs import (
    Body,
    called,
    check_graph,
    functions_in_nodes,
    functions_of,
    import_bodies,
    raised_as_value_error,
    reachable,
)

_API = "saved_model.inspect"
_EMBED, _RULE = "CustomGradientEmbed", "CustomGradientRule"


@dataclass(frozen=True)
class EmbeddedGradient:
    """A value in a SavedModel that has a custom gradient.

    Attributes:
      function: The function of the graph that contains it; empty for the graph itself.
      node: Its operation there.
      kind: "embed_gradient"; "custom_gradient", also for everything that is made with it, such as `recompute_grad`; or
        "tf.custom_gradient" for TensorFlow's decorator, whose gradients `adopt` replaces.
      user_function: For "custom_gradient": the name of the decorated Python function.
      dtypes: The dtype of each tensor of the value.
      shapes: The shape of each tensor of the value, with None for an unknown rank or dimension.
      inputs_with_gradients: How many inputs have a gradient.
      rule_ops: For "custom_gradient": how many operations compute the gradient, including called functions.
      orders: The highest order of derivative that a loaded model can compute: 0 if the gradient is missing, or None if
        there is no limit. If a rule calls decorated functions, `saved_orders` is the limit.
      error: Why the gradient is missing: it could not be traced, or is not in the file. Empty if it is not missing.
    """

    function: str
    node: str
    kind: str
    user_function: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int | None, ...] | None, ...]
    inputs_with_gradients: int
    rule_ops: int | None
    orders: int | None
    error: str


@tf_internal.autograph_artifact
def inspect(path: str | os.PathLike[str]) -> list[EmbeddedGradient]:
    """Lists the custom gradients in a SavedModel.

    Use it to see which gradients a file has, and how many orders of derivatives.

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

    The model is neither loaded nor run: TensorFlow infers the shapes from its graphs. `inspect` does not tell which of
    the gradients a call uses. (`saved_model_cli show` shows signatures, but no gradients.)

    Args:
      path: The folder of a SavedModel.

    Returns:
      A list of EmbeddedGradient, in the order of the graph.

    Raises:
      TypeError: `path` is not a path.
      FileNotFoundError: `path` is not a SavedModel.
      NotADirectoryError: `path` is a file.
      ValueError: The SavedModel cannot be read, is malformed, or needs ops that are not registered.
    """
    path = to_path(_API, "path", path)
    proto = read_saved_model(_API, path)
    with raised_as_value_error(_API, path):
        return [found for meta_graph in proto.meta_graphs for found in _find_in_graph(meta_graph)]


def _find_in_graph(meta_graph: Any) -> Iterator[EmbeddedGradient]:
    check_graph(meta_graph.graph_def)
    library = functions_of(meta_graph.graph_def)

    def is_custom(node: Any) -> bool:
        return node.op in (_EMBED, _RULE) or is_foreign(node)

    for body in import_bodies(meta_graph.graph_def, lambda _, nodes: any(map(is_custom, nodes))):
        for node in filter(is_custom, body.nodes):
            yield _describe(meta_graph, library, body, node)


def _describe(meta_graph: Any, library: dict[str, Any], body: Body, node: Any) -> EmbeddedGradient:
    op = body.graph.get_operation_by_name(node.name)
    outputs, rule, user_function, error = list(op.outputs), None, "", ""
    if node.op == _EMBED:
        kind, with_gradients = "embed_gradient", op.get_attr("N")
    elif node.op == _RULE:
        kind, with_gradients = "custom_gradient", len(node.attr["differentiated_inputs"].list.i)
        rule = node.attr["rule"].func.name
        user_function, error = (tf.compat.as_str(op.get_attr(name)) for name in ("function_name", "error"))
    else:
        kind, with_gradients = "tf.custom_gradient", 0
        error = "the file does not contain the gradient function of this tf.custom_gradient"
        gradient = saved_gradient(meta_graph, node)
        if gradient is not None:
            outputs, rule, error = outputs[: gradient.num_results], gradient.function, ""
            with_gradients = sum(spec is not None for spec in gradient.outputs)
    return EmbeddedGradient(
        function=body.function,
        node=node.name,
        kind=kind,
        user_function=user_function,
        dtypes=tuple(tensor.dtype.base_dtype.name for tensor in outputs),
        shapes=tuple(None if t.shape.rank is None else tuple(t.shape.as_list()) for t in outputs),
        inputs_with_gradients=with_gradients,
        rule_ops=None if rule is None else _count_ops(rule, library),
        orders=_orders(meta_graph, library, node),
        error=error,
    )


def _orders(meta_graph: Any, library: dict[str, Any], node: Any) -> int | None:
    """The number of orders of a node with a gradient: one more than in its rule, which TensorFlow differentiates."""
    if node.op == _RULE:
        rule = None if node.attr["error"].s else node.attr["rule"].func.name
    elif is_foreign(node):
        gradient = saved_gradient(meta_graph, node)
        rule = gradient and gradient.function
    else:
        return None
    if rule is None:
        return 0
    names = reachable([rule], lambda name: called(library[name].node_def, library))
    inside = [_orders(meta_graph, library, node) for name in names for node in library[name].node_def]
    return min((1 + orders for orders in inside if orders is not None), default=None)


def _count_ops(function: str, library: dict[str, Any]) -> int:
    """The number of operations in a function and in all functions that it names, each counted once."""
    names = reachable([function], lambda name: functions_in_nodes(library[name].node_def, library))
    return sum(len(library[name].node_def) for name in names)
