"""`override`: copies a SavedModel, with other gradients for some of its ops."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, tf_internal
from tf_cg_ops._src.rewrite.op_rules import Matching, Rule, RuleTable
from tf_cg_ops._src.rewrite.overridden_op import attach_traced_rule
from tf_cg_ops._src.rewrite.own_gradients import OwnGradients, differentiated_inputs, name_of_owner

from ._changed_copy import Copied, write_changed_copy
from ._foreign_gradients import forget, gradient_functions, is_foreign, saved_gradient
from ._graphs import (
    Body,
    called,
    functions_of,
    import_bodies,
    raised_as_value_error,
    reachable,
)
from ._replace_ops import OpReplacer
from ._rewrite_body import rewrite_body

_API = "saved_model.override"
# Of calls, loops and conditionals with two branches.
_FUNCTION_ATTRIBUTES = ("f", "cond", "body", "then_branch", "else_branch")


@dataclass(frozen=True)
class OverrideReport(Copied):
    """What `override` changed.

    Attributes:
      source: The folder of the source.
      target: The folder that was written.
      comparisons: What `compare` found out about the values; None if the check was turned off.
      overridden: How many operations of each type got a rule.
    """

    overridden: dict[str, int]

    def __str__(self) -> str:
        return self._text([("overridden", ", ".join(f"{number} {op}" for op, number in self.overridden.items()))])


@tf_internal.autograph_artifact
@misplaced_calls.explains(
    _API,
    "Write saved_model.override(source, target, rules), and name the options, as in check=False. It copies a folder: "
    "for a function or a model in memory, write tf_cg_ops.override_gradients(f, rules).",
)
def override(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    rules: Mapping[Any, Rule],
    *,
    inside: bool = False,
    unmatched: str = "error",
    check: bool = True,
) -> OverrideReport:
    """Writes a copy of a SavedModel in which the ops that you name use your gradients.

    Use it if you have no Python code of the model.

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
      rules: A dict from an op type such as "Relu", a name with a slash such as "block3/Relu", or a predicate on a
        `tf.Operation`, to a rule, as there. A rule computes from the op and the upstream gradients alone, and
        cannot read variables.
      inside: Whether rules also reach into functions that have their own gradient, which then lose it.
      unmatched: What to do about a rule that matches no op that gradients reach: "error" or "ignore".
      check: Whether to `compare` the values of both models.

    Returns:
      An OverrideReport.

    Raises:
      OSError: `source` is not a complete SavedModel (FileNotFoundError, NotADirectoryError), `target` exists
        (FileExistsError), or its parent is not a folder.
      TypeError: As in `tf_cg_ops.override_gradients`.
      ValueError: Also as there; or TensorFlow cannot read or load the model, or `target` lies inside `source`.
      RuntimeError: The new model fails, or computes other values.

    If there is an error, nothing is written. TensorFlow has nothing like it.
    """
    table = RuleTable(_API, rules, inside, unmatched)
    matching, functions = table.matching(), _Functions()
    own = OwnGradients(matching, functions.of)

    def change(meta_graphs: Any, path: pathlib.Path) -> bool:
        outputs: list[tf.Tensor] = []
        for meta_graph in meta_graphs:
            with raised_as_value_error(_API, path):
                bodies = _bodies(meta_graph)
            outputs += functions.add(meta_graph, bodies)
            _attach_rules(meta_graph, bodies, matching)
            _settle_own_gradients(meta_graph, bodies, matching, own, table.inside)
        matching.check_all_matched(f"'{path}'")
        own.check_rules_reach(f"'{path}'", outputs)
        return True

    copied = write_changed_copy(_API, source, target, change, check)
    return OverrideReport(*copied, dict(sorted(matching.overridden.items())))


def _bodies(meta_graph: Any) -> list[Body]:
    """The graph and the functions that compute values.

    A function that only gradients call, such as a rule of an op of this library, stays as it is.
    """
    library = functions_of(meta_graph.graph_def)
    named = [*meta_graph.object_graph_def.concrete_functions, *called(meta_graph.graph_def.node, library)]
    reached = set(reachable(named, lambda name: called(library[name].node_def, library) if name in library else []))
    return list(import_bodies(meta_graph.graph_def, lambda name, _: not name or name in reached))


def _attach_rules(meta_graph: Any, bodies: Sequence[Body], matching: Matching) -> None:
    for body in bodies:

        def attach(op: Any, place: str = body.where) -> list[tf.Tensor] | None:
            rule = matching.rule_for(op)
            return None if rule is None else attach_traced_rule(_API, rule, op, op.inputs, op.outputs, place)

        rewrite_body(meta_graph.graph_def, body, attach)


def _settle_own_gradients(
    meta_graph: Any, bodies: Sequence[Body], matching: Matching, own: OwnGradients, inside: bool
) -> None:
    """Finds the ops with their own gradient, and with `inside` takes it from those that contain a matched op."""
    replacer = OpReplacer(())
    for body in bodies:
        nodes, without_gradient = {node.name: node for node in body.nodes}, set()
        for op in body.get_operations():
            if op.name not in nodes or matching.matched(op):
                continue
            positions: Sequence[int] | None
            if is_foreign(op.node_def):  # Its name in this process, if it has one, can be another function's.
                saved, name = saved_gradient(meta_graph, op.node_def), op.name
                # If the file lacks the gradient, computing it is an error.
                outputs = [True] * len(op.inputs) if saved is None else saved.outputs
                positions = [i for i, output in enumerate(outputs) if output is not None]
            else:
                positions, name = differentiated_inputs(op), ""
            if positions is None or own.keeps(op, positions, inside, name or name_of_owner(op)):
                continue
            if is_foreign(op.node_def):
                forget(nodes[op.name])
            else:
                without_gradient.add(op.name)
        replacer.replace(body.nodes, body.proto, without_gradient)


class _Functions:
    """The functions that the imported bodies call, by the graph of the body."""

    def __init__(self) -> None:
        self._library_of_graph: dict[int, dict[str, Body]] = {}

    def add(self, meta_graph: Any, bodies: Sequence[Body]) -> list[tf.Tensor]:
        """Adds the functions of a meta graph, and returns the outputs of what can be called from outside."""
        functions = {body.function: body for body in bodies if body.function}
        self._library_of_graph.update({id(body.graph): functions for body in bodies})
        of_gradients = set(gradient_functions(meta_graph.graph_def).values())
        public = functions.keys() & set(meta_graph.object_graph_def.concrete_functions) - of_gradients
        outputs = [tensor for name in public for tensor in functions[name].outputs]
        returned = {info.name for signature in meta_graph.signature_def.values() for info in signature.outputs.values()}
        graph_ops = [op for body in bodies if not body.function for op in body.get_operations()]
        tensors = [tensor for op in graph_ops for tensor in op.outputs]
        return outputs + [tensor for tensor in tensors if tensor.name in returned or not tensor.consumers()]

    def of(self, op: Any) -> list[Body]:
        """The functions that a call, loop or conditional runs. The condition of a loop comes first."""
        functions, attributes = self._library_of_graph[id(op.graph)], op.node_def.attr
        names = [name for name in _FUNCTION_ATTRIBUTES if name in attributes]
        branches = [branch.name for branch in attributes["branches"].list.func]
        return [functions[name] for name in branches or [attributes[name].func.name for name in names]]
