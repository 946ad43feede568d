"""Adds a traced function to the protos of a SavedModel, as a signature beside the others.

Loading the model and saving it again would write new function names, a new checkpoint and other objects, and forget
tags, aliases and the files beside. Here everything that was there keeps its bytes.
"""

import pathlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import text, tf_internal

from ._graphs import functions_in_nodes, functions_of, node_name, reachable, scopes_of, set_repeated

RESERVED = ("self",)  # TensorFlow traces no function with such an argument.


@dataclass(frozen=True)
class SavedSignature:
    """A signature that `tf.saved_model.save` has written.

    Attributes:
      siblings: The node of the object graph that lists the signatures.
      function: The function that computes it.
      bound_inputs: The objects, such as variables, that the function reads: nodes of the object graph.
      tensors: The tensors of the graph for these objects.
      method_name: What the signature tells servers about its use.
    """

    siblings: Any
    function: str
    bound_inputs: list[int]
    tensors: list[str]
    method_name: str


def find_signature(api: str, path: pathlib.Path, meta_graphs: Any, name: str) -> SavedSignature:
    """The signature of this name. Raises ValueError if there is none."""
    objects, graph_def = meta_graphs[0].object_graph_def, meta_graphs[0].graph_def
    siblings = next((node for node in objects.nodes if node.user_object.identifier == "signature_map"), None)
    if siblings is None or len(meta_graphs) > 1:
        raise ValueError(
            f"{api}: '{path}' must be a model of TensorFlow 2, got one of TensorFlow 1. Load it, and save it again "
            "with tf.saved_model.save(loaded, path, signatures=loaded.signatures)."
        )
    found = {child.local_name: objects.nodes[child.node_id].bare_concrete_function for child in siblings.children}
    if name not in found:
        raise ValueError(
            f"{api}: signature must name a signature of '{path}', which has {text.quoted(sorted(found)) or 'none'}, "
            f"got {text.describe(name)}."
        )
    function, signature = found[name].concrete_function_name, meta_graphs[0].signature_def[name]
    bound_inputs = list(objects.concrete_functions[function].bound_inputs)
    results = {node_name(info.name) for info in signature.outputs.values()}
    call = next(node for node in graph_def.node if node.name in results)
    tensors = [reference for reference in call.input if not reference.startswith("^")][len(signature.inputs) :]
    return SavedSignature(siblings, function, bound_inputs, tensors, signature.method_name)


def add_signature(
    meta_graph: Any, beside: SavedSignature, name: str, function: Any, captures: list[int]
) -> tuple[dict[str, str], dict[str, str]]:
    """Adds a ConcreteFunction as a signature, and returns the graph's tensors for its inputs and its outputs.

    `captures` has for each tensor that the function captures its position in `beside.bound_inputs`.
    """
    graph_def, objects = meta_graph.graph_def, meta_graph.object_graph_def
    inputs, outputs = function.structured_input_signature[1], function.structured_outputs
    nodes = {node.name for node in graph_def.node}
    # TensorFlow inlines the call into the scope of its name.
    call_name = unused(name, nodes.union(*map(scopes_of, nodes)))
    placeholders = {key: unused(f"{name}_{key}", {*nodes, call_name}) for key in sorted(inputs)}
    with tf.Graph().as_default() as graph:
        arguments = [
            tf.compat.v1.placeholder(inputs[key].dtype, inputs[key].shape, new) for key, new in placeholders.items()
        ]
        handles = [tf.compat.v1.placeholder(captured.dtype) for captured in function.captured_inputs]
        for captured, handle in zip(function.captured_inputs, handles, strict=True):
            tf_internal.copy_handle_data(captured, handle)  # TensorFlow infers shapes in the function again.
        types = [tensor.dtype for tensor in function.outputs]
        tf.raw_ops.StatefulPartitionedCall(args=[*arguments, *handles], Tout=types, f=function, name=call_name)
    new = graph.as_graph_def(add_shapes=True)
    # TensorFlow also keeps the loops that it has replaced by loops that store values for the gradient.
    library = functions_of(new)
    needed = reachable(
        functions_in_nodes(new.node, library), lambda each: [*functions_in_nodes(library[each].node_def, library)]
    )
    set_repeated(new.library.function, [library[each] for each in needed])
    taken = {each.signature.name for each in graph_def.library.function}
    renamed: dict[str, str] = {}
    for each in new.library.function:
        # Other processes number their functions in the same way, and TensorFlow wants a number at the end.
        stem = re.sub(r"(_\d+)+$", "", each.signature.name)
        numbers = range(len(taken) + len(renamed) + 1)
        free = (f"{stem}_{i}" for i in numbers if f"{stem}_{i}" not in taken)
        renamed[each.signature.name] = next(each for each in free if each not in renamed.values())
    _rename_functions(new, renamed)
    (call,) = (node for node in new.node if node.name == call_name)
    call.input[len(arguments) :] = [beside.tensors[i] for i in captures]
    graph_def.node.extend(node for node in new.node if node is call or node.name in placeholders.values())
    graph_def.library.function.extend(new.library.function)

    tensors = {key: f"{new}:0" for key, new in placeholders.items()}
    results = {key: f"{call_name}:{i}" for i, key in enumerate(sorted(outputs))}
    signature = meta_graph.signature_def[name]
    signature.method_name = beside.method_name
    for infos, specs, names in ((signature.inputs, inputs, tensors), (signature.outputs, outputs, results)):
        for key, spec in specs.items():
            infos[key].name, infos[key].dtype = names[key], spec.dtype.as_datatype_enum
            infos[key].tensor_shape.CopyFrom(spec.shape.as_proto())

    function_name = renamed[tf.compat.as_str(function.name)]
    saved = objects.concrete_functions[function_name]
    saved.bound_inputs.extend(beside.bound_inputs[i] for i in captures)
    saved.canonicalized_input_signature.CopyFrom(tf_internal.encode_structure(function.structured_input_signature))
    results_structure = {key: tf.TensorSpec(spec.shape, spec.dtype, key) for key, spec in outputs.items()}
    saved.output_signature.CopyFrom(tf_internal.encode_structure(results_structure))
    beside.siblings.children.add(local_name=name, node_id=len(objects.nodes))
    bare = objects.nodes.add().bare_concrete_function
    bare.concrete_function_name = function_name
    bare.argument_keywords.extend(placeholders)
    return tensors, results


def unused(name: str, taken: Collection[str]) -> str:
    """The name with a number that makes it new, if it is taken. TensorFlow takes no two that differ by case alone."""
    taken = {each.casefold() for each in taken}
    names = (f"{name}_{i}" if i else name for i in range(len(taken) + 1))
    return next(each for each in names if each.casefold() not in taken)


def _rename_functions(graph_def: Any, renamed: Mapping[str, str]) -> None:
    nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
    for node in nodes:
        node.op = renamed.get(node.op, node.op)
        _rename_in_attributes(node.attr, renamed)
    for function in graph_def.library.function:
        function.signature.name = renamed[function.signature.name]
        _rename_in_attributes(function.attr, renamed)


def _rename_in_attributes(attributes: Any, renamed: Mapping[str, str]) -> None:
    for attribute in attributes.values():
        for function in (attribute.func, *attribute.list.func):
            if function.name in renamed:
                function.name = renamed[function.name]
            _rename_in_attributes(function.attr, renamed)
