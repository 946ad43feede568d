"""Replaces the ops of this library in the protos of a SavedModel by built-in ops with the same values.

A new op has the name of the old one, so that references by name stay right.
"""

from collections import Counter
from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.ops import composed
from tf_cg_ops._src.ready_made.fake_quant import KEEPS_NAN

from ._graphs import change_references, node_name

# The name of each op's output in the body of a function. In the ops that replace them it is "output".
OUTPUT_NAMES = {
    "CustomGradientBarrier": "outputs",
    "CustomGradientCheckShape": "checked",
    "CustomGradientEmbed": "h",
    "CustomGradientEmbedGrad": "out",
    "CustomGradientRule": "outputs",
}


class OpReplacer:
    """Replaces ops, counts them, and defines the functions that the new ops call."""

    def __init__(self, taken_names: Collection[str]) -> None:
        self.replaced: Counter[str] = Counter()
        self.functions: dict[str, Any] = {}
        self._taken_names = taken_names
        self._function_names: dict[Any, str] = {}  # By dtypes and attributes of the op.

    def replace(self, nodes: Any, function: Any, names: Collection[str] | None = None) -> set[str]:
        """Replaces nodes of a function (None for a graph), all or these, and the references to them.

        Returns the names of the nodes that the new ones do not read.
        """
        old_outputs, unread = {}, set()
        for node in nodes:
            if (node.op in OUTPUT_NAMES or KEEPS_NAN in node.attr) and (names is None or node.name in names):
                old_outputs[node.name] = OUTPUT_NAMES.get(node.op, "output")
                unread |= self._replace(node)

        def rename_output(reference: str) -> str:
            name, _, output = reference.partition(":")
            if name not in old_outputs or not output:
                return reference
            return f"{name}:output{output.removeprefix(old_outputs[name])}"

        if function is not None and old_outputs:  # In a graph, references have only the number of the output.
            change_references(nodes, function, rename_output)
        return unread

    def _replace(self, node: Any) -> set[str]:
        """Replaces one node. Returns the names of the nodes that the new one does not read."""
        self.replaced += {} if KEEPS_NAN in node.attr else Counter([node.op])
        data = [reference for reference in node.input if not reference.startswith("^")]
        controls = [reference for reference in node.input if reference.startswith("^")]
        attributes = {name: each for name, each in node.attr.items() if name.startswith("_") and name != KEEPS_NAN}
        if node.op == "CustomGradientEmbedGrad":
            read = data
            attributes |= self._call_attributes(node)
            new_op = "PartitionedCall"
        else:
            types = _forwarded_types(node)
            read = data[2:] if KEEPS_NAN in node.attr else data[: len(types)]
            if node.op == "CustomGradientBarrier":
                waits_for = {"^" + reference.partition(":")[0]: None for reference in data[len(types) :]}
                controls = list(dict.fromkeys([*controls, *waits_for]))
            if len(types) == 1:
                new_op, attributes["T"] = "Identity", _attribute(type=types[0])
            else:
                new_op, attributes["T"] = "IdentityN", _types_attribute(types)
        new = tf.compat.v1.NodeDef(op=new_op, name=node.name, device=node.device, input=[*read, *controls])
        for name, value in attributes.items():
            new.attr[name].CopyFrom(value)
        if node.HasField("experimental_debug_info"):
            new.experimental_debug_info.CopyFrom(node.experimental_debug_info)
        node.CopyFrom(new)
        return {node_name(reference) for reference in data if reference not in read}

    def _call_attributes(self, node: Any) -> dict[str, Any]:
        """The attributes of a PartitionedCall that computes a CustomGradientEmbedGrad."""
        dtype = tf.as_dtype(node.attr["T"].type)
        shape_dtype = tf.as_dtype(node.attr["Tshape"].type) if "Tshape" in node.attr else tf.int64
        attributes = {
            "wrt": tf.compat.as_str(node.attr["wrt"].s),
            "zero_x": node.attr["zero_x"].b,
            "axis": tuple(node.attr["axis"].list.i),
            "all_axes": node.attr["all_axes"].b,
        }
        key = (dtype, shape_dtype, *attributes.values())
        if key not in self._function_names:
            self._function_names[key] = self._define_function(dtype, shape_dtype, attributes)
        call = tf.compat.v1.AttrValue()
        call.func.name = self._function_names[key]
        return {
            "f": call,
            "Tin": _types_attribute([dtype.as_datatype_enum, dtype.as_datatype_enum, shape_dtype.as_datatype_enum]),
            "Tout": _types_attribute([dtype.as_datatype_enum]),
        }

    def _define_function(self, dtype: tf.DType, shape_dtype: tf.DType, attributes: dict[str, Any]) -> str:
        specs = [tf.TensorSpec(None, dtype), tf.TensorSpec(None, dtype), tf.TensorSpec([None], shape_dtype)]

        def embed_grad(lhs: tf.Tensor, rhs: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
            return composed.embed_grad(lhs, rhs, shape, **attributes)

        traced = tf.function(embed_grad, input_signature=specs, autograph=False).get_concrete_function()
        definition = type(traced.function_def)()
        definition.CopyFrom(traced.function_def)
        names = (f"embed_grad_of_built_in_ops_{i}" for i in range(len(self.functions) + len(self._taken_names) + 1))
        name = next(name for name in names if name not in self._taken_names and name not in self.functions)
        definition.signature.name = name
        # An inlined node is named after the call and itself, as "call/Const", and that can be the name of another node.
        own = {node.name for node in definition.node_def}
        change_references(
            definition.node_def, definition, lambda each: f"{name}/{each}" if node_name(each) in own else each
        )
        for node in definition.node_def:
            node.name = f"{name}/{node.name}"
        self.functions[name] = definition
        return name


def _forwarded_types(node: Any) -> list[int]:
    """The dtypes of the inputs that the op forwards."""
    for name in ("Tresults", "Tvalues"):
        if name in node.attr:
            return list(node.attr[name].list.type)
    return [node.attr["T"].type]


def _attribute(**value: Any) -> Any:
    return tf.compat.v1.AttrValue(**value)


def _types_attribute(types: list[int]) -> Any:
    return _attribute(list=tf.compat.v1.AttrValue.ListValue(type=types))
