"""recompute_grad of functions with state: the backward pass uses the state of the forward pass."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS as MODES
from ..support.modes import vjp
from ..support.observed import new_objects_alone, num_eager_tensors

DY = tf.constant(np.random.default_rng(0).normal(size=[4, 64]), tf.float32)
ONES = tf.ones([4, 64])


def in_a_loop(function):
    return lambda x: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, function(y)), (0, x), maximum_iterations=3)[
        1
    ]


def in_a_conditional(function):
    return lambda x: tf.cond(x[0, 0] > 0.0, lambda: function(x), lambda: x)


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
    "categorical": lambda x: x * tf.cast(tf.random.categorical(tf.zeros([64, 50]), 1)[:, 0], x.dtype),
    "shuffle": lambda x: x * tf.random.shuffle(tf.range(64.0)),
    "generator": lambda x: x * GENERATOR.normal(tf.shape(x)),
    "keras": lambda x: x * keras.random.normal([64], seed=SEEDS),
    "inside_a_loop": in_a_loop(lambda x: tf.nn.dropout(x, 0.2)),
    "inside_a_loop_in_a_loop": in_a_loop(in_a_loop(lambda x: x * tf.random.uniform(tf.shape(x)))),
    "inside_a_conditional": in_a_conditional(lambda x: tf.nn.dropout(x, 0.5)),
    "inside_a_tf_function": tf.function(lambda x: tf.nn.dropout(x, 0.5)),
    "twice": lambda x: tf.nn.dropout(tf.nn.dropout(x, 0.5), 0.5),
}


def value_and_gradient(function, x, dy):
    return vjp(lambda: function(x), x, dy)


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_has_the_random_numbers_of_the_value(mode):
    names = list(RANDOM)[list(MODES).index(mode) :: 3]  # XLA does not compile gamma, poisson and shuffle.
    run = MODES[mode](lambda x: [value_and_gradient(cg.recompute_grad(RANDOM[name]), x, DY) for name in names])
    for name, *calls in zip(names, run(ONES), run(ONES), strict=True):
        for y, dx in calls:
            np.testing.assert_allclose(dx, DY * y, rtol=1e-5, atol=1e-6, err_msg=name)
            assert np.unique(y).size > 1, name
        assert not np.array_equal(calls[0][0], calls[1][0]), name


def test_random_numbers_of_a_function_in_a_vectorized_map():
    function = cg.recompute_grad(RANDOM["inside_a_loop"])
    vectorized = lambda x: tf.vectorized_map(function, x, fallback_to_while_loop=False)  # noqa: E731
    y, dx = tf.function(lambda x: value_and_gradient(vectorized, x, DY))(ONES)
    np.testing.assert_allclose(dx, DY * y, rtol=1e-5, atol=1e-6)
    assert np.unique(y).size > 1
    assert not np.array_equal(y[0], y[1])


def test_random_numbers_of_a_function_in_a_loop():
    function = in_a_loop(cg.recompute_grad(RANDOM["dropout"]))
    y, dx = MODES["jit"](lambda x: value_and_gradient(function, x, DY))(ONES)
    np.testing.assert_allclose(dx, DY * y, rtol=1e-5, atol=1e-6)
    assert np.unique(y).size > 1


def test_forward_mode_has_the_random_numbers_of_the_value():
    with tf.autodiff.ForwardAccumulator(ONES, DY) as accumulator:
        y = cg.recompute_grad(RANDOM["dropout"])(ONES)
    np.testing.assert_allclose(accumulator.jvp(y), DY * y, rtol=1e-6)


def test_the_random_numbers_are_not_kept():
    """Beside the input and the value, the forward pass keeps seeds."""

    @cg.recompute_grad
    def function(x):
        for _ in range(8):
            x = tf.nn.dropout(tf.sin(x), 0.1)
        return x

    x = tf.ones([1237])
    with new_objects_alone(), tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
        assert num_eager_tensors([1237]) <= 2
    assert tape.gradient(y, x) is not None


def test_second_derivatives_have_the_random_numbers_of_the_value():
    x, function, values = 3.0 * ONES, cg.recompute_grad(lambda x: tf.nn.dropout(x, 0.5) * x), []

    def gradient():
        y, dx = value_and_gradient(function, x, DY)
        values.append(y)
        return dx

    (dx, ddx), [y] = vjp(gradient, x, DY), values
    np.testing.assert_allclose(dx, DY * 6.0 * y / 9.0, rtol=1e-6)
    np.testing.assert_allclose(ddx, DY * DY * 2.0 * y / 9.0, rtol=1e-6)


def test_a_graph_and_session_of_tensorflow_1():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [4, 64])
        y = cg.recompute_grad(RANDOM["dropout"])(x)
        (dx,) = tf.gradients(y, x, grad_ys=DY.numpy())
        with tf.compat.v1.Session(graph=graph) as session:
            y, dx = session.run([y, dx], {x: ONES.numpy()})
    np.testing.assert_allclose(dx, DY * y, rtol=1e-6)
    assert np.unique(y).size > 1


def test_the_random_numbers_follow_the_global_seed():
    def numbers(seed):
        tf.random.set_seed(seed)
        function = cg.recompute_grad(lambda x: x * tf.random.uniform([4], seed=3))
        x = tf.ones([4])
        with tf.GradientTape() as tape:
            tape.watch(x)
            return function(x).numpy().tolist()

    assert numbers(1) == numbers(1) != numbers(2)


def test_a_variable_is_read_as_it_was_and_written_once():
    w = np.array([2.0, 3.0])
    v, total, x, dy = tf.Variable(w), tf.Variable(0.0), tf.constant([1.0, 2.0], tf.float64), [1.0, 10.0]

    @cg.recompute_grad
    def function(x):
        total.assign_add(1.0)
        y = tf.sin(x * v)
        v.assign(2.0 * v)
        return y * v

    @tf.function
    def run():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        v.assign([100.0, 100.0])
        return y, *tape.gradient(y, [x, v], output_gradients=tf.constant(dy, tf.float64))

    y, dx, dv = run()
    np.testing.assert_allclose(y, np.sin(x * w) * 2 * w, rtol=1e-12)
    np.testing.assert_allclose(dx, dy * np.cos(x * w) * w * 2 * w, rtol=1e-12)
    np.testing.assert_allclose(dv, dy * (np.cos(x * w) * x * 2 * w + np.sin(x * w)), rtol=1e-12)
    assert total == 1.0


def test_an_embedding_keeps_sliced_gradients():
    table = tf.Variable(tf.reshape(tf.range(6.0), [3, 2]))
    function = cg.recompute_grad(lambda i: tf.sin(tf.nn.embedding_lookup(table, i)))
    _, dtable = vjp(lambda: function(tf.constant([2, 0, 2])), table, tf.constant([[1.0, 10.0]] * 3))
    assert isinstance(dtable, tf.IndexedSlices)
    expected = np.cos(table.numpy()) * [1.0, 10.0] * np.array([[1.0], [0.0], [2.0]])
    np.testing.assert_allclose(tf.convert_to_tensor(dtable), expected, rtol=1e-5)
