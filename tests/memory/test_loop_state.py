"""Loops with state: random numbers and variables in the steps of scan and while_loop."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS as MODES
from ..support.modes import vjp
from ..support.tensors import pairs

DY = np.random.default_rng(2).normal(size=[10, 50]).astype(np.float32)


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

    def value(x):
        return cg.scan(lambda carry, _: (carry, RANDOM[source](x)), 0.0, length=10, checkpoint=CHECKPOINTS[mode])[1]

    ys, dx = MODES[mode](lambda x: vjp(lambda: value(x), x, tf.constant(DY)))(tf.ones([50]))
    # The values are linear in x, whose elements are 1: they are the derivatives, too.
    np.testing.assert_allclose(dx, np.sum(DY * ys, 0), rtol=1e-4, atol=1e-5)
    assert len({y.tobytes() for y in ys.numpy()}) == 10  # Other numbers in each step.


def test_a_counter_that_overflows_into_its_upper_half():
    for steps_to_go in (0, 1, 300, 2000):
        state = np.array([-1 - steps_to_go, 5, 7], np.int64)
        ours, plain = (tf.random.Generator.from_state(state, alg="philox") for _ in range(2))
        _, found = cg.scan(lambda carry, _: (carry, ours.normal([3])), 0.0, length=9)  # noqa: B023
        np.testing.assert_array_equal(found, [plain.normal([3]) for _ in range(9)])
        np.testing.assert_array_equal(ours.state, plain.state)


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

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        kept, _ = cg.scan(with_lookup, 0.0, keys, checkpoint=None)
        before, _ = cg.scan(lambda c, value: (c + x * value, None), 0.0, table.lookup(keys))
    for last in (kept, before):
        assert last == 3.0 * 59.0
        assert tape.gradient(last, x) == 59.0
