"""recompute_grad of functions with state: its gradient is that of the computation that ran."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from ..support.processes import run_python

pytestmark = pytest.mark.core

DY = tf.constant(np.random.default_rng(0).normal(size=[4, 64]), tf.float32)
ONES = tf.ones([4, 64])


def in_a_loop(function):
    return lambda x: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, function(y)), (0, x), maximum_iterations=3)[1]


def in_a_conditional(function):
    return lambda x: tf.cond(x[0, 0] > 0.0, lambda: function(x), lambda: x)


def vectorized(function):
    return lambda x: tf.vectorized_map(function, x, fallback_to_while_loop=False)


MODES = {
    "eager": lambda run: run,
    "traced": functools.partial(tf.function, autograph=False),
    "jit": functools.partial(tf.function, autograph=False, jit_compile=True),
}
PLACES = {
    "alone": lambda function: function,
    "loop": in_a_loop,
    "conditional": in_a_conditional,
    "tf_function": lambda function: tf.function(function),
    "vectorized": vectorized,
}

GENERATOR = tf.random.Generator.from_seed(3)
SEEDS = keras.random.SeedGenerator(4)

# For each source of random numbers, a function whose value is x times random numbers.
RANDOM = {
    "dropout": lambda x: tf.nn.dropout(x, 0.5),
    "uniform": lambda x: x * tf.random.uniform(tf.shape(x), 0.5, 2.0),
    "uniform_with_a_seed": lambda x: x * tf.random.uniform(tf.shape(x), seed=5),
    "normal": lambda x: x * tf.random.normal(tf.shape(x)),
    "truncated_normal": lambda x: x * tf.random.truncated_normal(tf.shape(x)),
    "integers": lambda x: x * tf.cast(tf.random.uniform(tf.shape(x), 0, 100, tf.int32), x.dtype),
    "gamma": lambda x: x * tf.random.gamma(tf.shape(x), 2.0),
    "poisson": lambda x: x * tf.random.poisson(tf.shape(x), 20.0),
    "categorical": lambda x: x * tf.cast(tf.random.categorical(tf.zeros([tf.size(x), 50]), 1), x.dtype)[0],
    "shuffle": lambda x: x * tf.random.shuffle(tf.range(64.0)),
    "generator": lambda x: x * GENERATOR.normal(tf.shape(x)),
    "keras": lambda x: x * keras.random.normal([64], seed=SEEDS),
    "inside_a_loop": in_a_loop(lambda x: tf.nn.dropout(x, 0.5)),
    "inside_a_loop_in_a_loop": in_a_loop(in_a_loop(lambda x: x * tf.random.uniform(tf.shape(x)))),
    "inside_a_conditional": in_a_conditional(lambda x: tf.nn.dropout(x, 0.5)),
    "inside_a_tf_function": tf.function(lambda x: tf.nn.dropout(x, 0.5)),
    "twice": lambda x: tf.nn.dropout(tf.nn.dropout(x, 0.5), 0.5),
}
NOT_IN_XLA = {"gamma", "poisson", "shuffle"}


def value_and_gradient(function, x, dy):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return y, tape.gradient(y, x, output_gradients=dy)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", RANDOM)
def test_the_gradient_has_the_random_numbers_of_the_value(name, mode):
    if mode == "jit" and name in NOT_IN_XLA:
        pytest.skip("XLA does not compile this op")
    function = cg.recompute_grad(RANDOM[name])
    run = MODES[mode](lambda x: value_and_gradient(function, x, DY))
    first, dx = run(ONES)
    np.testing.assert_allclose(dx, DY * first, rtol=1e-5, atol=1e-6)
    assert np.unique(first).size > 1
    second, dx = run(ONES)
    np.testing.assert_allclose(dx, DY * second, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", [place for place in PLACES if place != "alone"])
@pytest.mark.parametrize("name", ["dropout", "inside_a_loop"])
def test_random_numbers_wherever_the_function_is_called(name, place, mode):
    function = PLACES[place](cg.recompute_grad(RANDOM[name]))
    y, dx = MODES[mode](lambda x: value_and_gradient(function, x, DY))(ONES)
    np.testing.assert_allclose(dx, DY * y, rtol=1e-5, atol=1e-6)
    assert np.unique(y).size > 1
    if place == "vectorized":
        assert not np.array_equal(y[0], y[1])
