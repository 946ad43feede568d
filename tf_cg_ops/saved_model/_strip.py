"""`strip`: copies a SavedModel without the ops of this library."""

from __future__ import annotations

import os
import pathlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tf_cg_ops._src.core import misplaced_calls, tf_internal
from tf_cg_ops._src.core.types import TensorLike

from . import _compare_models, _pruning, _replace_ops
from ._changed_copy import write_changed_copy
from ._graphs import (
    check_graph,
    functions_in_attributes,
    functions_in_nodes,
    functions_of,
    nodes_of,
    raised_as_value_error,
    reachable,
    set_repeated,
    update_op_list,
)

_API = "saved_model.strip"
_HOST_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


@dataclass(frozen=True)
class StripReport:
    """What `strip` changed.

    Attributes:
      source: The folder of the source.
      target: The folder that was written.
      replaced: How many operations of each op were replaced.
      nodes_dropped: How many operations were dropped.
      functions_dropped: How many functions were dropped.
      host_functions: The operations that call Python functions of the process that made the model.
      comparisons: The results of the check; None if it was turned off.
    """

    source: str
    target: str
    replaced: dict[str, int]
    nodes_dropped: int
    functions_dropped: int
    host_functions: list[str]
    comparisons: list[_compare_models.Comparison] | None


@tf_internal.autograph_artifact
@misplaced_calls.explains(_API, "Name the options, as in check=False.")
def strip(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    check: bool = True,
    inputs: Mapping[str, Mapping[str, TensorLike]] | None = None,
    progress: Callable[[str], None] | None = None,
) -> StripReport:
    """Copies a SavedModel without the ops of this library, so that you can serve it where the library is not installed.

    >>> import tempfile
    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> model = tf.Module()
    >>> model.f = tf.function(
    ...     lambda x: cg.embed_gradient(tf.sign(x), 1.0, x), input_signature=[tf.TensorSpec([None])]
    ... )
    >>> folder = tempfile.mkdtemp()
    >>> tf.saved_model.save(model, folder + "/model")
    >>> report = cg.saved_model.strip(folder + "/model", folder + "/stripped")
    >>> report.replaced, report.comparisons[0].verdict
    ({'CustomGradientEmbed': 1}, 'equal, bit for bit')
    >>> tf.saved_model.load(folder + "/stripped").f(tf.constant([-2.0, 0.5])).numpy().tolist()
    [-1.0, 1.0]

    The copy computes the same values, and you can freeze it or convert it to TensorFlow Lite. It works on the saved
    graphs, without the Python code of the model. Do not train the copy: it has TensorFlow's derivatives of its ops, not
    your custom gradients.

    All signatures, functions, variables, assets and other files stay. Ops that only gradients read are dropped, except
    the inputs of loops, conditionals and called functions, and so are run-time checks of the shapes of gradients. If a
    saved function computes custom gradients itself, as in a training step, it still does, with built-in ops.

    Args:
      source: The folder of a SavedModel.
      target: The folder to write. Its parent must exist.
      check: Whether to run and compare both models. See "How the copy is checked" in the guide "Train on someone else's
        SavedModel".
      inputs: The inputs of the check: a dict from signatures to dicts from arguments to Tensors, or to values that
        convert to the dtypes of the signature. Missing arguments are made up. If there are several meta graphs, each
        takes the signatures that it has.
      progress: Called with a line of text before each step.

    Returns:
      A StripReport.

    Raises:
      FileNotFoundError: `source` is not a SavedModel, or lacks files of variables; the parent of `target` is not a
        folder.
      NotADirectoryError: `source` is a file.
      FileExistsError: `target` exists.
      TypeError: An argument has the wrong type.
      ValueError: The SavedModel cannot be read, is malformed, or cannot be loaded for the check; `target` lies inside
        `source`; `inputs` names an unknown signature or argument, or the source fails with them.
      RuntimeError: The stripped model fails, or computes other values.

    If there is an error, nothing is written.
    """
    changes = _Changes()

    def change(proto: Any, path: pathlib.Path, report_progress: Callable[[str], None]) -> bool:
        with raised_as_value_error(_API, path):
            for meta_graph in proto.meta_graphs:
                check_graph(meta_graph.graph_def)
                _strip_meta_graph(meta_graph, changes, report_progress)
        return bool(changes.replaced)

    comparisons = write_changed_copy(_API, source, target, change, check, inputs, progress)
    return StripReport(
        source=str(pathlib.Path(source)),
        target=str(pathlib.Path(target)),
        replaced=dict(sorted(changes.replaced.items())),
        nodes_dropped=changes.nodes_dropped,
        functions_dropped=changes.functions_dropped,
        host_functions=changes.host_functions,
        comparisons=comparisons,
    )


@dataclass
class _Changes:
    replaced: Counter[str] = field(default_factory=Counter)
    nodes_dropped: int = 0
    functions_dropped: int = 0
    host_functions: list[str] = field(default_factory=list)


def _strip_meta_graph(meta_graph: Any, changes: _Changes, progress: Callable[[str], None]) -> None:
    """Replaces the ops of this library in the meta graph, and drops the nodes and functions that only they use."""
    if any(node.op in _replace_ops.OUTPUT_NAMES for node in nodes_of(meta_graph.graph_def)):
        _replace_and_prune(meta_graph, changes, progress)
    bodies = [("the graph", meta_graph.graph_def.node)]
    bodies += [(function.signature.name, function.node_def) for function in meta_graph.graph_def.library.function]
    changes.host_functions += [f"{n.name} in {where}" for where, nodes in bodies for n in nodes if n.op in _HOST_OPS]


def _replace_and_prune(meta_graph: Any, changes: _Changes, progress: Callable[[str], None]) -> None:
    graph_def = meta_graph.graph_def
    library = functions_of(graph_def)
    progress(f"rewriting {len(library)} functions")
    replacer = _replace_ops.OpReplacer(library.keys())
    unread = replacer.replace_in_graph(graph_def)
    changes.nodes_dropped += _pruning.prune_graph(graph_def, unread, _serialize_without_graph(meta_graph))
    gradients = {gradient.function_name: gradient.gradient_func for gradient in graph_def.library.gradient}

    def strip_function(name: str) -> list[str]:
        """Strips a function, and returns the functions that it still needs."""
        if name not in library:
            return []
        function = library[name]
        if replacer.replace_in_function(function):
            changes.nodes_dropped += _pruning.prune_function(function)
        named = [*functions_in_nodes(function.node_def, library), *functions_in_attributes(function.attr, library)]
        return [*named, gradients[name]] if name in gradients else named

    needed = library.keys() & reachable(_functions_named_outside(meta_graph, library), strip_function)
    changes.functions_dropped += len(library) - len(needed)
    changes.replaced += replacer.replaced

    kept = [function for name, function in library.items() if name in needed]
    set_repeated(graph_def.library.function, [*kept, *replacer.functions.values()])
    kept_gradients = [g for g in graph_def.library.gradient if g.function_name in needed]
    set_repeated(graph_def.library.gradient, kept_gradients)
    update_op_list(meta_graph)


def _serialize_without_graph(meta_graph: Any) -> bytes:
    """Everything that can name a node of the graph from outside: signatures, collections, savers, objects."""
    without_graph = type(meta_graph)()
    without_graph.CopyFrom(meta_graph)
    without_graph.ClearField("graph_def")
    return without_graph.SerializeToString()


def _functions_named_outside(meta_graph: Any, library: dict[str, Any]) -> list[str]:
    """The functions that are named outside of functions."""
    return [
        *functions_in_nodes(meta_graph.graph_def.node, library),
        *meta_graph.object_graph_def.concrete_functions,
        *meta_graph.meta_info_def.function_aliases,
        *(gradient.gradient_func for gradient in meta_graph.graph_def.library.registered_gradients),
    ]
