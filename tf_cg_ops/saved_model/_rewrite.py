"""Replaces the ops of this library in the protos of a SavedModel by stock ops with the same values.

Every op is replaced in its place and keeps its name, so that what refers to it by name stays right.
"""

from collections import Counter
from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.ops import composed

# Each op, and what the body of a function calls its output. The ops that stand in their places call it "output".
OUTPUTS = {
    "CustomGradientBarrier": "outputs",
    "CustomGradientCheckShape": "checked",
    "CustomGradientEmbed": "h",
    "CustomGradientEmbedGrad": "out",
    "CustomGradientRule": "outputs",
}


def holds_our_ops(graph_def: Any) -> bool:
    """Whether a graph, or a function in its library, has a node to replace."""
    nodes = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    return any(node.op in OUTPUTS for body in nodes for node in body)


class Rewriter:
    """Replaces ops, counts them, and makes the functions that the new ones call."""

    def __init__(self, taken_names: Collection[str]) -> None:
        self.replaced: Counter[str] = Counter()
        self.functions: dict[str, Any] = {}
        self._taken_names = taken_names
        self._names: dict[Any, str] = {}

    def graph(self, graph_def: Any) -> set[str]:
        """Replaces in the nodes of a graph; returns the names of the nodes that were read for gradients alone."""
        return {name for node in graph_def.node if node.op in OUTPUTS for name in self._replace(node)}

    def function(self, function: Any) -> bool:
        """Replaces in the body of a function, references included; returns whether there was anything to replace."""
        renamed = {}
        for node in function.node_def:
            if node.op in OUTPUTS:
                renamed[node.name] = OUTPUTS[node.op]
                self._replace(node)

        def rename(reference: str) -> str:
            name, _, output = reference.partition(":")
            if name not in renamed or not output:
                return reference
            return f"{name}:output{output.removeprefix(renamed[name])}"

        if renamed:
            for node in function.node_def:
                node.input[:] = [rename(reference) for reference in node.input]
            for returned, reference in list(function.ret.items()):  # An iteration may see what is put in meanwhile.
                function.ret[returned] = rename(reference)
        return bool(renamed)

    def _replace(self, node: Any) -> set[str]:
        """Replaces one node; returns the names of the nodes whose values are read no more."""
        self.replaced[node.op] += 1
        data = [reference for reference in node.input if not reference.startswith("^")]
        controls = [reference for reference in node.input if reference.startswith("^")]
        attributes = {name: value for name, value in node.attr.items() if name.startswith("_")}
        if node.op == "CustomGradientEmbedGrad":
            kept = data
            attributes |= self._call(node)
            new_op = "PartitionedCall"
        else:
            types = _types_of_values(node)
            kept = data[: len(types)]
            if node.op == "CustomGradientBarrier":
                waits = {"^" + reference.partition(":")[0]: None for reference in data[len(types) :]}
                controls = list(dict.fromkeys([*controls, *waits]))
            if len(types) == 1:
                new_op, attributes["T"] = "Identity", _attribute(type=types[0])
            else:
                new_op, attributes["T"] = "IdentityN", _types_attribute(types)
        new = tf.compat.v1.NodeDef(op=new_op, name=node.name, device=node.device, input=[*kept, *controls])
        for name, value in attributes.items():
            new.attr[name].CopyFrom(value)
        if node.HasField("experimental_debug_info"):
            new.experimental_debug_info.CopyFrom(node.experimental_debug_info)
        node.CopyFrom(new)
        return {reference.partition(":")[0] for reference in data[len(kept) :]}

    def _call(self, node: Any) -> dict[str, Any]:
        """The attributes of a call that computes what a CustomGradientEmbedGrad did."""
        dtype = tf.as_dtype(node.attr["T"].type)
        shape_dtype = tf.as_dtype(node.attr["Tshape"].type) if "Tshape" in node.attr else tf.int64
        attributes = {
            "wrt": tf.compat.as_str(node.attr["wrt"].s),
            "zero_x": node.attr["zero_x"].b,
            "axis": tuple(node.attr["axis"].list.i),
            "all_axes": node.attr["all_axes"].b,
        }
        key = (dtype, shape_dtype, *attributes.values())
        if key not in self._names:
            self._names[key] = self._define(dtype, shape_dtype, attributes)
        call = tf.compat.v1.AttrValue()
        call.func.name = self._names[key]
        return {
            "f": call,
            "Tin": _types_attribute([dtype.as_datatype_enum, dtype.as_datatype_enum, shape_dtype.as_datatype_enum]),
            "Tout": _types_attribute([dtype.as_datatype_enum]),
        }

    def _define(self, dtype: tf.DType, shape_dtype: tf.DType, attributes: dict[str, Any]) -> str:
        specs = [tf.TensorSpec(None, dtype), tf.TensorSpec(None, dtype), tf.TensorSpec([None], shape_dtype)]

        def embed_grad(lhs: tf.Tensor, rhs: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
            return composed.embed_grad(lhs, rhs, shape, **attributes)

        traced = tf.function(embed_grad, input_signature=specs, autograph=False).get_concrete_function()
        definition = type(traced.function_def)()
        definition.CopyFrom(traced.function_def)
        names = (f"embed_grad_of_stock_ops_{i}" for i in range(len(self.functions) + len(self._taken_names) + 1))
        name = next(name for name in names if name not in self._taken_names and name not in self.functions)
        definition.signature.name = name
        self.functions[name] = definition
        return name


def _types_of_values(node: Any) -> list[int]:
    """The dtypes of what the op hands on."""
    for name in ("Tresults", "Tvalues"):
        if name in node.attr:
            return list(node.attr[name].list.type)
    return [node.attr["T"].type]


def _attribute(**value: Any) -> Any:
    return tf.compat.v1.AttrValue(**value)


def _types_attribute(types: list[int]) -> Any:
    return _attribute(list=tf.compat.v1.AttrValue.ListValue(type=types))
