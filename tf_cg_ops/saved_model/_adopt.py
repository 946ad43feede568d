"""`adopt`: copies a SavedModel, with gradients of `tf.custom_gradient` that work after loading."""

from __future__ import annotations

import dataclasses
import graphlib
import os
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, text, tf_internal
from tf_cg_ops._src.custom_gradient import live_rule
from tf_cg_ops._src.custom_gradient.attaching import attach
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.rewrite.op_rules import Rule
from tf_cg_ops._src.rewrite.overridden_op import attach_traced_rule

from ._changed_copy import Copied, write_changed_copy
from ._compare import GRADIENTS, Comparison, compare
from ._foreign_gradients import (
    Captures,
    SavedGradient,
    UnreachableError,
    call_saved_gradient,
    forget,
    gradient_functions,
    is_foreign,
    saved_gradient,
)
from ._graphs import (
    Body,
    called,
    functions_of,
    import_bodies,
    place_of,
    raised_as_value_error,
)
from ._rewrite_body import rewrite_body

_API = "saved_model.adopt"
_SAVED, _AUTODIFF, _MISSING = "saved", "autodiff", "missing"
# For an op in a gradient function whose own gradient is missing.
_MISSING_WORDING = dataclasses.replace(
    without_gradient_function(_API),
    not_traced=(
        "the adopted file did not contain the gradient function of '{function}', which a derivative of higher order "
        "needs. Adopt the model with a rule for it: gradients={{'{function}': rule}}."
    ),
)
# "saved", "autodiff" or a rule.
_Choice: TypeAlias = str | Rule


@dataclass(frozen=True)
class AdoptedGradient:
    """A gradient of `tf.custom_gradient` that was replaced.

    Attributes:
      function: The function of the graph that contains it; empty for the graph itself.
      node: Its operation there.
      gradients: Its new gradient: "saved", "autodiff" or the name of a rule. It is "missing" if the op is in a gradient
        function and the file does not have the gradient of the op. Derivatives of higher order then raise an error.
    """

    function: str
    node: str
    gradients: str

    def __str__(self) -> str:
        return f"{place_of(self.function, self.node)}: {self.gradients}"


@dataclass(frozen=True)
class AdoptReport(Copied):
    """What `adopt` changed.

    Attributes:
      source: The folder of the source.
      target: The folder that was written.
      comparisons: What `compare` found out about the source and the target; None if the check was turned off.
      adopted: An AdoptedGradient for each gradient of `tf.custom_gradient`.
      autodiff: What `compare` found out about the gradients of the target and of one with `gradients="autodiff"`; None
        if the check was turned off.
    """

    adopted: list[AdoptedGradient]
    autodiff: list[Comparison] | None

    def __str__(self) -> str:
        adopted = [("adopted", str(each)) for each in self.adopted] or [
            ("adopted", "nothing: the model does not use tf.custom_gradient")
        ]
        return self._text(adopted, [("autodiff", each) for each in self.autodiff or []])


@tf_internal.autograph_artifact
@misplaced_calls.explains(_API)
def adopt(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    gradients: str | Rule | Mapping[str, str | Rule] = "saved",
    *,
    check: bool = True,
) -> AdoptReport:
    """Writes a copy of a SavedModel in which the gradients of `tf.custom_gradient` work after loading.

    Use it to train or explain a model that someone else saved.

    >>> import tempfile
    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> @tf.custom_gradient
    ... def fires(x):  # In a process that loads the file, the gradient of the loop raises a TypeError.
    ...     return tf.sign(x), lambda dy: dy / (1.0 + tf.abs(x))
    >>> model = tf.Module()
    >>> model.f = tf.function(
    ...     lambda x: tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, fires(x)), (0, x))[1],
    ...     input_signature=[tf.TensorSpec([None])],
    ... )
    >>> folder = tempfile.mkdtemp()
    >>> tf.saved_model.save(model, folder + "/model")
    >>> report = cg.saved_model.adopt(folder + "/model", folder + "/adopted")
    >>> [found.gradients for found in report.adopted], report.comparisons[0].verdict
    (['saved'], 'equal, bit for bit')
    >>> loaded = tf.saved_model.load(folder + "/adopted")
    >>> x = tf.constant([-1.0, 3.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = loaded.f(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    [0.25, 1.25]

    After loading, TensorFlow computes the values of such a model, but often not its gradients. With the default
    `gradients="saved"`, each gradient function in the file becomes a rule like one of `tf_cg_ops.custom_gradient`, also
    in loops and conditionals: the gradient of the values `y` with respect to the arguments `x` is

        dx = gradient_function(dy)

    With "autodiff", TensorFlow differentiates the ops that compute the values, and the copy needs no library when it is
    loaded. The guide "Train on someone else's SavedModel" says when gradients fail, and how the copy is checked.

    Args:
      source: The folder of a SavedModel.
      target: The folder to write. Its parent must exist.
      gradients: "saved", "autodiff" or a rule for all places; or a dict from places to one of these, where all other
        places are "saved". A place is the name of a node, or of a function and a node, "function/node", as
        `saved_model.inspect` lists them. A rule is `rule(op, *dy)`, as for `tf_cg_ops.override_gradients`; `op.inputs`
        are the arguments of the decorated function and `op.outputs` its results.
      check: Whether to `compare` both models, and their gradients with automatic differentiation.

    Returns:
      An AdoptReport. It says by how much the new gradients differ from automatic differentiation.

    Raises:
      OSError: `source` is not a complete SavedModel, `target` exists, or its parent is not a folder.
      TypeError: As in `override`.
      ValueError: `gradients` or a place is unknown; the file lacks a gradient, or it reads a tensor that its place does
        not get; or as in `override`.
      RuntimeError: The new model fails, or computes other values.

    If there is an error, nothing is written. TensorFlow has nothing like it.
    """
    choices = gradients.values() if isinstance(gradients, Mapping) else [gradients]
    for choice in choices:
        if not callable(choice) and choice not in (_SAVED, _AUTODIFF):
            wrong = ValueError if isinstance(choice, str) else TypeError
            raise wrong(
                f"{_API}: gradients must be 'saved', 'autodiff', a rule, or a dict of these by places, got "
                f"{text.describe(choice)}."
            )
    adoption = Adoption(gradients)
    copied = write_changed_copy(_API, source, target, adoption.change, check, gradients=True)
    autodiff: list[Comparison] | None = [] if check else None
    if check and any(each.gradients != _AUTODIFF for each in adoption.adopted):
        parent = pathlib.Path(target).parent
        with tempfile.TemporaryDirectory(prefix=f".{pathlib.Path(target).name}.", dir=parent) as folder:
            adopt(source, folder + "/autodiff", _AUTODIFF, check=False)
            autodiff = [each for each in compare(target, folder + "/autodiff") if each.what == GRADIENTS]
    return AdoptReport(*copied, adoption.adopted, autodiff)


class Adoption:
    """Replaces foreign gradients by what the user chose for their places, and lists them in `adopted`."""

    def __init__(self, gradients: _Choice | Mapping[str, _Choice]) -> None:
        self.gradients = gradients
        self.adopted: list[AdoptedGradient] = []

    def change(self, meta_graphs: Any, source: pathlib.Path) -> bool:
        """Changes the graph and all functions that contain such gradients, gradient functions first."""
        for meta_graph in meta_graphs:
            with raised_as_value_error(_API, source):
                holders = _holders(meta_graph)
            for holder in holders:
                self._change_body(meta_graph, holder, source)
        places = [place_of(found.function, found.node) for found in self.adopted]
        named = self.gradients if isinstance(self.gradients, Mapping) else ()
        unmatched = set(named) - {*places, *(found.node for found in self.adopted)}
        if unmatched:
            raise ValueError(
                f"{_API}: {text.written('the keys of gradients', '--place')} must be places of tf.custom_gradient in "
                f"'{source}', which has {text.quoted(places) or 'none'}, got {text.quoted(sorted(unmatched))}. Name a "
                f"node, or a function and a node, as {text.written('saved_model.', '')}inspect lists them."
            )
        return bool(self.adopted)

    def _change_body(self, meta_graph: Any, holder: str, source: pathlib.Path) -> None:
        with raised_as_value_error(_API, source):  # Imports each time, because functions before it have changed.
            (body,) = import_bodies(meta_graph.graph_def, lambda name, _: name == holder)
            captures = Captures(meta_graph)
        serves_gradients = body.function in gradient_functions(meta_graph.graph_def).values()
        foreign = {node.name: node for node in body.nodes if is_foreign(node)}

        def attach_chosen(op: Any) -> Sequence[tf.Tensor] | None:
            if op.name not in foreign:
                return None
            gradient = saved_gradient(meta_graph, foreign[op.name])
            place = place_of(body.function, op.name)
            choice = self._choice(place, op.name)
            is_missing = choice == _SAVED and gradient is None and serves_gradients
            chosen = _MISSING if is_missing else choice if isinstance(choice, str) else text.name_of(choice)
            self.adopted.append(AdoptedGradient(body.function, op.name, chosen))
            if is_missing:
                return attach(_MISSING_WORDING, place, list(op.outputs), list(op.inputs), _raise_lookup_error)
            if choice == _SAVED:
                return _attach_saved(body, gradient, captures, op, place)
            if choice == _AUTODIFF:
                return None
            num_results = gradient.num_results if gradient else _num_consumed(op)
            inputs, outputs = list(op.inputs)[num_results:], list(op.outputs)[:num_results]
            return attach_traced_rule(_API, choice, op, inputs, outputs, body.where)

        rewrite_body(meta_graph.graph_def, body, attach_chosen)
        for node in foreign.values():
            forget(node)

    def _choice(self, place: str, node: str) -> Any:
        if not isinstance(self.gradients, Mapping):
            return self.gradients
        return self.gradients.get(place, self.gradients.get(node, _SAVED))


def _attach_saved(
    body: Body, gradient: SavedGradient | None, captures: Captures, op: Any, place: str
) -> list[tf.Tensor]:
    if gradient is None:
        python = f"gradients='autodiff', or a rule for it: gradients={{'{place}': rule}}"
        raise ValueError(
            f"{_API}: the file must contain the gradient function of '{place}', got a model that was saved without it. "
            f"Pass {text.written(python, f'--gradients autodiff, or another gradient for it: --place {place}=zero')}."
        )

    def backward(dys: Sequence[Any]) -> list[Any]:
        return call_saved_gradient(body, op, gradient, captures, dys)

    results, inputs = list(op.outputs)[: gradient.num_results], list(op.inputs)[gradient.num_results :]
    outputs = attach(without_gradient_function(_API), place, results, inputs, backward)
    exception = live_rule.exception_of(outputs[0].op)
    if isinstance(exception, UnreachableError):
        python = f"gradients={{'{place}': 'autodiff'}}, or a rule for it"
        raise ValueError(
            f"{_API}: the gradient function of '{place}' must read only tensors that the value reads, too, got another "
            f"one from outside of the function. Pass {text.written(python, f'--place {place}=autodiff')}."
        )
    if exception is not None:
        raise exception
    return outputs


def _num_consumed(op: Any) -> int:
    """The number of outputs up to the last one that is read: the number of results, if the gradient does not tell."""
    return max((i + 1 for i, output in enumerate(op.outputs) if output.consumers()), default=1)


def _raise_lookup_error(dys: Sequence[Any]) -> list[Any]:
    raise LookupError


def _holders(meta_graph: Any) -> list[str]:
    """The functions with foreign gradients, and "" for the graph. Functions that their gradients need come first."""
    library = functions_of(meta_graph.graph_def)
    nodes_of_body = {"": meta_graph.graph_def.node} | {name: body.node_def for name, body in library.items()}
    foreign = {name: [node for node in nodes if is_foreign(node)] for name, nodes in nodes_of_body.items()}
    needs = {name: set(called(nodes, library)) for name, nodes in nodes_of_body.items()}
    for name, nodes in foreign.items():
        gradients = (saved_gradient(meta_graph, node) for node in nodes)
        needs[name].update(gradient.function for gradient in gradients if gradient is not None)
    return [name for name in graphlib.TopologicalSorter(needs).static_order() if foreign[name]]
