"""Malformed graphs run or raise an error. None ends the process or runs for ever."""

import json

import pytest

from ..support.processes import run_python

RUN = """
import json, sys
import numpy as np
import tensorflow as tf
import tf_cg_ops

tf1 = tf.compat.v1
F = tf.float64.as_datatype_enum
B = tf.bool.as_datatype_enum

def node(graph, name, op, inputs=(), **attributes):
    added = (graph.node if isinstance(graph, tf1.GraphDef) else graph.node_def).add(name=name, op=op, input=list(inputs))
    for key, value in attributes.items():
        if isinstance(value, str) and key in ("then_branch", "else_branch"):
            added.attr[key].func.name = value
        elif isinstance(value, list):
            added.attr[key].list.type.extend(value)
        elif isinstance(value, np.ndarray):
            added.attr[key].tensor.CopyFrom(tf.make_tensor_proto(value))
        elif key == "N":
            added.attr[key].i = value
        else:
            added.attr[key].type = value
    return added

def constant(graph, name, value):
    value = np.array(value)
    node(graph, name, "Const", dtype=tf.as_dtype(value.dtype).as_datatype_enum, value=value)

def embed(graph, name, fx, gx, x, control=()):
    return node(graph, name, "CustomGradientEmbed", [fx, gx, x, *control], T=F, N=1)

def function(graph, name):
    added = graph.library.function.add()
    added.signature.name = name
    for i, kind in enumerate((F, B)):
        added.signature.input_arg.add(name=f"x{i}", type=kind)
    added.signature.output_arg.add(name="y", type=F)
    return added

def base():
    graph = tf1.GraphDef()
    graph.versions.producer = 1000
    constant(graph, "x", [1.0, 2.0])
    constant(graph, "true", True)
    return graph

CASES = {}
def case(function):
    CASES[function.__name__] = function

@case
def a_ring_of_two():
    graph = base()
    embed(graph, "a", "y", "x", "x")
    embed(graph, "y", "a", "x", "x")
    return graph

@case
def a_merge_that_nothing_enters():
    graph = base()
    node(graph, "merged", "Merge", ["next", "next"], T=F, N=2)
    embed(graph, "h", "merged", "x", "x")
    node(graph, "next", "NextIteration", ["h"], T=F)
    embed(graph, "y", "x", "h", "x")
    return graph

@case
def a_switch_by_its_own_branch():
    graph = base()
    node(graph, "pred", "Switch", ["true", "true"], T=B)
    node(graph, "switch", "Switch", ["x", "pred:1"], T=F)
    embed(graph, "h", "x", "switch:1", "x")
    embed(graph, "y", "h", "switch", "x", ["^h"])
    return graph

@case
def a_rule_with_too_few_inputs():
    graph = base()
    added = node(graph, "y", "CustomGradientRule", ["x"] * 2, Tresults=[F] * 3, Tinputs=[F] * 2, Tcaptures=[F])
    added.attr["rule"].func.name = "not_there"
    for attribute in ("differentiated_results", "differentiated_inputs"):
        added.attr[attribute].list.SetInParent()
    return graph

def conditional(graph, name, branch, inputs):
    node(graph, name, "If", ["true" if isinstance(graph, tf1.GraphDef) else "x1", *inputs], Tcond=B, Tin=[F, B], Tout=[F], then_branch=branch, else_branch=branch)

def branches(graph, depth):
    for i in range(depth):
        branch = function(graph, f"branch_{i}")
        embed(branch, "h", "x0", "x0", "x0")
        branch.ret["y"] = "h:h:0"
        if i + 1 < depth:
            conditional(branch, "inner", f"branch_{i + 1}", ["h:h:0", "x1"])
            branch.ret["y"] = "inner:output:0"
    conditional(graph, "y", "branch_0", ["x", "true"])
    return graph

@case
def many_functional_branches():
    return branches(base(), 300)

@case
def a_branch_that_names_itself():
    # TensorFlow does not survive running it, but the pass sees it in the graph of the session.
    graph = branches(base(), 2)
    [inner] = [node for node in graph.library.function[0].node_def if node.op == "If"]
    inner.attr["then_branch"].func.name = "branch_0"
    graph.node[-1].name = "z"
    embed(graph, "y", "x", "x", "x")
    return graph

@case
def more_functional_branches_than_a_stack_holds():
    # The same: the pass alone sees them.
    graph = branches(base(), 3000)
    graph.node[-1].name = "z"
    embed(graph, "y", "x", "x", "x")
    return graph

@case
def a_branch_that_is_not_valid():
    graph = branches(base(), 1)
    graph.library.function[0].node_def[0].input[0] = "missing:h:0"
    return graph

@case
def many_switches():
    graph, last = base(), "x"
    for i in range(1500):
        constant(graph, f"p{i}", True)
        node(graph, f"s{i}", "Switch", [last, f"p{i}"], T=F)
        last = f"s{i}:1"
        if i % 10 == 0:
            embed(graph, f"h{i}", last, "x", "x")
            last = f"h{i}"
    embed(graph, "y", last, last, "x")
    return graph

config = tf1.ConfigProto()
config.graph_options.rewrite_options.disable_meta_optimizer = True
answers = {}
for name, make in CASES.items():
    print(name, file=sys.stderr, flush=True)  # The last one is what the process did not survive.
    try:
        with tf1.Graph().as_default(), tf1.Session(config=config) as session:
            tf1.import_graph_def(make(), name="")
            options = tf1.RunOptions(timeout_in_ms=20_000)
            answers[name] = np.array(session.run("y:0", options=options)).tolist()
    except Exception as error:
        answers[name] = type(error).__name__ + ": " + str(error)[:300]
print(json.dumps(answers))
"""

X = [1.0, 2.0]
# The graphs that run, with their results. All others raise errors.
VALUES = {
    "many_functional_branches": X,
    "a_branch_that_names_itself": X,
    "more_functional_branches_than_a_stack_holds": X,
    "many_switches": X,
}


@pytest.mark.parametrize("disable", ["0", "1"], ids=["with_the_pass", "without"])
def test_graphs_that_are_not_traced_from_python(disable, tmp_path):
    """The second process runs the graphs without the library, and what it returns there is right."""
    result = run_python(RUN, cwd=tmp_path, environment={"TF_CG_OPS_DISABLE_PASSES": disable})
    answers = json.loads(result.stdout.splitlines()[-1])
    assert {name: answer for name, answer in answers.items() if not isinstance(answer, str)} == VALUES
