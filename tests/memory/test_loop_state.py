"""Loops with state: random numbers and variables in the steps of scan and while_loop."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS as MODES
from ..support.modes import assert_all_close
from ..support.tensors import pairs

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
    @MODES[mode]
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, ys = scan(lambda carry, _: (carry, f(x)), 0.0, tf.zeros([NUM_STEPS]))
        return ys, tape.gradient(ys, x, output_gradients=tf.constant(DY))

    return run(x)


CHECKPOINTS = {"eager": "log", "traced": "sqrt", "jit": None}
RANDOM = {
    "dropout": lambda x: tf.nn.dropout(x, 0.5),
    "uniform": lambda x: x * tf.random.uniform(tf.shape(x)),
    "a cell of dropout": lambda x: tf.nn.dropout(tf.nn.dropout(x, 0.2), 0.5),
    "a loop": lambda x: tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, tf.nn.dropout(y, 0.2)), (0, x))[1],
}


@pytest.mark.parametrize(("source", "mode"), pairs(RANDOM, MODES))
def test_the_gradient_has_the_random_numbers_of_the_value(source, mode):
    if mode == "jit" and source == "a loop":
        pytest.skip("XLA differentiates no tf.while_loop without maximum_iterations")
    x = tf.ones([50])
    scan = functools.partial(cg.scan, checkpoint=CHECKPOINTS[mode])
    ys, dx = value_and_gradient(scan, RANDOM[source], x, mode)
    # The values are linear in x, whose elements are 1: they are the derivatives, too.
    np.testing.assert_allclose(dx, np.sum(DY * ys, 0), rtol=1e-4, atol=1e-5)
    assert len({y.tobytes() for y in ys.numpy()}) == NUM_STEPS  # Other numbers in each step.


STATEFUL = {
    "generator": lambda: tf.random.Generator.from_seed(3),
    "keras": lambda: keras.random.SeedGenerator(4),
}
DRAW = {
    "generator": lambda g: g.normal([50]),
    "keras": lambda g: keras.random.normal([50], seed=g),
}


def state_of(generator):
    return generator.state.numpy() if isinstance(generator, tf.random.Generator) else np.asarray(generator.state)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", STATEFUL)
def test_a_generator_gives_the_numbers_of_the_plain_loop(mode, source):
    x, results = tf.constant(np.linspace(1, 2, 50), tf.float32), []
    for scan in (python_loop, functools.partial(cg.scan, checkpoint=CHECKPOINTS[mode])):
        generator = STATEFUL[source]()
        for _ in range(2):  # The second loop goes on where the first one ended.
            ys, dx = value_and_gradient(scan, lambda x: x * DRAW[source](generator), x, mode)  # noqa: B023
            results.append((ys, dx, state_of(generator)))
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


class Cell(keras.layers.Layer):
    """A recurrent cell with everything that has state."""

    def __init__(self):
        super().__init__(dtype="float64")
        self.dense = keras.layers.Dense(8, activation="tanh", dtype="float64")
        self.dropout = keras.layers.Dropout(0.3, seed=1, dtype="float64")
        self.normalization = keras.layers.BatchNormalization(momentum=0.9, dtype="float64")

    def call(self, carry, x, training=None):
        carry = self.dropout(self.dense(carry + x), training=training)
        return self.normalization(carry, training=training)


@pytest.mark.parametrize(("mode", "checkpoint"), [("eager", "log"), ("traced", "sqrt"), ("jit", 4)])
def test_a_keras_cell_trains_as_in_a_plain_loop(mode, checkpoint):
    rng = np.random.default_rng(3)
    xs, target = tf.constant(rng.normal(size=[NUM_STEPS, 4, 8])), tf.constant(rng.normal(size=[4, 8]))
    results = []
    for scan in (python_loop, functools.partial(cg.scan, checkpoint=checkpoint)):
        keras.utils.set_random_seed(1)
        cell = Cell()
        cell(tf.zeros_like(target), xs[0])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(cell.trainable_variables)

        def f(carry, x, cell=cell):
            carry = cell(carry, x, training=True)
            return carry, carry

        @MODES[mode]
        def step(cell=cell, optimizer=optimizer, scan=scan, f=f):
            with tf.GradientTape() as tape:
                last, ys = scan(f, tf.zeros_like(target), xs)
                loss = tf.reduce_mean((last - target) ** 2) + tf.reduce_mean(ys * xs)
            gradients = tape.gradient(loss, cell.trainable_variables)
            optimizer.apply_gradients(zip(gradients, cell.trainable_variables, strict=True))
            return loss

        losses = [float(step()) for _ in range(3)]
        results.append((losses, [np.asarray(variable) for variable in cell.variables]))
    (plain_losses, plain), (losses, variables) = results
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-9)
    assert_all_close(variables, plain, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_a_variable_that_is_read_and_assigned(mode):
    """As in a plain loop, each read of the variable has a gradient, and assignments have none."""
    results = []
    for scan in (python_loop, cg.scan):
        v, count = tf.Variable([1.0, 2.0]), tf.Variable(0)

        def f(carry, x, v=v, count=count):
            carry = carry + v * x
            v.assign_add(0.1 * carry)
            v.assign_sub([0.01, 0.02])
            count.assign_add(1)
            return carry * v, carry

        @MODES[mode]
        def run(xs, scan=scan, f=f, v=v):
            with tf.GradientTape() as tape:
                tape.watch(xs)
                last, ys = scan(f, tf.constant([1.0, 1.0]), xs)
                y = last * [1.0, 10.0] + tf.reduce_sum(ys)
            return last, ys, *tape.gradient(y, [xs, v])

        results.append([*run(tf.constant([0.1, 0.2, 0.3, 0.4, 0.5])), v, count])
    for expected, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4)
    assert results[1][-1] == 5


def test_a_variable_that_changes_after_the_loop():
    v = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        last, _ = cg.scan(lambda c, _: (c * v, None), 1.0, length=9)
        v.assign(100.0)
    assert tape.gradient(last, v) == 9 * 2.0**8


@pytest.mark.parametrize("mode", MODES)
def test_while_loop_assigns_only_in_the_steps_that_it_makes(mode):
    count = tf.Variable(0)

    def body(x):
        count.assign_add(1)
        return (x * 2.0,)

    run = MODES[mode](lambda x: cg.while_loop(lambda x: x < 100.0, body, (x,), maximum_iterations=50)[0])
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


def test_a_hash_table():
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [10.0, 20.0]), -1.0)
    x, keys = tf.constant(3.0), tf.constant([1, 2, 3, 1, 2])

    def with_lookup(c, key):
        return c + x * table.lookup(key), None

    with pytest.raises(NotImplementedError, match=r"scan: stateful ops of 'with_lookup' .* LookupTableFind"):
        cg.scan(with_lookup, 0.0, keys)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        kept, _ = cg.scan(with_lookup, 0.0, keys, checkpoint=None)
        before, _ = cg.scan(lambda c, value: (c + x * value, None), 0.0, table.lookup(keys))
    for last in (kept, before):
        assert last == 3.0 * 59.0
        assert tape.gradient(last, x) == 59.0


def in_python(x):
    return tf.py_function(lambda x: 2.0 * x, [x], tf.float32)


def test_an_op_that_cannot_be_computed_again():
    def step(carry, x):
        return carry + in_python(x), None

    with pytest.raises(NotImplementedError, match=r"scan: stateful ops of 'step' in a loop .* EagerPyFunc"):
        cg.scan(step, 0.0, tf.ones([5]))
    assert cg.scan(step, tf.zeros([]), tf.ones([5]), checkpoint=None)[0] == 10.0
