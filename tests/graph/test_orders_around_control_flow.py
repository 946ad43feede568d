"""Three orders of derivatives of each function around conditionals and loops, also of a loaded model."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import assert_all_close, vjp

X, DY = np.array([[0.4, -1.1], [0.3, 0.8]]), np.array([[1.0, 10.0], [-3.0, 5.0]])


def f(x):
    return tf.tanh(x) * x


def cond(x):
    return tf.cond(tf.reduce_sum(x) > -100.0, lambda: f(x), lambda: x)


def switch_case(x):
    return tf.switch_case(tf.constant(1), [lambda: x, lambda: f(x), lambda: tf.sin(x)])


def loop(x):
    return tf.while_loop(lambda *_: True, lambda i, y: (i + 1, f(y) * x), (0, x), maximum_iterations=2)[1]


def map_(x):
    return cond(x) + 2.0 * switch_case(x) + 3.0 * loop(x)


def by_tape(x, dy):
    return vjp(lambda: map_(x), x, dy)[1]


with_tangents = cg.custom_jvp(map_)


@with_tangents.defjvp
def rule(primals, tangents):
    """It uses tapes, because TensorFlow has no derivatives of tangents of conditionals and loops."""
    (x,), (t,) = primals, tangents
    dy = tf.zeros_like(x)
    return map_(x), vjp(lambda: by_tape(x, dy), dy, t)[1]


# Each has the value of a map: of all control flow, unless they cost many seconds.
FUNCTIONS = {
    "custom_gradient": cg.custom_gradient(lambda x: (map_(x), lambda dy: by_tape(x, dy))),
    "custom_vjp": cg.custom_vjp(lambda x: (map_(x), x), by_tape),
    "custom_jvp": with_tangents,
    "recompute_grad": cg.recompute_grad(map_),
    "scan": lambda x: cg.scan(lambda carry, _: (loop(carry) + 0.0 * carry, None), x, tf.zeros([1]))[0],
    "while_loop": lambda x: cg.while_loop(
        lambda i, y: i < 1, lambda i, y: (i + 1, switch_case(y)), (0, x), maximum_iterations=2
    )[1],
    "override_gradients": cg.override_gradients(map_, {"Tanh": lambda op, dy: dy * (1.0 - op.outputs[0] ** 2)}),
    "root": cg.implicit_root(lambda y, a: y - cond(a), cond),
}
MAPS = {"scan": loop, "while_loop": switch_case, "root": cond}


def orders(function, x, dy, number=3):
    """The value and so many derivatives, each with the upstream gradient `dy`."""
    if number == 0:
        return [function(x)]
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = orders(function, x, dy, number - 1)
    return [*found, tape.gradient(found[-1], x, output_gradients=dy)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_those_of_the_map(name, tmp_path):
    """The functions take turns between eager mode, a tf.function and a loaded model."""
    function, place = FUNCTIONS[name], list(FUNCTIONS).index(name) % 3
    if place == 0:
        module = tf.Module()
        module.call = tf.function(function, [tf.TensorSpec([2, 2], tf.float64)], autograph=False)
        tf.saved_model.save(module, tmp_path)
        function = tf.saved_model.load(tmp_path).call
    expected = orders(MAPS.get(name, map_), tf.constant(X), tf.constant(DY))
    compute = tf.function(orders, autograph=False) if place == 1 else orders
    assert_all_close(compute(function, tf.constant(X), tf.constant(DY)), expected, rtol=1e-10, atol=1e-10)
