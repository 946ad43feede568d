"""`strip`: copies a SavedModel without the ops of this library."""

from __future__ import annotations

import os
import pathlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tf_cg_ops._src.core import misplaced_calls, text, tf_internal

from . import _pruning, _replace_ops
from ._changed_copy import Copied, write_changed_copy
from ._graphs import (
    functions_in_attributes,
    functions_in_nodes,
    functions_of,
    nodes_of,
    raised_as_value_error,
    reachable,
    set_repeated,
)

_API = "saved_model.strip"
_HOST_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


@dataclass(frozen=True)
class StripReport(Copied):
    """What `strip` changed.

    Attributes:
      source: The folder of the source.
      target: The folder that was written.
      comparisons: What `compare` found out about the values; None if the check was turned off.
      replaced: How many operations of each op were replaced.
      nodes_dropped: How many operations were dropped.
      functions_dropped: How many functions were dropped.
      host_functions: The operations that call Python functions of the process that made the model.
    """

    replaced: dict[str, int]
    nodes_dropped: int
    functions_dropped: int
    host_functions: list[str]

    def __str__(self) -> str:
        counts = ", ".join(f"{number} {op}" for op, number in self.replaced.items())
        dropped = f"{text.count(self.nodes_dropped, 'operation')} and {text.count(self.functions_dropped, 'function')}"
        lines = [("replaced", counts or "nothing"), ("dropped", f"{dropped} that only gradients need")]
        needs = "calls Python, and fails outside of the process that made the model"
        return self._text(lines, [("attention", f"{host} {needs}") for host in self.host_functions])


@tf_internal.autograph_artifact
@misplaced_calls.explains(_API)
def strip(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    check: bool = True,
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
    graphs, without the Python code of the model. A tape around the copy finds TensorFlow's derivatives of its ops, not
    your custom gradients. To keep those, make them a signature before: see `add_gradients`.

    All signatures, functions, variables, assets and other files stay. Ops that only gradients read are dropped, except
    the inputs of loops, conditionals and called functions, and so are run-time checks of the shapes of gradients. If a
    saved function computes custom gradients itself, as in a training step or an added signature, it still does, with
    built-in ops.

    Args:
      source: The folder of a SavedModel.
      target: The folder to write. Its parent must exist.
      check: Whether to `compare` the values of both models.

    Returns:
      A StripReport.

    Raises:
      OSError: `source` is not a complete SavedModel (FileNotFoundError, NotADirectoryError), `target` exists
        (FileExistsError), or its parent is not a folder.
      TypeError: An argument has the wrong type.
      ValueError: TensorFlow cannot read or load the model, or `target` lies inside `source`.
      RuntimeError: The stripped model fails, or computes other values.

    If there is an error, nothing is written. TensorFlow has nothing like it.
    """
    changes = _Changes()

    def change(meta_graphs: Any, path: pathlib.Path) -> bool:
        with raised_as_value_error(_API, path):
            for meta_graph in meta_graphs:
                _strip_meta_graph(meta_graph, changes)
        return bool(changes.replaced)

    copied = write_changed_copy(_API, source, target, change, check)
    return StripReport(*copied, **vars(changes))


@dataclass
class _Changes:
    replaced: dict[str, int] = field(default_factory=dict)
    nodes_dropped: int = 0
    functions_dropped: int = 0
    host_functions: list[str] = field(default_factory=list)


def _strip_meta_graph(meta_graph: Any, changes: _Changes) -> None:
    """Replaces the ops of this library in the meta graph, and drops the nodes and functions that only they use."""
    if any(node.op in _replace_ops.OUTPUT_NAMES for node in nodes_of(meta_graph.graph_def)):
        _replace_and_prune(meta_graph, changes)
    bodies = {"the graph": meta_graph.graph_def.node}
    bodies |= {name: function.node_def for name, function in functions_of(meta_graph.graph_def).items()}
    changes.host_functions += [
        f"{n.name} in {where}" for where, nodes in bodies.items() for n in nodes if n.op in _HOST_OPS
    ]


def _replace_and_prune(meta_graph: Any, changes: _Changes) -> None:
    graph_def = meta_graph.graph_def
    library = functions_of(graph_def)
    replacer = _replace_ops.OpReplacer(library.keys())
    unread = replacer.replace(graph_def.node, None)
    # Signatures, collections, savers and objects can name nodes of the graph.
    without_graph = type(meta_graph)()
    without_graph.CopyFrom(meta_graph)
    without_graph.ClearField("graph_def")
    changes.nodes_dropped += _pruning.prune_graph(graph_def, unread, without_graph.SerializeToString())
    gradients = {gradient.function_name: gradient.gradient_func for gradient in graph_def.library.gradient}

    def strip_function(name: str) -> list[str]:
        """Strips a function, and returns the functions that it still needs."""
        if name not in library:
            return []
        function = library[name]
        changes.nodes_dropped += _pruning.prune_function(function, replacer.replace(function.node_def, function))
        named = [*functions_in_nodes(function.node_def, library), *functions_in_attributes(function.attr, library)]
        return [*named, gradients[name]] if name in gradients else named

    named_outside = [
        *functions_in_nodes(graph_def.node, library),
        *meta_graph.object_graph_def.concrete_functions,
        *meta_graph.meta_info_def.function_aliases,
        *(gradient.gradient_func for gradient in graph_def.library.registered_gradients),
    ]
    needed = library.keys() & reachable(named_outside, strip_function)
    changes.functions_dropped += len(library) - len(needed)
    changes.replaced = dict(sorted((replacer.replaced + Counter(changes.replaced)).items()))
    kept = [function for name, function in library.items() if name in needed]
    set_repeated(graph_def.library.function, [*kept, *replacer.functions.values()])
    set_repeated(graph_def.library.gradient, [g for g in graph_def.library.gradient if g.function_name in needed])
