"""Freezes functions to files, or runs these files: freeze.py freeze FOLDER, freeze.py run FOLDER."""

import itertools
import json
import pathlib
import sys

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2 as freeze

import tf_cg_ops as cg


def functions():
    v, table = tf.Variable([2.0, 3.0]), tf.Variable([[1.0, 2.0], [3.0, 4.0]])

    def with_rule(rule):
        return cg.custom_gradient(lambda x: (tf.sin(x), rule))

    @tf.function
    def in_a_branch_of_a_function(dy):
        return tf.cond(tf.reduce_sum(dy) > 0, lambda: dy * v, lambda: dy + v)

    def rows(dy):
        rows = tf.gather(table, [1, 0])
        return dy * rows[0] * tf.cast(tf.shape(rows)[0], tf.float32) * tf.gather_nd(table, [[0, 1], [1, 0]])

    tangent = cg.custom_jvp(lambda x: tf.sin(x))
    tangent.defjvp(lambda primals, tangents: (tf.sin(*primals), v * tangents[0]))
    return {
        "variables": cg.custom_gradient(lambda x: (x * v, lambda dy, variables=None: (dy * v, [dy * x]))),
        "loop_in_the_rule": with_rule(
            lambda dy: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * v), (0, dy))[1]
        ),
        "call_in_the_rule": with_rule(in_a_branch_of_a_function),
        "rows_in_the_rule": with_rule(rows),
        "custom_jvp": tangent,
        "recompute_grad": cg.recompute_grad(lambda x: tf.sin(x * v) * v),
        "scan": lambda x: cg.scan(lambda carry, _: (tf.sin(carry * v), None), x, None, length=9)[0],
        "override_gradients": cg.override_gradients(lambda x: tf.nn.relu(x) * v, {"Relu": lambda op, dy: dy * v}),
        "implicit_root": cg.implicit_root(lambda y, x: y * v - x, lambda x: x / v),
        "embed_gradient": lambda x: cg.embed_gradient(tf.sign(x), lambda: v * 1.0, x),
    }


def in_a_loop_and_a_branch(f):
    def body(i, y):
        return i + 1, tf.cond(tf.reduce_sum(y) < 100.0, lambda: f(y), lambda: y)

    return lambda x: tf.while_loop(lambda i, y: i < 2, body, (0, x))[1]


PLACES = {"plain": lambda f: f, "loop": in_a_loop_and_a_branch}
X, DY = [1.0, -2.0], [1.0, 10.0]


def value_and_gradient(f):
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nest.flatten(f(x))[0]
    return y.numpy().tolist(), tape.gradient(y, x, output_gradients=tf.constant(DY)).numpy().tolist()


# In turn.
OPTIONS = {
    "plain": [{"lower_control_flow": False}, {}, {"aggressive_inlining": True}],
    "loop": [{"lower_control_flow": False}, {}],
}


def freeze_all(folder):
    found = {}
    for place, around in PLACES.items():
        for (name, f), options in zip(functions().items(), itertools.cycle(OPTIONS[place]), strict=False):
            frozen = freeze(tf.function(around(f)).get_concrete_function(tf.TensorSpec([2])), **options)
            definition = frozen.graph.as_graph_def()
            assert not any(node.op in ("ReadVariableOp", "VarHandleOp") for node in definition.node)
            key = " ".join([name, place])
            (folder / key).write_bytes(definition.SerializeToString())
            # TensorFlow does not differentiate loops and conditionals that freezing has lowered.
            lowered = "lower_control_flow" not in options and any(node.op == "Merge" for node in definition.node)
            expected = value_and_gradient(tf.function(around(f)))
            found[key] = expected[: 1 if lowered else 2], [t.name for t in (*frozen.inputs, *frozen.outputs)]
    (folder / "expected.json").write_text(json.dumps(found))
    print(len(found))


def run_all(folder):
    """Only the library is left: no functions, no variables."""
    for key, (expected, names) in json.loads((folder / "expected.json").read_text()).items():
        definition = tf.compat.v1.GraphDef.FromString((folder / key).read_bytes())
        with tf.Graph().as_default() as graph:
            x, y = tf.graph_util.import_graph_def(definition, name="", return_elements=names)
            fetches = [y] if len(expected) == 1 else [y, tf.gradients(y, x, tf.constant(DY))[0]]
            with tf.compat.v1.Session(graph=graph) as session:
                got = session.run(fetches, {x: X})
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, err_msg=key)
    print("right")


{"freeze": freeze_all, "run": run_all}[sys.argv[1]](pathlib.Path(sys.argv[2]))
