"""Ways in which a rule reads a variable, with second derivatives."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS

X, DY = tf.constant([1.0, 2.0]), tf.constant([1.0, 10.0])
V = tf.Variable([2.0, 3.0])
COUNT = tf.Variable(0.0, trainable=False)


def by_a_tape(read):
    with tf.GradientTape() as tape:
        half = tf.reduce_sum(read() ** 2) / 2.0
    return tf.convert_to_tensor(tape.gradient(half, V))


def after_a_write():
    COUNT.assign_add(1.0)
    return V * COUNT / COUNT


def between_reads():
    before = COUNT.read_value()
    COUNT.assign_add(2.0)
    return V * (COUNT.read_value() - before) / 2.0


# Ways in which a rule computes the value of V.
READS = {
    "once": lambda: V + 0.0,
    "twice": lambda: V * V / V,
    "slices": lambda: tf.gather(V, [0, 1]),
    "tape": lambda: by_a_tape(lambda: V),
    "tape, slices": lambda: by_a_tape(lambda: tf.gather(V, [0, 1])),
    "branch": lambda: tf.cond(tf.reduce_sum(V) > 0.0, lambda: V + 0.0, lambda: 2.0 * V),
    "loop": lambda: tf.while_loop(
        lambda *_: True, lambda i, sum_: (i + 1, sum_ + V / 2.0), (0, tf.zeros(2)), maximum_iterations=2
    )[1],
    "called function": tf.function(lambda: V + 0.0),
    "after a write": after_a_write,
    "before and after a write": between_reads,
}


def second_order(function, v):
    def run(x):
        with tf.GradientTape(persistent=True) as outer:
            outer.watch([x, v])
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            dx = tape.gradient(y, x, DY)
        return dx, outer.gradient(dx, x, DY), tf.convert_to_tensor(outer.gradient(dx, v, DY))

    return run


@pytest.mark.parametrize("mode", [*RUNS, "reloaded"])
@pytest.mark.parametrize("read", READS)
def test_a_rule_reads_a_variable_in_any_way(read, mode, tmp_path):
    function, v = cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: dy * READS[read]() * x**2)), V
    if mode == "reloaded":
        module = tf.Module()
        module.v, module.count = V, COUNT
        module.f = tf.function(function, input_signature=[tf.TensorSpec([2])])
        tf.saved_model.save(module, tmp_path)
        loaded = tf.saved_model.load(tmp_path)
        function, v = loaded.f, loaded.v
    found = RUNS.get(mode, lambda f: f)(second_order(function, v))(X)
    by_hand = [DY * V * X**2, DY**2 * V * 2.0 * X, DY**2 * X**2]
    for gradient, expected in zip(found, by_hand, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)
