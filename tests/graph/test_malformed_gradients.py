"""Gradients without Python in malformed files are right or raise an error, and never end the process.

Each case changes a function and lets TensorFlow compute its gradient, with the SymbolicGradient node that tf.gradients
would make. Numbers of inputs and outputs that do not fit into memory are left out, and so are functions that call
themselves, because TensorFlow would differentiate them without end.
"""

import json

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python

X, DY = np.array([0.5, -1.0, 2.0]), np.array([1.0, 10.0, 100.0])

RUN = """
import copy, json, sys
import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
path, library = sys.argv[1:3]
tf.load_op_library(library)
SAVED = tf1.GraphDef.FromString(open(path, "rb").read())
NAMES = {"outer": [f.signature.name for f in SAVED.library.function if "outer" in f.signature.name][0]}
OPTIONS = None

def copied():
    graph = tf1.GraphDef()
    graph.CopyFrom(SAVED)
    return graph

def gradient(graph_def, function=None):
    with tf1.Graph().as_default() as graph:
        x, dy = tf.constant(json.loads(sys.argv[3]), tf.float64, name="x"), tf.constant(json.loads(sys.argv[4]), tf.float64, name="dy")
        node = tf1.NodeDef(name="gradient", op="SymbolicGradient", input=["x", "dy"])
        node.attr["f"].func.name = function or NAMES["outer"]
        node.attr["Tin"].list.type.extend([tf.float64.as_datatype_enum] * 2)
        node.attr["Tout"].list.type.append(tf.float64.as_datatype_enum)
        graph_def.node.append(node)
        out = tf.import_graph_def(graph_def, input_map={"x": x, "dy": dy}, return_elements=["gradient:0"], name="")
        with tf1.Session(config=OPTIONS) as session:
            return session.run(out[0]).tolist()

ANSWERS = {}
def attempt(name, graph_def, function=None):
    print(name, file=sys.stderr, flush=True)  # The last one is what the process did not survive.
    try:
        ANSWERS[name] = gradient(graph_def, function)
    except Exception as error:
        ANSWERS[name] = type(error).__name__ + ": " + str(error)[:400]

# Changes of one node at a time: of each node of each function.
def change_inputs(text):
    def change(function, node):
        for i in range(len(node.input)):
            node.input[i] = text
    return change

def drop_attributes(function, node):
    for name in list(node.attr):
        del node.attr[name]

def change_types(function, node):
    for value in node.attr.values():
        if value.WhichOneof("value") == "type":
            value.type = tf.float32.as_datatype_enum

def change_positions(function, node):
    for value in node.attr.values():
        for i in range(len(value.list.i)):
            value.list.i[i] = -(10**12)

def change_functions(function, node):
    for value in node.attr.values():
        if value.WhichOneof("value") == "func":
            value.func.name = "not there"

def empty_lists(function, node):
    for value in node.attr.values():
        if value.WhichOneof("value") == "list":
            value.list.Clear()

def placeholders(function, node):
    for value in node.attr.values():
        value.placeholder = "T"

def change_op(op):
    def change(function, node):
        node.op = op
    return change

def read_itself(function, node):
    for i in range(len(node.input)):
        node.input[i] = node.name + ":" + "yzo"[i % 3] + ":0"

WRONG_SHAPES = {"s": b"[3]", "i": 3, "list": tf1.AttrValue.ListValue(s=[b"x"])}
CHANGES = {
    "drop attributes": drop_attributes,
    "other types": change_types,
    "positions out of range": change_positions,
    "functions that are not there": change_functions,
    "empty lists": empty_lists,
    "placeholders": placeholders,
    "reads itself": read_itself,
    "drop inputs": lambda function, node: node.ClearField("input"),
    "one input more": lambda function, node: node.input.append(node.input[0] if node.input else "x"),
    "drop a node": lambda function, node: function.node_def.remove(node),
    "a node twice": lambda function, node: function.node_def.append(copy.deepcopy(node)),
    "no name": lambda function, node: setattr(node, "name", ""),
    # TensorFlow finds the fault when it optimises the gradient, goes on without, and has called the function without end.
    "device": lambda function, node: setattr(node, "device", "While"),
    "the name of an argument": lambda function, node: setattr(node, "name", function.signature.input_arg[0].name),
} | {f"op {op}": change_op(op) for op in ("Unheard", "ReadVariableOp", "NoOp", "PartitionedCall", "CustomGradientRule",
                                          "CustomGradientCheckShape", "CustomGradientEmbedGrad", "Merge")} | {
    f"input {text!r}": change_inputs(text) for text in ("", ":", "a", "a:b:c", "a:b:0", "x:7", "^")
} | {
    f"_output_shapes as {kind}": lambda function, node, value=tf1.AttrValue(**{kind: value}):
        node.attr["_output_shapes"].CopyFrom(value)
    for kind, value in WRONG_SHAPES.items()
}
attempt("unchanged", copied())
for change in CHANGES:
    for f, function in enumerate(SAVED.library.function):
        for n, node in enumerate(function.node_def):
            graph = copied()
            changed = graph.library.function[f]
            CHANGES[change](changed, changed.node_def[n])
            attempt(f"{change}: {function.signature.name} {node.name}", graph)
print(json.dumps(ANSWERS))
"""


def small_model():
    """A GraphDef with only the functions."""

    @cg.custom_gradient
    def spike(x):
        return tf.sign(x), lambda dy: 4.0 * dy * x

    @tf.function
    def inner(x):
        return spike(x) + tf.sin(x)

    @tf.function
    def outer(x):
        return cg.embed_gradient(x**2, tf.cos(x), x) * inner(x)

    spec = tf.TensorSpec([3], tf.float64)
    graph_def = tf.function(lambda x: outer(x) * inner(x)).get_concrete_function(spec).graph.as_graph_def()
    graph_def.ClearField("node")
    return graph_def


def by_hand():
    inner = np.sign(X) + np.sin(X)
    return DY * (np.cos(X) * inner + X**2 * (4 * X + np.cos(X)))


def test_a_changed_node_gives_an_error_or_the_right_gradient(tmp_path):
    (tmp_path / "graph.pb").write_bytes(small_model().SerializeToString())
    result = run_python(RUN, tmp_path / "graph.pb", cg.sysconfig.get_lib(), X.tolist(), DY.tolist(), cwd=tmp_path)
    found = json.loads(result.stdout.splitlines()[-1])
    assert len(found) > 300
    assert not isinstance(found["unchanged"], str), found["unchanged"]
    for name, answer in found.items():
        if not isinstance(answer, str):
            np.testing.assert_allclose(answer, by_hand(), err_msg=name)
    errors = [name for name, answer in found.items() if isinstance(answer, str)]
    assert not [name for name in errors if name.startswith("_output_shapes")]
    # In all functions that are differentiated, including the rule.
    assert any(name.startswith("device: ") and "custom_gradient_rule_of_spike" in name for name in errors)
