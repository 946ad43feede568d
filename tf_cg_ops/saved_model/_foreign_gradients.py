"""Finds gradients of `tf.custom_gradient` in a SavedModel, and the functions that compute them.

`tf.custom_gradient` saves an IdentityN of its results and arguments, with the name of its gradient in an attribute. If
the file has a function for that name, the function takes an upstream gradient for each output of the op, and the
tensors that it closes over. The object graph lists these.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.graphs import control_flow, inline

from ._graphs import Body, functions_in_attributes, functions_of

_ATTRIBUTE = "_gradient_op_type"


def is_foreign(node: Any) -> bool:
    """Whether a node has a gradient of `tf.custom_gradient`. Calls have such an attribute, too."""
    return node.op == "IdentityN" and _ATTRIBUTE in node.attr


def forget(node: Any) -> None:
    """Makes a node an ordinary identity."""
    del node.attr[_ATTRIBUTE]


def gradient_functions(graph_def: Any) -> dict[str, str]:
    """The functions that compute gradients, by the names that ops refer to."""
    return {gradient.registered_op_type: gradient.gradient_func for gradient in graph_def.library.registered_gradients}


@dataclass(frozen=True)
class SavedGradient:
    """A gradient function of the file.

    Attributes:
      function: Its name.
      outputs: For each input of the op, the type of its gradient, or None for an input without a gradient.
      captures: The objects that it closes over, as nodes of the object graph.
    """

    function: str
    outputs: list[Any]
    captures: list[int]

    @property
    def num_results(self) -> int:
        """The number of inputs of the op that are results. The inputs after these are arguments."""
        return next((i for i, spec in enumerate(self.outputs) if spec is not None), len(self.outputs))

    def unflatten(self, tensors: list[tf.Tensor]) -> list[Any]:
        """Makes the gradients of the arguments, or None, from the tensors that the function returns."""
        remaining = list(tensors)
        gradients: list[Any] = []
        for spec in self.outputs:
            parts = [] if spec is None else [remaining.pop(0) for _ in tf.nest.flatten(spec, expand_composites=True)]
            gradients.append(tf.nest.pack_sequence_as(spec, parts, expand_composites=True) if parts else None)
        return gradients[self.num_results :]


def saved_gradient(meta_graph: Any, node: Any) -> SavedGradient | None:
    """The gradient function of a node; None if the file does not contain it."""
    function = gradient_functions(meta_graph.graph_def).get(tf.compat.as_str(node.attr[_ATTRIBUTE].s))
    concrete = meta_graph.object_graph_def.concrete_functions
    if function is None or function not in concrete:
        return None
    outputs = tf_internal.decode_proto(concrete[function].output_signature)
    return SavedGradient(function, list(outputs), list(concrete[function].bound_inputs))


class Captures:
    """Finds the tensors that gradient functions close over, in the bodies with their ops."""

    def __init__(self, meta_graph: Any) -> None:
        self._objects = meta_graph.object_graph_def
        self._library = functions_of(meta_graph.graph_def)

    def find(self, capture: int, body: Body) -> tf.Tensor | None:
        """The tensor of a body for an object; None if the body does not get it."""
        node = self._objects.nodes[capture]
        if node.WhichOneof("kind") == "captured_tensor":
            places = [(node.captured_tensor.concrete_function, node.captured_tensor.name)]
        else:  # A variable or a constant: an argument of the functions that name it.
            places = [
                (name, f"{self._library[name].signature.input_arg[i - len(bound)].name}:0")
                for name, concrete in self._objects.concrete_functions.items()
                for bound in [list(concrete.bound_inputs)]
                for i in [j for j, bound_node in enumerate(bound) if bound_node == capture]
                if name in self._library
            ]
        with body.graph.as_default():  # It contains the functions that nodes name.
            for function, tensor in places:
                found = self._passed(function, tensor, body.function, set())
                if found is not None:
                    return body.graph.get_tensor_by_name(found)
        return None

    def _passed(self, function: str, tensor: str, target: str, seen: set[tuple[str, str]]) -> str | None:
        """The name that a function's tensor has in the target; None if no call passes it there."""
        if function == target:
            return tensor
        if function not in self._library or (function, tensor) in seen:
            return None
        seen.add((function, tensor))
        definition = self._library[function]
        _, flat_names = tf_internal.function_def_to_graph_def(definition)
        sources = {node.name: node for node in definition.node_def}
        for node in definition.node_def:
            if node.op not in control_flow.TYPES:
                continue
            offset = 1 if node.op in control_flow.CONDITIONALS else 0
            data = [reference for reference in node.input if not reference.startswith("^")]
            for position, reference in enumerate(data[offset:]):
                if flat_names[_source(reference, sources)] != tensor:
                    continue
                for called in functions_in_attributes(node.attr, self._library):
                    argument = self._library[called].signature.input_arg[position].name
                    found = self._passed(called, f"{argument}:0", target, seen)
                    if found is not None:
                        return found
        return None


class UnreachableError(ValueError):
    """A gradient function reads a tensor that the function of its op does not get."""


def call_saved_gradient(
    body: Body, op: Any, gradient: SavedGradient, captures: Captures, dys: Sequence[Any]
) -> list[Any]:
    """Computes the gradients of the arguments of an op, or None, in the default graph. `dys` are for its results."""
    found = [captures.find(capture, body) for capture in gradient.captures]
    if any(tensor is None for tensor in found):
        raise UnreachableError
    dense = [tf.convert_to_tensor(dy) for dy in dys]
    # The function takes an upstream gradient for each output of the op, even if no op reads the output.
    unused = [tf.constant(0.0) for _ in range(len(op.inputs) - len(dense))]
    return gradient.unflatten(inline.inline(body.graph, gradient.function, [*dense, *unused, *found]))


def _source(reference: str, nodes: dict[str, Any]) -> str:
    """The reference at the start of a chain of identities."""
    while (node := nodes.get(reference.partition(":")[0])) is not None and node.op == "Identity":
        reference = node.input[0]
    return reference
