"""recompute_grad: what the function reads, and values that are kept instead of computed again."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support import processes
from ..support.modes import RUNS as MODES
from ..support.modes import assert_all_close, vjp
from ..support.observed import ops_of

X, DY = tf.constant([0.3, 0.4]), tf.constant([1.0, 10.0])


VARIABLE = tf.Variable([0.5, -1.0])


def sine(x):
    return tf.sin(x * VARIABLE)


def in_a_loop(x, inner=sine):
    body = lambda i, x: (i + 1, inner(x) + x)  # noqa: E731
    return tf.while_loop(lambda i, x: i < 3, body, (0, x), maximum_iterations=3, parallel_iterations=1)[1]


def test_a_function_with_variables_in_another_one():
    recomputed = cg.recompute_grad(lambda x: in_a_loop(x, cg.recompute_grad(sine)))
    run = MODES["jit"](lambda function: vjp(lambda: function(X), [X, VARIABLE], DY)[1])
    assert_all_close(run(recomputed), run(in_a_loop), rtol=1e-5, atol=1e-6)


@pytest.mark.core
def test_slices_of_a_tensor_that_the_function_reads():
    table = tf.reshape(tf.range(6.0), [3, 2])
    function = cg.recompute_grad(lambda x: x * tf.gather(table, [1, 1])[0])
    _, (dx, dtable) = vjp(lambda: function(X), [X, table], DY)
    np.testing.assert_allclose(dx, [2.0, 3.0] * DY)
    np.testing.assert_allclose(tf.convert_to_tensor(dtable), [[0, 0], X * DY, [0, 0]])


@pytest.mark.core
def test_integers_that_the_function_reads_stay_constants():
    """So that shapes made of them are known while tracing."""
    shape, shapes = tf.constant([2, 1]), []

    @cg.recompute_grad
    def function(x):
        x = tf.reshape(x, shape)
        shapes.append(x.shape)
        return (x * x)[:, 0]

    np.testing.assert_allclose(vjp(lambda: function(X), X, DY)[1], 2.0 * X * DY)
    assert shapes == [[2, 1]]


def test_effects_in_a_loop_that_the_value_does_not_depend_on():
    counter = tf.Variable([0.0, 0.0])

    def function(x):
        counter.assign_add([1.0, 1.0])
        return tf.sin(x)

    recomputed = cg.recompute_grad(lambda x: in_a_loop(x, function))
    _, dx = tf.function(lambda: vjp(lambda: recomputed(X), X, DY))()
    np.testing.assert_allclose(dx, vjp(lambda: in_a_loop(X, tf.sin), X, DY)[1], rtol=1e-5)
    np.testing.assert_array_equal(counter, [3.0, 3.0])


# oneDNN fuses the gradients of a convolution and of a bias if both read the same op.
_CONVOLUTIONS = """
import numpy as np
import tensorflow as tf
import tf_cg_ops as cg

kernel, bias = tf.ones([3, 3, 4, 4]) / 9, tf.constant([0.1, 0.2, 0.3, 0.4])
x = tf.reshape(tf.sin(tf.range(288.0)), [2, 6, 6, 4])
convolved = lambda x: tf.nn.conv2d(tf.tanh(x), kernel, 1, "SAME")

def waits_for_the_bias(recomputed):
    return tf.tanh(tf.nn.bias_add(*recomputed(lambda x, bias: (convolved(x), tf.identity(bias)))(x, bias)))

def has_two_results(recomputed):
    y, z = recomputed(lambda x, bias: (convolved(x), tf.nn.bias_add(x, bias)))(x, bias)
    return tf.sin(y) * tf.exp(z)

def gradients(function, recomputed):
    with tf.GradientTape() as tape:
        tape.watch([kernel, bias])
        y = function(recomputed)
    return tape.gradient(y, [kernel, bias], output_gradients=tf.cos(x))

for function in (waits_for_the_bias, has_two_results):
    for a, b in zip(*(tf.function(gradients)(function, wrap) for wrap in (cg.recompute_grad, lambda f: f)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=function.__name__)
"""


def test_gradients_of_convolutions_and_biases_with_onednn(tmp_path):
    processes.run_python(_CONVOLUTIONS, cwd=tmp_path, environment={"TF_ENABLE_ONEDNN_OPTS": "1"})


# Values that are kept

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


@pytest.mark.core
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
    ops = ops_of(metadata)
    return ops["MatMul"] + ops["_MklMatMul"]  # oneDNN has one of its own.


@pytest.mark.core
def test_integers_are_kept_beside_numbers():
    @functools.partial(cg.recompute_grad, keep=lambda op: op.type == "TopKV2")
    def function(x):
        values, indices = tf.math.top_k(tf.sin(x))
        return values * tf.gather(x, indices)

    _, dx = tf.function(lambda: vjp(lambda: function(X), X, DY[1:]))()
    np.testing.assert_allclose(dx, [0.0, 10.0 * (np.sin(X[1]) + X[1] * np.cos(X[1]))], rtol=1e-5)


@pytest.mark.core
def test_a_graph_has_no_ops_for_what_is_kept():
    # Three in the forward pass, two for the gradient of each.
    assert products([]) == 3 + 3 + 6
    assert products(["product_0", "product_1", "product_2"]) == 3 + 6
    assert products(lambda op: op.type == "MatMul") == 3 + 6


@pytest.mark.core
def test_a_name_changes_nothing_elsewhere():
    np.testing.assert_array_equal(MODES["jit"](lambda x: cg.checkpoint_name(x, "name"))(X), X)
    assert cg.checkpoint_name([1, 2], "numbers").dtype == tf.int32
