"""Loops with state: random numbers and variables in the steps of scan and while_loop.

That steps read and write variables as those of a plain loop is in tests/same.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS as MODES
from ..support.modes import assert_all_close, vjp

NUM_STEPS = 10
DY = np.random.default_rng(2).normal(size=[NUM_STEPS, 50]).astype(np.float32)


def python_loop(f, init, xs):
    """The plain loop, step by step."""
    ys, carry = [], init
    for x in tf.unstack(xs):
        carry, y = f(carry, x)
        ys.append(y)
    return carry, tf.stack(ys)


def value_and_gradient(scan, f, x, mode):
    values = lambda x: scan(lambda carry, _: (carry, f(x)), 0.0, tf.zeros([NUM_STEPS]))[1]  # noqa: E731
    return MODES[mode](lambda x: vjp(lambda: values(x), x, tf.constant(DY)))(x)


CHECKPOINTS = {"eager": "log", "traced": "sqrt", "jit": None}


@pytest.mark.parametrize(
    ("source", "mode"),
    [
        (lambda x: tf.nn.dropout(tf.nn.dropout(x, 0.2), 0.5), "traced"),
        (lambda x: x * tf.random.uniform(tf.shape(x)), "jit"),
        (
            lambda x: tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, tf.nn.dropout(y, 0.2)), (0, x))[1],
            "eager",
        ),
    ],
    ids=["dropout", "uniform", "a loop"],
)
def test_the_gradient_has_the_random_numbers_of_the_value(source, mode):
    x = tf.ones([50])
    scan = functools.partial(cg.scan, checkpoint=CHECKPOINTS[mode])
    ys, dx = value_and_gradient(scan, source, x, mode)
    # The values are linear in x, whose elements are 1: they are the derivatives, too.
    np.testing.assert_allclose(dx, np.sum(DY * ys, 0), rtol=1e-4, atol=1e-5)
    assert len({y.tobytes() for y in ys.numpy()}) == NUM_STEPS  # Other numbers in each step.


@pytest.mark.parametrize(
    ("make", "draw", "mode"),
    [
        (lambda: tf.random.Generator.from_seed(3), lambda g: g.normal([50]), "jit"),
        (lambda: keras.random.SeedGenerator(4), lambda g: keras.random.normal([50], seed=g), "traced"),
    ],
    ids=["generator", "keras"],
)
def test_a_generator_gives_the_numbers_of_the_plain_loop(make, draw, mode):
    x, results = tf.constant(np.linspace(1, 2, 50), tf.float32), []
    for scan in (python_loop, functools.partial(cg.scan, checkpoint=CHECKPOINTS[mode])):
        generator = make()
        for _ in range(2):  # The second loop goes on where the first one ended.
            ys, dx = value_and_gradient(scan, lambda x: x * draw(generator), x, mode)  # noqa: B023
            results.append((ys, dx, np.asarray(generator.state)))
    for expected, got in zip(results[:2], results[2:], strict=True):
        np.testing.assert_array_equal(got[0], expected[0])
        np.testing.assert_allclose(got[1], expected[1], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(got[2], expected[2])


def test_a_counter_that_overflows_into_its_upper_half():
    for steps_to_go in (0, 1, 300, 2000):
        states = []
        for scan in (python_loop, cg.scan):
            generator = tf.random.Generator.from_state(np.array([-1 - steps_to_go, 5, 7], np.int64), alg="philox")
            scan(lambda carry, _: (carry, generator.normal([3])), 0.0, tf.zeros([9]))  # noqa: B023
            states.append(generator.state.numpy())
        np.testing.assert_array_equal(*states)


def test_a_keras_cell_is_a_step_as_in_a_plain_loop():
    """It has everything that has state."""
    xs, layers, dtype, results = (
        tf.constant(np.random.default_rng(3).normal(size=[5, 4, 8])),
        keras.layers,
        "float64",
        [],
    )
    for scan in (python_loop, cg.scan):
        keras.utils.set_random_seed(1)
        dense, dropout = layers.Dense(8, "tanh", dtype=dtype), layers.Dropout(0.3, seed=1, dtype=dtype)
        cell = dense, dropout, layers.BatchNormalization(dtype=dtype)
        for layer in cell:
            layer.build([4, 8])

        def f(carry, x, cell=cell):
            dense, dropout, normalization = cell
            carry = normalization(dropout(dense(carry + x), training=True), training=True)
            return carry, carry

        variables = [variable.value for layer in cell for variable in layer.variables]
        weights = [variable for variable in variables if variable.trainable]
        ys, gradients = vjp(lambda: scan(f, tf.zeros_like(xs[0]), xs)[1], weights, tf.cos(xs))  # noqa: B023
        results.append([ys, *gradients, *variables])
    assert_all_close(*results[::-1], rtol=1e-7, atol=1e-9)


def test_a_variable_that_changes_after_the_loop():
    v = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        last, _ = cg.scan(lambda c, _: (c * v, None), 1.0, length=9)
        v.assign(100.0)
    assert tape.gradient(last, v) == 9 * 2.0**8


def test_while_loop_assigns_only_in_the_steps_that_it_makes():
    count = tf.Variable(0)

    def body(x):
        count.assign_add(3)
        count.assign_sub(2)
        return (x * 2.0,)

    run = tf.function(lambda x: cg.while_loop(lambda x: x < 100.0, body, (x,), maximum_iterations=50)[0])
    assert run(tf.constant(1.0)) == 128.0
    assert count == 7


def test_a_session_of_tensorflow_1_writes_the_variables():
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        count = tf.compat.v1.get_variable("count", initializer=0, use_resource=True)

        def f(carry, _):
            with tf.control_dependencies([count.assign_add(2, read_value=False)]):
                return carry + 1.0, None

        last, _ = cg.scan(f, 0.0, length=6)
        session.run(tf.compat.v1.global_variables_initializer())
        assert session.run(last) == 6.0
        assert session.run(count) == 12


TABLE = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [10.0, 20.0]), -1.0)
X, KEYS = tf.constant(3.0), tf.constant([1, 2, 3, 1, 2])


def test_a_lookup_runs_before_the_loop_or_without_checkpoints():
    kept = lambda c, key: (c + X * TABLE.lookup(key), None)  # noqa: E731
    assert vjp(lambda: cg.scan(kept, 0.0, KEYS, checkpoint=None)[0], X) == (3.0 * 59.0, 59.0)
    before = TABLE.lookup(KEYS)
    assert vjp(lambda: cg.scan(lambda c, value: (c + X * value, None), 0.0, before)[0], X) == (3.0 * 59.0, 59.0)


def test_python_code_runs_without_checkpoints():
    step = lambda c, x: (c + tf.py_function(lambda x: 2.0 * x, [x], tf.float32), None)  # noqa: E731
    assert cg.scan(step, tf.zeros([]), tf.ones([5]), checkpoint=None)[0] == 10.0
