"""Second derivatives of implicit functions whose equations hold conditionals, loops and called functions."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import MODES, assert_orders

X, DY = np.array([[0.4, -1.1], [0.3, 0.8]]), np.array([[1.0, 10.0], [-3.0, 5.0]])
RUN_IN = ("eager", "traced", "jit")


def f(x):
    return tf.math.l2_normalize(tf.tanh(x), 1)


MAPS = {
    "plain ops": f,
    "called function": tf.function(f),
    "cond": lambda x: tf.cond(tf.reduce_sum(x) > -100.0, lambda: f(x), lambda: x),
    "switch_case": lambda x: tf.switch_case(tf.constant(1), [lambda: x, lambda: f(x), lambda: x**3]),
    "while_loop": lambda x: tf.while_loop(
        lambda *_: True, lambda i, y: (i + 1, f(y) * x), (0, x), maximum_iterations=2
    )[1],
}

# Each is `map_`, as the solution of an equation.
SOLVERS = {
    "root": lambda map_, x: cg.implicit_root(lambda y, a: y - map_(a), map_)(x),
    "root, closed over": lambda map_, x: cg.implicit_root(lambda y, _: y - map_(x), map_)(x),
    "fixed point": lambda map_, x: cg.implicit_fixed_point(lambda y, a: 0.5 * y + 0.5 * map_(a), map_)(x),
    "minimum": lambda map_, x: cg.implicit_minimum(lambda y, a: tf.reduce_sum(0.5 * y**2 - y * map_(a)), map_)(x),
    # The solution is exact, so TensorFlow's third derivative of a square by `**` is nan there.
    "minimum of squares": lambda map_, x: cg.implicit_minimum(lambda y, a: tf.reduce_sum((y - map_(a)) ** 2), map_)(x),
    "minimum of other powers": lambda map_, x: cg.implicit_minimum(
        lambda y, a: tf.reduce_sum((y - map_(a)) ** 2 + (y - map_(a)) ** 3 + (y - map_(a)) ** 4.0), map_
    )(x),
}


CASES = [(name, solver, RUN_IN[(i + j) % 3]) for i, name in enumerate(MAPS) for j, solver in enumerate(SOLVERS)]


@pytest.mark.parametrize(("name", "solver", "mode"), CASES)
def test_derivatives_are_those_of_the_solution(name, solver, mode):
    found = MODES[mode](lambda x: SOLVERS[solver](MAPS[name], x), X, DY)
    assert_orders(found, MODES["eager"](MAPS[name], X, DY))
