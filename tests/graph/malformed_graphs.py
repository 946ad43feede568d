"""Runs graphs that Python does not make, and prints their values or errors."""

import json
import sys

import numpy as np
import tensorflow as tf

import tf_cg_ops  # noqa: F401

tf1 = tf.compat.v1
DOUBLE, BOOL = tf.float64.as_datatype_enum, tf.bool.as_datatype_enum


def node(graph, name, op, inputs=(), **types):
    """Adds a node; an attribute is a type or a list of types."""
    nodes = graph.node if isinstance(graph, tf1.GraphDef) else graph.node_def
    added = nodes.add(name=name, op=op, input=list(inputs))
    for key, value in types.items():
        if isinstance(value, list):
            added.attr[key].list.type.extend(value)
        else:
            added.attr[key].type = value
    return added


def constant(graph, name, value, kind=DOUBLE):
    node(graph, name, "Const", dtype=kind).attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, kind))


def embed(graph, name, *inputs):
    node(graph, name, "CustomGradientEmbed", inputs, T=DOUBLE).attr["N"].i = 1


def merge(graph, name, *inputs):
    node(graph, name, "Merge", inputs, T=DOUBLE).attr["N"].i = len(inputs)


def a_ring_of_two(graph):
    embed(graph, "a", "y", "x", "x")
    embed(graph, "y", "a", "x", "x")


def a_merge_that_nothing_enters(graph):
    merge(graph, "merged", "next", "next")
    embed(graph, "h", "merged", "x", "x")
    node(graph, "next", "NextIteration", ["h"], T=DOUBLE)
    embed(graph, "y", "x", "h", "x")


def a_switch_by_its_own_branch(graph):
    node(graph, "pred", "Switch", ["true", "true"], T=BOOL)
    node(graph, "switch", "Switch", ["x", "pred:1"], T=DOUBLE)
    embed(graph, "h", "x", "switch:1", "x")
    embed(graph, "y", "h", "switch", "x", "^h")


def a_rule_with_too_few_inputs(graph):
    types = {"Tresults": [DOUBLE] * 3, "Tinputs": [DOUBLE] * 2, "Tcaptures": [DOUBLE]}
    added = node(graph, "y", "CustomGradientRule", ["x"] * 2, **types)
    added.attr["rule"].func.name = "not_there"
    for attribute in ("differentiated_results", "differentiated_inputs"):
        added.attr[attribute].list.SetInParent()


def conditional(graph, name, branch, *inputs):
    added = node(graph, name, "If", inputs, Tcond=BOOL, Tin=[DOUBLE, BOOL], Tout=[DOUBLE])
    for which in ("then_branch", "else_branch"):
        added.attr[which].func.name = branch


def branches(graph, depth, name="y"):
    """A conditional in a conditional, and so on."""
    for i in range(depth):
        branch = graph.library.function.add()
        branch.signature.name = f"branch_{i}"
        branch.signature.input_arg.add(name="x0", type=DOUBLE)
        branch.signature.input_arg.add(name="x1", type=BOOL)
        branch.signature.output_arg.add(name="y", type=DOUBLE)
        embed(branch, "h", "x0", "x0", "x0")
        branch.ret["y"] = "h:h:0"
        if i + 1 < depth:
            conditional(branch, "inner", f"branch_{i + 1}", "x1", "h:h:0", "x1")
            branch.ret["y"] = "inner:output:0"
    conditional(graph, name, "branch_0", "true", "x", "true")
    if name != "y":
        embed(graph, "y", "x", "x", "x")


def a_branch_that_names_itself(graph):
    """TensorFlow does not survive running it, but the pass sees it in the graph of the session."""
    branches(graph, 2, name="z")
    graph.library.function[0].node_def[1].attr["then_branch"].func.name = "branch_0"


def a_branch_that_is_not_valid(graph):
    branches(graph, 1)
    graph.library.function[0].node_def[0].input[0] = "missing:h:0"


def many_switches(graph):
    last = "x"
    for i in range(1500):
        constant(graph, f"p{i}", True, BOOL)
        node(graph, f"s{i}", "Switch", [last, f"p{i}"], T=DOUBLE)
        last = f"s{i}:1"
        if i % 10 == 0:
            embed(graph, f"h{i}", last, "x", "x")
            last = f"h{i}"
    embed(graph, "y", last, last, "x")


CASES = {
    make.__name__: make
    for make in (
        a_ring_of_two,
        a_merge_that_nothing_enters,
        a_switch_by_its_own_branch,
        a_rule_with_too_few_inputs,
        a_branch_that_names_itself,
        a_branch_that_is_not_valid,
        many_switches,
    )
}
CASES["many branches"] = lambda graph: branches(graph, 300)
CASES["more branches than a stack holds"] = lambda graph: branches(graph, 3000, name="z")


def run(make):
    graph_def = tf1.GraphDef()
    graph_def.versions.producer = 1000
    constant(graph_def, "x", [1.0, 2.0])
    constant(graph_def, "true", True, BOOL)
    make(graph_def)
    config = tf1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf1.Graph().as_default(), tf1.Session(config=config) as session:
        tf1.import_graph_def(graph_def, name="")
        return np.array(session.run("y:0", options=tf1.RunOptions(timeout_in_ms=20_000))).tolist()


answers = {}
for name, make in CASES.items():
    print(name, file=sys.stderr, flush=True)  # The last one is what the process did not survive.
    try:
        answers[name] = run(make)
    except Exception as error:
        answers[name] = f"{type(error).__name__}: {error}"[:300]
print(json.dumps(answers))
