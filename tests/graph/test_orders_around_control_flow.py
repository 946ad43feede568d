"""Three orders of derivatives of each function around conditionals and loops, also of a loaded model."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import assert_all_close

X, DY = np.array([[0.4, -1.1], [0.3, 0.8]]), np.array([[1.0, 10.0], [-3.0, 5.0]])


def f(x):
    return tf.math.l2_normalize(tf.tanh(x), 1)


MAPS = {
    "cond": lambda x: tf.cond(tf.reduce_sum(x) > -100.0, lambda: f(x), lambda: x),
    "switch_case": lambda x: tf.switch_case(tf.constant(1), [lambda: x, lambda: f(x), lambda: tf.sin(x)]),
    "while_loop": lambda x: tf.while_loop(
        lambda *_: True, lambda i, y: (i + 1, f(y) * x), (0, x), maximum_iterations=2
    )[1],
}


def by_tape(map_, x, dy):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = map_(x)
    return tape.gradient(y, x, output_gradients=dy)


def with_tangents(map_):
    """A custom_jvp whose rule uses tapes: TensorFlow has no derivatives of tangents of conditionals and loops."""
    function = cg.custom_jvp(map_)

    @function.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        with tf.GradientTape() as tape:
            dy = tf.zeros_like(x)
            tape.watch(dy)
            dx = by_tape(map_, x, dy)
        return map_(x), tape.gradient(dx, dy, output_gradients=t)

    return function


# Each makes a function with the value of the map.
WRAPPERS = {
    "custom_gradient": lambda map_: cg.custom_gradient(lambda x: (map_(x), lambda dy: by_tape(map_, x, dy))),
    "custom_vjp": lambda map_: cg.custom_vjp(lambda x: (map_(x), x), lambda x, dy: by_tape(map_, x, dy)),
    "custom_jvp": with_tangents,
    "recompute_grad": cg.recompute_grad,
    "scan": lambda map_: lambda x: cg.scan(lambda carry, _: (map_(carry) + 0.0 * carry, None), x, tf.zeros([1]))[0],
    "while_loop": lambda map_: (
        lambda x: cg.while_loop(lambda i, y: i < 1, lambda i, y: (i + 1, map_(y)), (0, x), maximum_iterations=2)[1]
    ),
    "override_gradients": lambda map_: cg.override_gradients(
        map_, {"Tanh": lambda op, dy: dy * (1.0 - op.outputs[0] * op.outputs[0])}
    ),
    "root": lambda map_: cg.implicit_root(lambda y, a: y - map_(a), map_),
    "fixed point": lambda map_: cg.implicit_fixed_point(lambda y, a: 0.5 * y + 0.5 * map_(a), map_),
    "minimum": lambda map_: cg.implicit_minimum(lambda y, a: tf.reduce_sum((y - map_(a)) ** 2), map_),
    "watch_gradient": lambda map_: lambda x: cg.watch_gradient(map_(x), "y", check_numerics=True),
    "embed_gradient": lambda map_: lambda x: (lambda y: cg.embed_gradient(y, tf.ones_like(y), y))(map_(x)),
}


def orders(function, x, dy, number=3):
    """The value and so many derivatives, each with the upstream gradient `dy`."""
    if number == 0:
        return [function(x)]
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = orders(function, x, dy, number - 1)
    return [*found, tape.gradient(found[-1], x, output_gradients=dy)]


def eager(function, _):
    return orders(function, tf.constant(X), tf.constant(DY))


def traced(function, _):
    return tf.function(lambda x, dy: orders(function, x, dy), autograph=False)(X, DY)


def reloaded(function, folder):
    module = tf.Module()
    module.call = tf.function(function, [tf.TensorSpec([2, 2], tf.float64)], autograph=False)
    tf.saved_model.save(module, str(folder))
    return eager(tf.saved_model.load(str(folder)).call, folder)


def cases():
    """Each function around each map in one mode in turn; the other modes are slow tests."""
    for i, name in enumerate(WRAPPERS):
        for j, map_ in enumerate(MAPS):
            for k, mode in enumerate([eager, traced, reloaded]):
                yield pytest.param(name, map_, mode, marks=[pytest.mark.slow] if (i + j) % 3 != k else [])


@pytest.mark.parametrize(("wrapper", "map_", "mode"), list(cases()))
def test_derivatives_are_those_of_the_map(wrapper, map_, mode, tmp_path):
    expected = orders(MAPS[map_], tf.constant(X), tf.constant(DY))
    assert_all_close(mode(WRAPPERS[wrapper](MAPS[map_]), tmp_path), expected, rtol=1e-10, atol=1e-10)
