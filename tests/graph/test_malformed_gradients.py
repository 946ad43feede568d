"""Gradients without Python in malformed files are right or raise an error, and never end the process.

Each case changes a function and lets TensorFlow compute its gradient, with the SymbolicGradient node that tf.gradients
would make. Numbers of inputs and outputs that do not fit into memory are left out, and so are functions that call
themselves, because TensorFlow would differentiate them without end.
"""

import json
import pathlib

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python

X, DY = np.array([0.5, -1.0, 2.0]), np.array([1.0, 10.0, 100.0])


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
    program = pathlib.Path(__file__).with_name("malformed_gradients.py").read_text()
    arguments = tmp_path / "graph.pb", cg.sysconfig.get_library(), X.tolist(), DY.tolist()
    found = json.loads(run_python(program, *arguments, cwd=tmp_path).stdout.splitlines()[-1])
    assert len(found) > 300
    errors = [name for name, answer in found.items() if isinstance(answer, str)]
    for name in found.keys() - set(errors):
        np.testing.assert_allclose(found[name], by_hand(), err_msg=name)
    assert not [name for name in errors if name.startswith(("unchanged", "_output_shapes"))]
    # In all functions that are differentiated, including the rule.
    assert any(name.startswith("device: ") and "custom_gradient_rule_of_spike" in name for name in errors)
