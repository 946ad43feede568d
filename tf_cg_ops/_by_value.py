"""Lets a gradient rule capture what variables hold, and not the variables.

A rule that reads a variable captures its handle. It would then read what the variable holds in the backward pass, where
all other gradients use what it held in the forward pass; and TensorFlow freezes no graph that hands a handle to an op
which it does not know.
"""

from typing import Any

import tensorflow as tf

from . import _tf_internal


def capture_values(function: Any, num_arguments: int, captures: list[tf.Tensor]) -> tuple[Any, list[tf.Tensor]]:
    """Replaces each captured handle by the value, where the function itself does nothing but read it.

    The function has `num_arguments` arguments before its captures. A handle that it passes on, or writes to, stays.
    """
    definition = _tf_internal.copy_of_definition(function)
    arguments = [argument.name for argument in definition.signature.input_arg]
    captures = list(captures)
    read: set[str] = set()
    for position, capture in enumerate(captures, start=num_arguments):
        if capture.dtype != tf.resource:
            continue
        users = [node for node in definition.node_def if arguments[position] in node.input]
        dtypes = {node.attr["dtype"].type for node in users}
        if any(node.op != "ReadVariableOp" for node in users) or len(dtypes) != 1:
            continue
        (dtype,) = dtypes
        captures[position - num_arguments] = tf.raw_ops.ReadVariableOp(resource=capture, dtype=tf.as_dtype(dtype))
        definition.signature.input_arg[position].type = dtype
        definition.arg_attr.pop(position, None)  # It says what the handle is of.
        for node in users:
            node.op = "Identity"
            node.attr["T"].type = node.attr.pop("dtype").type
            read.add(f"{node.name}:value:0")
    if not read:
        return function, captures

    def rename(reference: str) -> str:
        return f"{reference.removesuffix(':value:0')}:output:0" if reference in read else reference

    for node in definition.node_def:
        node.input[:] = [rename(reference) for reference in node.input]
    for name, reference in list(definition.ret.items()):
        definition.ret[name] = rename(reference)
    return _tf_internal.with_definition(function, definition), captures
