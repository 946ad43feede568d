"""Replaces the gradients of `tf.custom_gradient` in one meta graph of a SavedModel."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import text
from tf_cg_ops._src.custom_gradient import graph_rule
from tf_cg_ops._src.custom_gradient.graph_rule import attach
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.rewrite.overridden_op import attach_traced_rule

from . import _graph_errors, _malformed
from ._compare_gradients import relative_difference, to_compare
from ._foreign_gradients import (
    Captures,
    SavedGradient,
    UnreachableError,
    call_saved_gradient,
    forget,
    gradient_functions,
    is_foreign,
    name_of_gradient,
    saved_gradient,
)
from ._graph_def import functions_in_nodes, update_op_list
from ._imported import Body, import_bodies
from ._rewrite_body import BodyRewriter

SAVED, AUTODIFF, MISSING = "saved", "autodiff", "missing"
# "saved", "autodiff" or a rule.
Choice = str | Callable[..., Any]


@dataclass(frozen=True)
class AdoptedGradient:
    """A gradient of `tf.custom_gradient` that was replaced.

    Attributes:
      function: The function of the graph that holds it; empty if the graph itself does.
      node: Its operation there.
      gradients: Its new gradient: "saved", "autodiff", or the name of a rule; "missing" inside of a gradient function
        for which the file has no further one: derivatives of higher order raise an error.
      difference: The largest difference between the gradient function of the file and automatic differentiation of the
        ops inside, over the largest element of both, for random numbers; None if they were not compared.
      detail: The reason if they were not compared.
    """

    function: str
    node: str
    gradients: str
    difference: float | None
    detail: str


class Adoption:
    """Replaces foreign gradients by what the user chose for their places."""

    def __init__(
        self, api: str, source: pathlib.Path, gradients: Choice | Mapping[str, Choice], progress: Callable[[str], None]
    ) -> None:
        self._api = api
        self._source = source
        self._gradients = gradients
        self._progress = progress
        self._unmatched = set(gradients) if isinstance(gradients, Mapping) else set()
        self.adopted: list[AdoptedGradient] = []

    def change(self, meta_graph: Any) -> None:
        """Changes the graph and all functions that hold such gradients, those that compute gradients first."""
        graph_def = meta_graph.graph_def
        with _graph_errors.raised_as_value_error(self._api, self._source):
            _malformed.check_graph(graph_def)
            holders = list(_holders(meta_graph))
        plain = to_compare(meta_graph)
        for i, holder in enumerate(holders):
            self._progress(f"adopting gradients: {holder or 'the graph'} ({i + 1} of {len(holders)})")
            self._change_body(meta_graph, plain, holder)
        update_op_list(meta_graph)

    def check_all_matched(self) -> None:
        """Raises ValueError if a name in the dictionary is that of no place."""
        if self._unmatched:
            there = text.quoted(_place(found.function, found.node) for found in self.adopted) or "none"
            raise ValueError(
                f"{self._api}: gradients names places that '{self._source}' does not have: "
                f"{text.quoted(sorted(self._unmatched))}; expected those of gradients of tf.custom_gradient, got a "
                f"model with {there}. Name a node, or a function and a node, as saved_model.inspect lists them."
            )

    def _change_body(self, meta_graph: Any, plain: Any, holder: str) -> None:
        graph_def = meta_graph.graph_def
        with _graph_errors.raised_as_value_error(self._api, self._source):
            # Again for each of them: the functions before it have changed.
            (body,) = import_bodies(graph_def, lambda name, _: name == holder)
            (plain_body,) = import_bodies(plain.graph_def, lambda name, _: name == holder)
            captures, plain_captures = Captures(meta_graph), Captures(plain)
        functions = {function.signature.name: function for function in graph_def.library.function}
        serves_gradients = holder in gradient_functions(graph_def).values()
        nodes = {node.name: node for node in body.nodes if is_foreign(node)}

        gradients = {name: saved_gradient(meta_graph, name_of_gradient(node)) for name, node in nodes.items()}
        compared = {name: _compared(plain_body, name, gradient, plain_captures) for name, gradient in gradients.items()}

        def attach_chosen(op: Any) -> Sequence[tf.Tensor] | None:
            if op.name not in nodes:
                return None
            gradient = gradients[op.name]
            choice = self._choice(holder, op.name)
            chosen = choice if isinstance(choice, str) else text.name_of(choice)
            if choice == SAVED and gradient is None and serves_gradients:
                chosen = MISSING
            self.adopted.append(AdoptedGradient(holder, op.name, chosen, *compared[op.name]))
            if chosen == MISSING:
                return _attach_error(self._api, holder, op)
            if isinstance(choice, str):
                return None if choice == AUTODIFF else self._attach_saved(body, gradient, captures, op)
            num_results = gradient.num_results if gradient else _num_consumed(op)
            where = f" in the function '{holder}'" if holder else ""
            inputs, outputs = list(op.inputs)[num_results:], list(op.outputs)[:num_results]
            return attach_traced_rule(self._api, choice, op, inputs, outputs, where)

        rewriter = BodyRewriter(body, attach_chosen)
        rewriter.rewrite(functions[holder] if holder else None)
        graph_def.library.function.extend(rewriter.new_functions(functions))
        for node in nodes.values():
            forget(node)

    def _choice(self, function: str, node: str) -> Choice:
        if not isinstance(self._gradients, Mapping):
            return self._gradients
        names = [name for name in (_place(function, node), node) if name in self._gradients]
        self._unmatched.difference_update(names)
        return self._gradients[names[0]] if names else SAVED

    def _attach_saved(self, body: Body, gradient: SavedGradient | None, captures: Captures, op: Any) -> list[tf.Tensor]:
        place = _place(body.function, op.name)
        if gradient is None:
            raise ValueError(
                f"{self._api}: the file does not hold the gradient function of '{place}'; expected a model that was "
                "saved with its custom gradients, got one without. Pass gradients='autodiff', or a rule for it: "
                f"gradients={{'{place}': rule}}."
            )

        def backward(dys: Sequence[Any]) -> list[Any]:
            return call_saved_gradient(body, op, gradient, captures, dys)

        results, inputs = list(op.outputs)[: gradient.num_results], list(op.inputs)[gradient.num_results :]
        outputs = attach(without_gradient_function(self._api), place, results, inputs, backward)
        exception = graph_rule.exception_of(outputs[0].op)
        if isinstance(exception, UnreachableError):
            raise ValueError(
                f"{self._api}: the gradient of '{place}' reads a tensor from outside of the function that the function "
                "does not get; expected tensors that the value reads, too. Pass gradients="
                f"{{'{place}': 'autodiff'}}, or a rule for it."
            )
        if exception is not None:
            raise exception
        return outputs


def _attach_error(api: str, function: str, op: Any) -> list[tf.Tensor]:
    """The outputs of an op in a gradient function; a derivative of them is an error."""

    def backward(dys: Sequence[Any]) -> list[Any]:
        raise LookupError

    wording = dataclasses.replace(
        without_gradient_function(api),
        not_traced=(
            "the file did not hold the gradient function of '{function}', which a derivative of higher order needs. "
            "Adopt the model with a rule for it: gradients={{'{function}': rule}}."
        ),
    )
    return attach(wording, _place(function, op.name), list(op.outputs), list(op.inputs), backward)


def _place(function: str, node: str) -> str:
    return f"{function}/{node}" if function else node


def _compared(body: Body, node: str, gradient: SavedGradient | None, captures: Captures) -> tuple[float | None, str]:
    """The difference between the gradient of the file and automatic differentiation, or the reason if there is none."""
    if gradient is None:
        return None, "the file does not hold the gradient function"
    try:
        return relative_difference(body, body.graph.get_operation_by_name(node), gradient, captures), ""
    except Exception as error:  # A model may need anything that random numbers do not give: the report shows it.
        return None, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _num_consumed(op: Any) -> int:
    """The number of outputs of an op up to the last one that is read: without its gradient, the number of results."""
    returned = {i + 1 for i, output in enumerate(op.outputs) if output.consumers()}
    return max(returned, default=1)


def _holders(meta_graph: Any) -> Iterator[str]:
    """The functions with foreign gradients, and "" for the graph: each after those that its gradients need."""
    graph_def = meta_graph.graph_def
    library = {function.signature.name: function for function in graph_def.library.function}
    done: set[str] = set()

    def visit(name: str) -> Iterator[str]:
        if name in done:
            return
        done.add(name)
        nodes = library[name].node_def if name else graph_def.node
        foreign = [node for node in nodes if is_foreign(node)]
        for node in foreign:
            gradient = saved_gradient(meta_graph, name_of_gradient(node))
            if gradient is not None:
                yield from visit(gradient.function)
        for called in functions_in_nodes(nodes, library):
            yield from visit(called)
        if foreign:
            yield name

    for name in ["", *library]:
        yield from visit(name)
