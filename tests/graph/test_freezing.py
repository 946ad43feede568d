"""Graphs with gradient rules that read variables can be frozen like other graphs."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import vjp
from ..support.processes import run_python


def test_frozen_graphs_have_the_values_and_the_gradients_in_a_fresh_process(tmp_path):
    """Frozen in a process of its own, too, because freezing removes functions that TensorFlow then misses."""
    program = pathlib.Path(__file__).with_name("freeze.py").read_text()
    assert run_python(program, "freeze", tmp_path, cwd=tmp_path).stdout == "20\n"
    assert run_python(program, "run", tmp_path, cwd=tmp_path).stdout == "right\n"


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


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_rule_reads_a_variable_when_the_gradient_is_computed_and_second_derivatives_reach_it(is_loaded, tmp_path):
    module = Reading()
    if is_loaded:
        tf.saved_model.save(module, tmp_path)
        module = tf.saved_model.load(tmp_path)
    weights = tf.constant([1.0, 100.0])
    _, dv = vjp(lambda: vjp(lambda: module.squared(X), X, DY)[1], module.v, weights)
    np.testing.assert_allclose(dv, 4.0 * 1001.0)
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = module.f(X)
    module.v.assign(3.0)
    np.testing.assert_allclose(tape.gradient(y, X, output_gradients=DY), [3.0, 30.0])


def test_the_op_gets_the_value_of_a_variable_and_no_handle():
    module = Reading()
    definition = module.f.get_concrete_function().graph.as_graph_def()
    reads = [node.name for node in definition.node if node.op == "ReadVariableOp"]
    (rule,) = [node for node in definition.node if node.op == "CustomGradientRule"]
    assert reads == [rule.input[-1]]
    assert [tf.as_dtype(t) for t in rule.attr["Tcaptures"].list.type] == [tf.float32]
