"""Adds variables to the files of a SavedModel: to its objects, its graph, and its checkpoint."""

import pathlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal

from ._graphs import scopes_of
from ._new_signature import SavedSignature, unused

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # The tensor of a checkpoint that says which object has which values.


def add_variables(meta_graph: Any, signature: SavedSignature, owner: str, variables: Mapping[str, tf.Variable]) -> str:
    """Adds variables that signatures can capture, after what the signature captures, in this order.

    They become attributes of a new object, whose name begins with `owner` and is returned. Python finds their values
    by the objects, and a session by the ops that restore all values.
    """
    objects, graph_def, saver = meta_graph.object_graph_def, meta_graph.graph_def, meta_graph.saver_def
    root = objects.nodes[0]
    holder = unused(owner, [child.local_name for child in root.children])
    taken = {node.name for node in graph_def.node}
    scope = unused(holder, taken.union(*map(scopes_of, taken)))
    root.children.add(local_name=holder, node_id=len(objects.nodes))
    holder_node = objects.nodes.add()
    holder_node.user_object.identifier = "_generic_user_object"
    holder_node.user_object.version.producer = holder_node.user_object.version.min_consumer = 1
    with tf.Graph().as_default() as graph, tf.name_scope(f"{scope}/"):
        prefix = tf.compat.v1.placeholder(tf.string, [])
        assigned = []
        for name, variable in variables.items():
            handle = tf.raw_ops.VarHandleOp(
                dtype=variable.dtype, shape=variable.shape, shared_name=f"{scope}/{name}", name=name
            )
            key = tf.constant([checkpoint_key(holder, name)])
            (value,) = tf.raw_ops.RestoreV2(
                prefix=prefix, tensor_names=key, shape_and_slices=[""], dtypes=[variable.dtype]
            )
            assigned.append(tf.raw_ops.AssignVariableOp(resource=handle, value=value))
            signature.bound_inputs.append(len(objects.nodes))
            signature.tensors.append(handle.name)
            holder_node.children.add(local_name=name, node_id=len(objects.nodes))
            saved = objects.nodes.add().variable
            saved.dtype, saved.name = variable.dtype.as_datatype_enum, f"{scope}/{name}"
            saved.shape.CopyFrom(variable.shape.as_proto())
        with tf.control_dependencies(assigned):
            restored = tf.no_op()
    nodes = [node for node in graph.as_graph_def(add_shapes=True).node if node.name != prefix.op.name]
    for node in nodes:
        node.input[:] = [saver.filename_tensor_name if each == prefix.op.name else each for each in node.input]
        if node.name == restored.name:
            node.input.append(f"^{saver.restore_op_name}")
    graph_def.node.extend(nodes)
    saver.restore_op_name = restored.name
    return holder


def checkpoint_key(holder: str, name: str) -> str:
    """The name under which a checkpoint has the value of a variable."""
    return f"{holder}/{name}/.ATTRIBUTES/VARIABLE_VALUE"


def write_values(folder: pathlib.Path, holder: str, variables: Mapping[str, tf.Variable]) -> None:
    """Writes the values of these variables of an object into the checkpoint of a SavedModel, beside what it has."""
    prefix = str(folder / "variables" / "variables")
    types = tf.train.load_checkpoint(prefix).get_variable_to_dtype_map()
    restored = tf.raw_ops.RestoreV2(
        prefix=prefix, tensor_names=list(types), shape_and_slices=[""] * len(types), dtypes=list(types.values())
    )
    tensors = dict(zip(types, restored, strict=True))
    graph = tf_internal.TrackableObjectGraph.FromString(tensors[_OBJECT_GRAPH].numpy())
    graph.nodes[0].children.add(local_name=holder, node_id=len(graph.nodes))
    holder_node = graph.nodes.add()
    for name, variable in variables.items():
        holder_node.children.add(local_name=name, node_id=len(graph.nodes))
        key = checkpoint_key(holder, name)
        graph.nodes.add().attributes.add(name="VARIABLE_VALUE", full_name=variable.name, checkpoint_key=key)
        tensors[key] = variable.read_value()
    tensors[_OBJECT_GRAPH] = tf.constant(graph.SerializeToString(deterministic=True))
    for file in (folder / "variables").glob("variables.*"):
        file.unlink()
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )
