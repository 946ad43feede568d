"""Changes one node after the other of a graph's functions and differentiates: malformed_gradients.py GRAPH LIBRARY X DY.

Prints the gradients and errors. TensorFlow computes the gradient with the SymbolicGradient node that tf.gradients would make.
"""

import copy
import json
import pathlib
import sys

import tensorflow as tf

tf1 = tf.compat.v1
path, library, x, dy = sys.argv[1:]
tf.load_op_library(library)
SAVED = tf1.GraphDef.FromString(pathlib.Path(path).read_bytes())
OUTER = next(f.signature.name for f in SAVED.library.function if "outer" in f.signature.name)
DOUBLE = tf.float64.as_datatype_enum


def gradient(graph_def):
    with tf1.Graph().as_default(), tf1.Session() as session:
        inputs = {name: tf.constant(json.loads(text), tf.float64) for name, text in (("x", x), ("dy", dy))}
        node = graph_def.node.add(name="gradient", op="SymbolicGradient", input=["x", "dy"])
        node.attr["f"].func.name = OUTER
        node.attr["Tin"].list.type.extend([DOUBLE] * 2)
        node.attr["Tout"].list.type.append(DOUBLE)
        (out,) = tf.import_graph_def(graph_def, input_map=inputs, return_elements=["gradient:0"], name="")
        return session.run(out).tolist()


def of_attributes(kind, change):
    """Changes the attributes of one kind."""

    def change_node(function, node):
        for value in list(node.attr.values()):
            if value.WhichOneof("value") == kind:
                change(value)

    return change_node


def set_inputs(text):
    def change(function, node):
        node.input[:] = [text.format(name=node.name)] * len(node.input)

    return change


def set_attribute(name, **value):
    return lambda function, node: node.attr[name].CopyFrom(tf1.AttrValue(**value))


CHANGES = {
    "drop attributes": lambda function, node: node.ClearField("attr"),
    "other types": of_attributes("type", lambda value: setattr(value, "type", tf.float32.as_datatype_enum)),
    "positions out of range": of_attributes(
        "list", lambda v: v.list.i.__setitem__(slice(None), [-(10**12)] * len(v.list.i))
    ),
    "functions that are not there": of_attributes("func", lambda value: setattr(value.func, "name", "not there")),
    "empty lists": of_attributes("list", lambda value: value.list.Clear()),
    "drop inputs": lambda function, node: node.ClearField("input"),
    "one input more": lambda function, node: node.input.append(node.input[0] if node.input else "x"),
    "drop a node": lambda function, node: function.node_def.remove(node),
    "a node twice": lambda function, node: function.node_def.append(copy.deepcopy(node)),
    "no name": lambda function, node: setattr(node, "name", ""),
    # TensorFlow finds the fault when it optimises the gradient, goes on without, and has called the function without end.
    "device": lambda function, node: setattr(node, "device", "While"),
    "the name of an argument": lambda function, node: setattr(node, "name", function.signature.input_arg[0].name),
    **{
        f"op {op}": lambda function, node, op=op: setattr(node, "op", op)
        for op in (
            "Unheard",
            "ReadVariableOp",
            "PartitionedCall",
            "CustomGradientRule",
            "CustomGradientEmbedGrad",
            "Merge",
        )
    },
    **{f"input {text!r}": set_inputs(text) for text in ("", ":", "a:b:c", "x:7", "^", "{name}:y:0")},
    "_output_shapes as text": set_attribute("_output_shapes", s=b"[3]"),
    "_output_shapes as a list": set_attribute("_output_shapes", list=tf1.AttrValue.ListValue(s=[b"x"])),
}


def answers():
    for name, change in {"unchanged": lambda function, node: None, **CHANGES}.items():
        for f, function in enumerate(SAVED.library.function):
            for n, node in enumerate(function.node_def):
                graph = tf1.GraphDef()
                graph.CopyFrom(SAVED)
                changed = graph.library.function[f]
                change(changed, changed.node_def[n])
                key = f"{name}: {function.signature.name} {node.name}"
                print(key, file=sys.stderr, flush=True)  # The last one is what the process did not survive.
                try:
                    yield key, gradient(graph)
                except Exception as error:
                    yield key, f"{type(error).__name__}: {error}"[:400]


if __name__ == "__main__":
    print(json.dumps(dict(answers())))
