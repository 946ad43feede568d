"""Attaches rules to ops in the proto of a graph or function.

The rule's op takes the name of the old op, so that references by name stay right. The old op gets a new name.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal

from ._graphs import Body, change_references, functions_of, reachable


def rewrite_body(graph_def: Any, body: Body, attach: Callable[[Any], Sequence[tf.Tensor] | None]) -> None:
    """Attaches rules to ops of one body of a graph, and adds their functions to the graph.

    `attach` adds a CustomGradientRule for an op to the default graph, and returns its outputs, which replace the first
    outputs of the op. It returns None for an op without a rule.
    """
    library = functions_of(graph_def)
    rewriter = _BodyRewriter(body, attach)
    rewriter.rewrite()
    new: dict[str, Any] = {}

    def named_by(name: str) -> list[str]:
        if name in library:
            return []
        new[name] = tf_internal.function_def_of(tf_internal.find_function(body.graph, name))
        attributes = [attribute for node in new[name].node_def for attribute in node.attr.values()]
        return [f.name for attribute in attributes for f in (attribute.func, *attribute.list.func) if f.name]

    reachable((op.get_attr("rule").name for op in rewriter.rules.values()), named_by)
    graph_def.library.function.extend(new.values())


class _BodyRewriter:
    def __init__(self, body: Body, attach: Callable[[Any], Sequence[tf.Tensor] | None]) -> None:
        self._body = body
        self._attach = attach
        self._nodes = {node.name: node for node in body.nodes}
        self._positions = {nested: flat.rpartition(":")[2] for flat, nested in body.references.items()}
        self.rules: dict[str, Any] = {}  # The rule's op, by the name of the op that it belongs to.

    def rewrite(self) -> None:
        """Replaces nodes of the body, and the references to them."""
        new_nodes = []
        for op in self._body.get_operations():
            if op.name in self._nodes and op.inputs and op.outputs:
                new_nodes += self._new_nodes(op)
        if self.rules:
            change_references(self._body.nodes, self._body.proto, self._redirected)
            for name in self.rules:
                self._nodes[name].name = self._value_name(name)
            self._body.nodes.extend(new_nodes)

    def _new_nodes(self, op: Any) -> list[Any]:
        """The new nodes for an op; empty if it has no rule."""
        graph = self._body.graph
        num_operations = len(graph.get_operations())
        with graph.as_default():
            outputs = self._attach(op)
        if outputs is None:
            return []
        self.rules[op.name] = outputs[0].op
        return [self._new_node(op, new) for new in graph.get_operations()[num_operations:]]

    def _new_node(self, op: Any, new: Any) -> Any:
        """The node for a new op of the rule of `op`."""
        node = tf.compat.v1.NodeDef()
        node.CopyFrom(new.node_def)
        node.device = op.device
        if new is self.rules[op.name]:
            node.name = op.name
        node.input[:] = [self._reference(tensor, of_value=tensor.op is op) for tensor in new.inputs]
        return node

    def _reference(self, tensor: Any, of_value: bool) -> str:
        """The reference to a tensor of the graph. `of_value` means the op itself and not its rule."""
        reference = self._body.references.get(tensor.name) if self._body.function else tensor.name
        if reference is None:  # A new op, such as one that reads a shape.
            (output,) = tensor.op.op_def.output_arg
            reference = f"{tensor.op.name}:{output.name}:{tensor.value_index}"
        return self._of_value(reference) if of_value else self._redirected(reference)

    def _redirected(self, reference: str) -> str:
        """The reference to the rule's output instead, if the op has a rule."""
        name, _, output = reference.partition(":")
        if name not in self.rules:
            return reference
        position = int(self._positions[reference] if self._body.function else output or 0)
        if position >= len(self.rules[name].outputs):
            return self._of_value(reference)
        # In a graph, references have only the number of the output.
        return f"{name}:outputs:{position}" if self._body.function else reference

    def _of_value(self, reference: str) -> str:
        name, colon, output = reference.partition(":")
        return self._value_name(name) + colon + output

    def _value_name(self, name: str) -> str:
        """The new name of an op whose name the rule takes."""
        name += "/value"
        while name in self._nodes:
            name += "_"
        return name
