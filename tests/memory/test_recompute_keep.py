"""recompute_grad with values that are kept instead of computed again."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS as MODES
from ..support.modes import vjp

pytestmark = pytest.mark.core

X, DY = tf.constant([1.0, 2.0]), tf.constant([1.0, 10.0])
KEEP = {
    "names": ["inner"],
    "a_predicate": lambda op: op.type == "PyFuncStateless",
    "nothing": [],
    "everything": lambda op: True,
}


def function_that_counts(counted):
    def count(x):
        counted.append(1)
        return np.exp(x)

    def exponential(x):
        value = tf.ensure_shape(tf.numpy_function(count, [tf.stop_gradient(x)], tf.float32, stateful=False), [2])
        return cg.embed_gradient(value, value, x)

    return lambda x: tf.sin(cg.checkpoint_name(exponential(2.0 * x), "inner")) * x


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("kind", KEEP)
def test_kept_values_are_not_computed_again(kind, mode):
    counted = []
    function = cg.recompute_grad(function_that_counts(counted), keep=KEEP[kind])

    def run(x):
        return vjp(lambda: function(x), x, DY)

    _, dx = MODES[mode](run)(X)
    inner = np.exp(2.0 * X)
    np.testing.assert_allclose(dx, DY * (np.cos(inner) * 2.0 * inner * X + np.sin(inner)), rtol=1e-4)
    # The derivative of the exponential is computed from its value, which a name after the op does not keep.
    assert len(counted) == (2 if kind in ("names", "nothing") else 1)


def products(keep):
    """The number of matrix products in the program that a step runs."""

    def function(x):
        for i in range(3):
            x = tf.sin(cg.checkpoint_name(tf.matmul(x, x), f"product_{i}"))
        return x

    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [2, 2])
        y = cg.recompute_grad(function, keep=keep)(x)
        (dx,) = tf.gradients(y, x)
        with tf.compat.v1.Session(graph=graph) as session:
            metadata = tf.compat.v1.RunMetadata()
            full = tf.compat.v1.RunOptions(output_partition_graphs=True)
            session.run([y, dx], {x: np.eye(2)}, full, metadata)
    # oneDNN has one of its own.
    return sum(
        node.op in ("MatMul", "_MklMatMul") for partition in metadata.partition_graphs for node in partition.node
    )


@pytest.mark.parametrize("mode", MODES)
def test_integers_are_kept_beside_numbers(mode):
    def function(x):
        values, indices = tf.math.top_k(tf.sin(x))
        return values * tf.gather(x, indices)

    def gradient(function):
        return vjp(lambda: function(X), X, DY[1:])[1]

    function = cg.recompute_grad(function, keep=lambda op: op.type == "TopKV2")
    dx = MODES[mode](lambda: gradient(function))()
    np.testing.assert_allclose(dx, [0.0, 10.0 * (np.sin(2.0) + 2.0 * np.cos(2.0))], rtol=1e-5)


def test_a_graph_has_no_ops_for_what_is_kept():
    # Three in the forward pass, two for the gradient of each.
    assert products([]) == 3 + 3 + 6
    assert products(["product_0", "product_1", "product_2"]) == 3 + 6
    assert products(lambda op: op.type == "MatMul") == 3 + 6


def test_a_name_changes_nothing_elsewhere():
    for mode in MODES.values():
        np.testing.assert_array_equal(mode(lambda x: cg.checkpoint_name(x, "name"))(X), X)
    assert cg.checkpoint_name([1, 2], "numbers").dtype == tf.int32
