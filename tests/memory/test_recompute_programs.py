"""recompute_grad of random programs of stateless and stateful ops: the results are the same as without it.

`TF_CG_OPS_PROGRAMS=10000` tries more of them.
"""

import os

import hypothesis
import tensorflow as tf
from hypothesis import strategies

import tf_cg_ops as cg

from ..support.modes import assert_all_close

W, TOTAL = tf.Variable(tf.zeros([3], tf.float64)), tf.Variable(tf.zeros([3], tf.float64))
VARIABLES = [W, TOTAL]
GENERATOR = tf.random.Generator.from_seed(0, alg="philox")
X, DY = tf.constant([0.5, -1.0, 2.0], tf.float64), tf.constant([1.0, 10.0, -3.0], tf.float64)
CLOSED_OVER = tf.constant([0.7, 1.1, -0.4], tf.float64)


@cg.custom_gradient
def with_rule(x):
    return tf.cos(x), lambda dy: 3.0 * dy * x


@tf.custom_gradient
def with_rule_of_tensorflow(x):
    return tf.cos(x), lambda dy: 5.0 * tf.convert_to_tensor(dy) * x


def assign(x):
    TOTAL.assign(0.5 * TOTAL + tf.stop_gradient(x))
    return x


def loop(body):
    return lambda x: tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, body(y)), (0, x), maximum_iterations=2)[1]


def branch(then):
    return lambda x: tf.cond(x[0] > 0.0, lambda: then(x), lambda: 2.0 * x)


STATELESS = [
    tf.sin,
    lambda x: x * CLOSED_OVER,
    lambda x: tf.nn.silu(x),
    lambda x: tf.cumsum(x) / 3.0,
    lambda x: tf.gather(x, [2, 0, 0]),
    with_rule,
    with_rule_of_tensorflow,
    tf.function(lambda x: tf.tanh(x) + x),
]
READS = [lambda x: x * W, lambda x: x + tf.gather(W, [1, 1, 0])]
EFFECTS = [
    assign,
    lambda x: x * TOTAL + 1.0,
    lambda x: x * GENERATOR.normal([3], dtype=tf.float64),
    lambda x: x + W.assign_add(0.1 * tf.ones([3], tf.float64)),
    tf.function(lambda x: x * GENERATOR.uniform([3], dtype=tf.float64)),
]
# Without the steps with effects: a loop or branch must not use their results.
INNER = strategies.lists(strategies.sampled_from(STATELESS + READS), min_size=1, max_size=2)


def compose(steps):
    def program(x):
        for step in steps:
            x = step(x)
        return x

    return program


STEPS = strategies.one_of(
    strategies.sampled_from(STATELESS + READS + EFFECTS),
    INNER.map(lambda steps: loop(compose(steps))),
    INNER.map(lambda steps: branch(compose(steps))),
)


def run(function, traced):
    """The value, the gradients, and the state afterwards."""
    for variable in VARIABLES:
        variable.assign([0.3, -0.8, 1.2])
    GENERATOR.reset_from_seed(7)

    def step():
        with tf.GradientTape() as tape:
            tape.watch([X, CLOSED_OVER])
            y = function(X)
        gradients = tape.gradient(y, [X, CLOSED_OVER, *VARIABLES], DY, unconnected_gradients="zero")
        return y, *map(tf.convert_to_tensor, gradients)

    # A concrete function: TensorFlow warns of a tf.function that is made again and again.
    results = (tf.function(step, autograph=False).get_concrete_function() if traced else step)()
    return [*results, *map(tf.identity, VARIABLES), GENERATOR.state.read_value()]


@hypothesis.settings(
    max_examples=int(os.environ.get("TF_CG_OPS_PROGRAMS", "40")),
    deadline=None,
    database=None,
    derandomize="TF_CG_OPS_PROGRAMS" not in os.environ,
)
@hypothesis.given(strategies.lists(STEPS, min_size=1, max_size=3), strategies.booleans())
def test_programs_have_the_values_gradients_and_state_of_the_plain_ones(steps, traced):
    program = compose(steps)
    assert_all_close(run(cg.recompute_grad(program), traced), run(program, traced), rtol=1e-9, atol=1e-12)
