"""`override`: copies a SavedModel, with other gradients for some of its ops."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, tf_internal
from tf_cg_ops._src.core.types import TensorLike
from tf_cg_ops._src.rewrite import control_flow
from tf_cg_ops._src.rewrite.overridden_op import attach_traced_rule
from tf_cg_ops._src.rewrite.rule_table import Key, Matching, Rule, RuleTable

from . import _compare_models
from ._changed_copy import write_changed_copy
from ._graphs import (
    check_graph,
    functions_in_attributes,
    functions_of,
    import_bodies,
    raised_as_value_error,
    reachable,
    update_op_list,
)
from ._rewrite_body import rewrite_body

_API = "saved_model.override"


@dataclass(frozen=True)
class OverrideReport:
    """What `override` changed.

    Attributes:
      source: The folder of the source.
      target: The folder that was written.
      overridden: How many operations of each type got a rule.
      comparisons: The results of the check; None if it was turned off.
    """

    source: str
    target: str
    overridden: dict[str, int]
    comparisons: list[_compare_models.Comparison] | None


@tf_internal.autograph_artifact
@misplaced_calls.explains(_API, "Name the options, as in check=False.")
def override(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    rules: Mapping[Key, Rule],
    *,
    check: bool = True,
    inputs: Mapping[str, Mapping[str, TensorLike]] | None = None,
    progress: Callable[[str], None] | None = None,
) -> OverrideReport:
    """Writes a copy of a SavedModel in which the ops that you name use your gradients.

    >>> import tempfile
    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> model = tf.Module()
    >>> model.f = tf.function(tf.nn.relu, input_signature=[tf.TensorSpec([None])])
    >>> folder = tempfile.mkdtemp()
    >>> tf.saved_model.save(model, folder + "/model")
    >>> report = cg.saved_model.override(folder + "/model", folder + "/guided", {"Relu": cg.rules.guided})
    >>> report.overridden, report.comparisons[0].verdict
    ({'Relu': 1}, 'equal, bit for bit')
    >>> loaded = tf.saved_model.load(folder + "/guided")
    >>> x = tf.constant([-1.0, 2.0, 3.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = loaded.f(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0, -100.0])).numpy().tolist()
    [0.0, 10.0, 0.0]

    In the copy, an op `y = op(x)` that a rule matches has the gradient

        dx = rule(op, dy)

    as with `tf_cg_ops.override_gradients`, also in called functions, loops and conditionals. Values, signatures,
    functions, variables and other files stay the same. Gradients that the model computes itself, as in a saved training
    step, stay, too. Loading the copy needs `import tf_cg_ops`.

    Args:
      source: The folder of a SavedModel.
      target: The folder to write. Its parent must exist.
      rules: A dict from an op type such as "Relu", or a predicate on a `tf.Operation`, to a rule. An op gets the first
        rule that matches. A rule computes from the op and the upstream gradients alone, and cannot read variables.
      check: Whether to run and compare both models.
      inputs: The inputs of the check, as for `strip`.
      progress: Called with a line of text before each step.

    Returns:
      An OverrideReport.

    Raises:
      FileNotFoundError: `source` is not a SavedModel, or lacks files of variables; the parent of `target` is not a
        folder.
      NotADirectoryError: `source` is a file.
      FileExistsError: `target` exists.
      TypeError: An argument has the wrong type; a rule does not take the op and its upstream gradients, or returns a
        gradient of a wrong dtype.
      ValueError: `rules` is empty; a rule matches no op, or returns the wrong number of gradients or a wrong shape; the
        SavedModel cannot be read, is malformed, or cannot be loaded for the check; `target` lies inside `source`;
        `inputs` names an unknown signature or argument, or the source fails with them.
      RuntimeError: The new model fails, or computes other values.

    Other exceptions of a rule reach you unchanged. If there is an error, nothing is written.
    """
    matching = RuleTable(_API, rules).matching()

    def change(proto: Any, path: pathlib.Path, report_progress: Callable[[str], None]) -> bool:
        for meta_graph in proto.meta_graphs:
            _override_meta_graph(path, meta_graph, matching, report_progress)
        matching.check_all_matched(f"'{path}'")
        return True

    comparisons = write_changed_copy(_API, source, target, change, check, inputs, progress)
    overridden = dict(sorted(matching.overridden.items()))
    return OverrideReport(str(pathlib.Path(source)), str(pathlib.Path(target)), overridden, comparisons)


def _override_meta_graph(
    source: pathlib.Path, meta_graph: Any, matching: Matching, progress: Callable[[str], None]
) -> None:
    """Attaches rules to ops in the graph and in functions that compute values.

    A function that only gradients call, such as a rule of an op of this library, stays as it is.
    """
    graph_def = meta_graph.graph_def
    with raised_as_value_error(_API, source):
        check_graph(graph_def)
        library = functions_of(graph_def)
        named = [*meta_graph.object_graph_def.concrete_functions, *_called(graph_def.node, library)]
        reached = set(
            reachable(named, lambda name: _called(library[name].node_def, library) if name in library else [])
        )
        bodies = list(import_bodies(graph_def, lambda name, _: not name or name in reached))
    for i, body in enumerate(bodies):
        progress(f"overriding gradients: {body.function or 'the graph'} ({i + 1} of {len(bodies)})")

        def attach(op: Any, place: str = body.where) -> list[tf.Tensor] | None:
            rule = matching.rule_for(op)
            return None if rule is None else attach_traced_rule(_API, rule, op, op.inputs, op.outputs, place)

        rewrite_body(graph_def, body, attach)
    update_op_list(meta_graph)


def _called(nodes: Iterable[Any], library: dict[str, Any]) -> list[str]:
    """The functions that calls, loops and conditionals among the nodes run."""
    calls = [node for node in nodes if node.op in control_flow.TYPES]
    by_name = [node.op for node in nodes if node.op in library]  # A TensorFlow 1 function can be used as an op.
    return [*by_name, *(name for node in calls for name in functions_in_attributes(node.attr, library))]
