"""Passes rules the values of variables that they only read, instead of the handles.

When TensorFlow freezes a graph, it replaces the ops that read variables by constants. It cannot do that with an op that
takes a handle. So the value is read outside of the op; the gradient goes back to the handle and reads the variable
again, as it is then.
"""

import copy
import itertools
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import calls, tf_internal

# For each op that takes a handle: the op that takes the value, and the new names of the attributes.
_READS = {
    "ReadVariableOp": ("Identity", {"dtype": "T"}),
    "ResourceGather": ("GatherV2", {"dtype": "Tparams", "Tindices": "Tindices", "batch_dims": "batch_dims"}),
    "ResourceGatherNd": ("GatherNd", {"dtype": "Tparams", "Tindices": "Tindices"}),
    "VariableShape": ("Shape", {"out_type": "out_type"}),
}
# The pass that prunes gradients (cc/passes/prune_gradients.cc) finds reads for rules by this attribute.
_OF_RULE = "_tf_cg_ops_read_for_rule"

_serial = itertools.count()


def take_values(function: Any, captures: list[Any], num_upstream: int) -> tuple[Any, list[int]]:
    """Changes a rule to take the values of variables that it only reads; returns it with the positions of these."""
    candidates = [i for i, tensor in enumerate(captures) if tensor.dtype == tf.resource and _is_variable(tensor)]
    if not candidates:
        return function, []
    functions = _Functions(function)
    read = [i for i in candidates if functions.only_reads(function.name, num_upstream + i)]
    if not read:
        return function, []
    specs = {num_upstream + i: tf_internal.shape_and_dtype(captures[i]) for i in read}
    # A SavedModel takes the shapes of the inputs from the graph of the rule.
    with function.graph.as_default():
        for position, (shape, dtype) in specs.items():
            function.graph.inputs[position] = tf_internal.graph_placeholder(dtype, shape)
    dtypes = {position: dtype.as_datatype_enum for position, (_, dtype) in specs.items()}
    return functions.of_values(function.name, dtypes, function.graph), read


def read(tensor: Any, like: Any = None) -> Any:
    """Reads a variable again, from its handle or from a value that was read; returns other tensors unchanged."""
    source = tensor
    while not isinstance(source, tf_internal.EagerTensor) and source.op.type == "Identity":
        source = source.op.inputs[0]
    if source.dtype != tf.resource and not isinstance(source, tf_internal.EagerTensor):
        source = source.op.inputs[0] if source.op.type == "ReadVariableOp" else source
    if source.dtype != tf.resource:
        return tensor
    dtype = tf_internal.shape_and_dtype(source)[1] if like is None else like.dtype
    # The variable can be on another device.
    with tf.device(None):
        value = tf.raw_ops.ReadVariableOp(resource=source, dtype=dtype)
    if like is not None:
        value.set_shape(like.shape)
    return value


def read_for_rule(handle: Any) -> tf.Tensor:
    """Reads a variable for a CustomGradientRule, with a mark that inference does not need the read."""
    value = read(handle)
    tf_internal.set_attribute(value.op, _OF_RULE, tf.compat.v1.AttrValue(b=True))
    return value


def _is_variable(handle: Any) -> bool:
    try:
        tf_internal.shape_and_dtype(handle)
    except ValueError:  # Such as a hash table.
        return False
    return True


class _Functions:
    """The definitions of a function and the functions that it calls, and the new functions made from them."""

    def __init__(self, function: Any) -> None:
        self._functions = {_name(f): f for f in (function, *function.children)}
        self._made: dict[tuple[str, tuple[int, ...]], Any] = {}

    def only_reads(self, name: Any, position: int) -> bool:
        """Whether a function uses a handle among its arguments only to read the variable."""
        definition = self._definition(name)
        argument = definition.signature.input_arg[position].name
        uses = [(node, i) for node in definition.node_def for i, used in enumerate(node.input) if used == argument]
        # The body of a loop returns its handles.
        is_returned_elsewhere = self._returns(name, position) not in ([], [position])
        return not is_returned_elsewhere and all(self._node_only_reads(definition, node, i) for node, i in uses)

    def _node_only_reads(self, definition: Any, node: Any, i: int) -> bool:
        if node.op in _READS:
            return True
        position = i - calls.num_own_inputs(node.op)
        if node.op not in calls.TYPES or position < 0:
            return False
        called = [function.name for function in calls.functions_in(node.attr.values())]
        if not all(name in self._functions and self.only_reads(name, position) for name in called):
            return False
        if node.op in calls.LOOPS:
            result = f"{node.name}:output:{position}"
            nodes = definition.node_def
            return result not in definition.ret.values() and not any(result in other.input for other in nodes)
        return not any(self._returns(name, position) for name in called)

    def _returns(self, name: Any, position: int) -> list[int]:
        """The positions at which a function returns an argument unchanged."""
        definition = self._definition(name)
        argument, outputs = definition.signature.input_arg[position].name, definition.signature.output_arg
        return [i for i, output in enumerate(outputs) if definition.ret[output.name] == argument]

    def of_values(self, name: Any, dtypes: dict[int, int], graph: Any = None) -> Any:
        """The function with values of these dtypes instead of the handles at these positions."""
        key = _name(name), tuple(dtypes)
        if key not in self._made:
            definition = copy.deepcopy(self._definition(name))
            definition.signature.name = f"{key[0]}_of_values_{next(_serial)}"
            self._rewrite(definition, dtypes)
            called = [self._functions[name] for name in calls.reachable(definition, self._definition)]
            self._made[key] = tf_internal.function_of_definition(definition, called, graph)
            self._functions[definition.signature.name] = self._made[key]
        return self._made[key]

    def _definition(self, name: Any) -> Any:
        return tf_internal.function_def_of(self._functions[_name(name)])

    def _rewrite(self, definition: Any, dtypes: dict[int, int]) -> None:
        arguments = {}
        for position, dtype in dtypes.items():
            argument = definition.signature.input_arg[position]
            arguments[argument.name] = dtype
            returned = [o for o in definition.signature.output_arg if definition.ret[o.name] == argument.name]
            for changed in (argument, *returned):
                changed.type = dtype
                changed.ClearField("handle_data")
            definition.arg_attr.pop(position, None)
            definition.resource_arg_unique_id.pop(position, None)
        definition.attr.pop("_input_shapes", None)
        renamed = {}
        for node in list(definition.node_def):
            if node.op in _READS and node.input[0] in arguments:
                if node.op == "ReadVariableOp":
                    renamed[f"{node.name}:value:0"] = f"{node.name}:output:0"
                _read_value(definition, node, arguments[node.input[0]])
            elif node.op in calls.TYPES:
                offset = calls.num_own_inputs(node.op)
                passed = {i - offset: arguments[r] for i, r in enumerate(node.input) if r in arguments}
                if passed:
                    self._pass_values(node, passed)
        for node in definition.node_def:
            node.input[:] = [renamed.get(reference, reference) for reference in node.input]
        for output, reference in list(definition.ret.items()):
            definition.ret[output] = renamed.get(reference, reference)

    def _pass_values(self, node: Any, dtypes: dict[int, int]) -> None:
        for function in calls.functions_in(node.attr[name] for name in sorted(node.attr)):
            function.name = _name(self.of_values(function.name, dtypes))
        is_loop = node.op in calls.LOOPS
        types = node.attr["T" if is_loop else "Tin"].list.type
        shapes = node.attr["output_shapes"].list.shape if is_loop else []
        for position, dtype in dtypes.items():
            types[position] = dtype
            if shapes:
                shapes[position].Clear()
                shapes[position].unknown_rank = True
        node.attr.pop("_read_only_resource_inputs", None)


def _read_value(definition: Any, node: Any, dtype: int) -> None:
    """Changes an op that takes a handle to take the value."""
    old = copy.deepcopy(node)
    node.op, names = _READS[old.op]
    node.ClearField("attr")
    for before, after in names.items():
        if before in old.attr:
            node.attr[after].CopyFrom(old.attr[before])
    if node.op == "Shape":
        node.attr["T"].type = dtype
    if node.op == "GatherV2":
        axis = definition.node_def.add(name=f"{node.name}/axis", op="Const")
        axis.attr["dtype"].type = node.attr["Taxis"].type = tf.int32.as_datatype_enum
        axis.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(old.attr["batch_dims"].i, tf.int32))
        node.input.insert(2, f"{axis.name}:output:0")


def _name(function: Any) -> str:
    return tf.compat.as_str(getattr(function, "name", function))
