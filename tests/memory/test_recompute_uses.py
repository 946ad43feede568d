"""recompute_grad of Tensors and variables that the function reads: slices, constants, loops and oneDNN."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support import processes
from ..support.modes import RUNS as MODES

X, DY = tf.constant([0.3, 0.4]), tf.constant([1.0, 10.0])


def gradients_of(function, mode, sources, *args):
    """The gradients of the function's value, weighted by an upstream that is not uniform."""

    def derive():
        with tf.GradientTape() as tape:
            tape.watch(sources)
            y = function(*args)
        return [tf.convert_to_tensor(g) for g in tape.gradient(y, sources, output_gradients=DY)]

    return [gradient.numpy() for gradient in MODES[mode](derive)()]


VARIABLE = tf.Variable([0.5, -1.0])


def sine(x):
    return tf.sin(x * VARIABLE)


def twice(x, inner=sine):
    return inner(inner(x) + VARIABLE) * x


def in_a_loop(x, inner=sine):
    return tf.while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, inner(x) + x), (0, x), maximum_iterations=3, parallel_iterations=1
    )[1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("outer", [twice, in_a_loop])
def test_a_function_with_variables_in_another_one(outer, mode):
    recomputed = cg.recompute_grad(lambda x: outer(x, cg.recompute_grad(sine)))
    found, expected = (gradients_of(function, mode, [X, VARIABLE], X) for function in (recomputed, outer))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.core
def test_slices_of_a_tensor_that_the_function_reads():
    table = tf.reshape(tf.range(6.0), [3, 2])
    dx, dtable = gradients_of(cg.recompute_grad(lambda x: x * tf.gather(table, [1, 1])[0]), "eager", [X, table], X)
    np.testing.assert_allclose(dx, [2.0, 3.0] * DY)
    np.testing.assert_allclose(dtable, [[0, 0], X * DY, [0, 0]])


@pytest.mark.core
def test_integers_that_the_function_reads_stay_constants():
    """So that shapes made of them are known while tracing."""
    shape, shapes = tf.constant([2, 1]), []

    @cg.recompute_grad
    def function(x):
        x = tf.reshape(x, shape)
        shapes.append(x.shape)
        return (x * x)[:, 0]

    np.testing.assert_allclose(gradients_of(function, "eager", [X], X), [2.0 * X * DY])
    assert shapes == [[2, 1]]


@pytest.mark.parametrize("mode", MODES)
def test_effects_in_a_loop_that_the_value_does_not_depend_on(mode):
    counter = tf.Variable([0.0, 0.0])

    def function(x):
        counter.assign_add([1.0, 1.0])
        return tf.sin(x)

    (dx,) = gradients_of(cg.recompute_grad(lambda x: in_a_loop(x, function)), mode, [X], X)
    np.testing.assert_allclose(dx, gradients_of(lambda x: in_a_loop(x, tf.sin), "eager", [X], X)[0], rtol=1e-5)
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
