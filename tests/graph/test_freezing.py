"""Graphs with gradient rules that read variables can be frozen like other graphs."""

import json

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import vjp
from ..support.processes import run_python

# In processes of their own, because freezing removes functions that TensorFlow then misses.
KINDS = """
import json, sys
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2 as freeze
import tf_cg_ops as cg

v, table = tf.Variable([2.0, 3.0]), tf.Variable([[1.0, 2.0], [3.0, 4.0]])
x, dy = tf.constant([1.0, -2.0]), tf.constant([1.0, 10.0])

@cg.custom_gradient
def by_variables(x):
    return x * v, lambda dy, variables=None: (dy * v, [dy * x])

def with_rule(rule):
    return cg.custom_gradient(lambda x: (tf.sin(x), rule))

def in_a_loop(dy):
    return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * v), (0, dy))[1]

@tf.function
def in_a_branch_of_a_function(dy):
    return tf.cond(tf.reduce_sum(dy) > 0, lambda: dy * v, lambda: dy + v)

def rows(dy):
    rows = tf.gather(table, [1, 0])
    return dy * rows[0] * tf.cast(tf.shape(rows)[0], tf.float32) * tf.gather_nd(table, [[0, 1], [1, 0]])

tangent = cg.custom_jvp(lambda x: tf.sin(x))
tangent.defjvp(lambda primals, tangents: (tf.sin(*primals), v * tangents[0]))

kinds = {
    "variables": by_variables,
    "closure": with_rule(lambda dy: dy * v),
    "loop_in_the_rule": with_rule(in_a_loop),
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

places = {"plain": lambda f: f, "loop": in_a_loop_and_a_branch}

def gradient(f):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
        y = y[0] if isinstance(y, list) else y
    return y.numpy().tolist(), tape.gradient(y, x, output_gradients=dy).numpy().tolist()
"""

FREEZE = """
import pathlib
found = {}
for name, f in kinds.items():
    every = [{"lower_control_flow": False}, {}, {"aggressive_inlining": True}]
    for options in every[: 3 if sys.argv[1] == "plain" else 2]:
        function = tf.function(places[sys.argv[1]](f))
        expected = gradient(tf.function(places[sys.argv[1]](f)))
        frozen = freeze(function.get_concrete_function(tf.TensorSpec([2])), **options)
        definition = frozen.graph.as_graph_def()
        assert not any(node.op in ("ReadVariableOp", "VarHandleOp") for node in definition.node)
        key = " ".join([name, *options])
        pathlib.Path(sys.argv[2], key).write_bytes(definition.SerializeToString())
        # TensorFlow does not differentiate loops and conditionals that freezing has lowered.
        lowered = "lower_control_flow" not in options and any(node.op == "Merge" for node in definition.node)
        found[key] = expected[: 1 if lowered else 2], [t.name for t in (*frozen.inputs, *frozen.outputs)]
print(json.dumps(found))
"""

# Only the library is left: no functions, no variables.
RUN = """
import json, pathlib, sys
import numpy as np
import tensorflow as tf
import tf_cg_ops
for key, (expected, names) in json.loads(sys.argv[2]).items():
    definition = tf.compat.v1.GraphDef.FromString(pathlib.Path(sys.argv[1], key).read_bytes())
    with tf.Graph().as_default() as graph:
        x, y = tf.graph_util.import_graph_def(definition, name="", return_elements=names)
        fetches = [y] if len(expected) == 1 else [y, tf.gradients(y, x, tf.constant([1.0, 10.0]))[0]]
        with tf.compat.v1.Session() as session:
            got = session.run(fetches, {x: [1.0, -2.0]})
    for one, other in zip(got, expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, err_msg=key)
print("right")
"""


@pytest.mark.parametrize("place", ["plain", "loop"])
def test_a_frozen_graph_has_the_values_and_the_gradients_in_a_fresh_process(place, tmp_path):
    found = run_python(KINDS + FREEZE, place, tmp_path, cwd=tmp_path).stdout.splitlines()[-1]
    assert len(json.loads(found)) == 11 * (3 if place == "plain" else 2)
    assert run_python(RUN, tmp_path, found, cwd=tmp_path).stdout == "right\n"


WRITES = """
import sys
import tensorflow as tf
import tf_cg_ops as cg
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2 as freeze

model, stripped = sys.argv[1:]
module = tf.Module()
module.count = tf.Variable(1.0)
f = cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: dy * module.count.assign_add(1.0)))
module.f = tf.function(lambda x: f(x) * module.count, input_signature=[tf.TensorSpec([])])
tf.saved_model.save(module, model, signatures=module.f)
cg.saved_model.strip(model, stripped)
for folder in stripped, model:
    loaded = tf.saved_model.load(folder)
    frozen = freeze(loaded.signatures["serving_default"])
    print(float(frozen(tf.constant(0.0))[0]))
"""


def test_a_rule_that_writes_a_variable_is_frozen_after_stripping_alone(tmp_path):
    result = run_python(WRITES, tmp_path / "model", tmp_path / "stripped", cwd=tmp_path, check=False)
    assert result.stdout == "0.0\n", result.stderr
    assert "expected resource" in result.stderr


class Reading(tf.Module):
    def __init__(self):
        super().__init__()
        self.v = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([2])])
    def f(self, x):
        return cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: dy * self.v))(x)

    @tf.function(input_signature=[tf.TensorSpec([2])])
    def squared(self, x):
        @cg.custom_gradient
        def f(x):
            return self.v**2 * x, lambda dy, variables=None: (dy * self.v**2, [tf.reduce_sum(2.0 * self.v * dy * x)])

        return f(x)


X, DY = tf.constant([1.0, -2.0]), tf.constant([1.0, 10.0])


@pytest.fixture(params=[False, True], ids=["traced", "loaded"])
def module(request, tmp_path):
    """As it was made, or saved and loaded."""
    if not request.param:
        return Reading()
    tf.saved_model.save(Reading(), tmp_path / "model")
    return tf.saved_model.load(tmp_path / "model")


def test_a_rule_reads_a_variable_when_the_gradient_is_computed(module):
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = module.f(X)
    module.v.assign(3.0)
    np.testing.assert_allclose(tape.gradient(y, X, output_gradients=DY), [3.0, 30.0])


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_a_rule_that_reads_a_variable_has_its_gradient_in_a_graph(jit_compile, module):
    @tf.function(jit_compile=jit_compile)
    def gradient():
        return vjp(lambda: module.f(X), X, DY)[1]

    np.testing.assert_allclose(gradient(), [2.0, 20.0])
    module.v.assign(3.0)
    np.testing.assert_allclose(gradient(), [3.0, 30.0])


def test_second_derivatives_reach_a_variable_that_the_rule_reads(module):
    with tf.GradientTape() as second:
        with tf.GradientTape() as first:
            first.watch(X)
            y = module.squared(X)
        dx = first.gradient(y, X, output_gradients=DY)
    np.testing.assert_allclose(second.gradient(dx, module.v, output_gradients=tf.constant([1.0, 100.0])), 4.0 * 1001.0)


def test_the_op_gets_the_value_of_a_variable_and_no_handle():
    module = Reading()
    definition = module.f.get_concrete_function().graph.as_graph_def()
    reads = [node.name for node in definition.node if node.op == "ReadVariableOp"]
    (rule,) = [node for node in definition.node if node.op == "CustomGradientRule"]
    assert reads == [rule.input[-1]]
    assert [tf.as_dtype(t) for t in rule.attr["Tcaptures"].list.type] == [tf.float32]
