"""Functions of single numbers with gradients that are wrong on purpose, control flow, and the numbers to expect.

In NumPy, a `Jet` carries a value and two derivatives through a computation.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from .functions import recomputed, residual, square, with_tangent


@dataclass
class Jet:
    """A value with its first two derivatives with respect to x, element by element."""

    value: Any
    first: Any = 1.0
    second: Any = 0.0

    def __mul__(self, factor):
        return Jet(self.value * factor, self.first * factor, self.second * factor)

    def __add__(self, other):
        return Jet(self.value + other.value, self.first + other.first, self.second + other.second)

    def orders(self, dy):
        """The results of `modes.Mode.orders`."""
        return self.value, dy * self.first, dy**2 * self.second


@dataclass
class Pointwise:
    """`function` for tensors, and in NumPy the value, the gradient and its gradient that the library promises."""

    function: Any
    value: Any
    slope: Any
    curvature: Any

    def __call__(self, jet):
        slope, curvature = self.slope(jet.value), self.curvature(jet.value)
        return Jet(self.value(jet.value), slope * jet.first, curvature * jet.first**2 + slope * jet.second)


def stopped(x):
    return cg.embed_gradient(x**2, 20.0 * x, x)


def given(x):
    """Has a second derivative too: half of gx carries it, because gx of an unstopped x counts twice."""
    gx = 20.0 * x
    return cg.embed_gradient(tf.stop_gradient(x**2), (gx + tf.stop_gradient(gx)) / 2, x, fx_gx_manually_stopped=True)


def run_time_axis(x):
    """Events of two numbers, along an axis that is known only at run time: dx = (7 x + 3 * 11 x) dy."""
    axis = tf.cast(tf.reduce_any(tf.math.is_nan(x)), tf.int32)
    return cg.embed_gradient(x**2, tf.stack([7.0 * x, 11.0 * x]), tf.stack([x, 3.0 * x]), axis=axis)


def zero(x):
    return 0.0 * x


def times(factor):
    return lambda x: factor * x


EMBEDS = {
    "stopped": Pointwise(stopped, np.square, times(20.0), zero),
    "given": Pointwise(given, np.square, times(20.0), lambda x: 20.0 + zero(x)),
    "run_time_axis": Pointwise(run_time_axis, np.square, times(40.0), zero),
}
DECORATED = {
    "custom_gradient": Pointwise(square, np.square, times(20.0), lambda x: 20.0 + zero(x)),
    "custom_vjp": Pointwise(
        lambda x: residual(x, scale=3.0),
        lambda x: 3 * x**2,
        lambda x: 3 * x * np.cos(x),
        lambda x: 3 * (np.cos(x) - x * np.sin(x)),
    ),
    "custom_jvp": Pointwise(with_tangent, lambda x: x**3, times(10.0), lambda x: 10.0 + zero(x)),
    "recompute_grad": Pointwise(
        recomputed,
        lambda x: x * np.sin(x),
        lambda x: x * np.cos(x) + np.sin(x),
        lambda x: 2 * np.cos(x) - x * np.sin(x),
    ),
}
POINTWISE = EMBEDS | DECORATED


@dataclass
class Control:
    """`around(function)` for tensors; `by_hand(pointwise, jet)` is the same in NumPy."""

    around: Any
    by_hand: Any


def while_loop(f):
    return lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, f(x)), (0, x))[1]


def cond(f):
    """One conditional for each outcome; x must have a positive number before a negative one."""
    return lambda x: tf.cond(x[0] > 0, lambda: f(x), lambda: -x) + tf.cond(x[1] > 0, lambda: f(x), lambda: 1000.0 * x)


def switch_case(f):
    """The last number of x must be between 1 and 2."""
    return lambda x: tf.switch_case(tf.cast(x[-1], tf.int32), [lambda: -x, lambda: f(x), lambda: 1000.0 * x])


def scan(f):
    factors = np.array([2.0, 0.5])
    return lambda x: tf.scan(lambda a, factor: f(a) * factor, tf.constant(factors), initializer=x)[-1]


def map_fn(f):
    return lambda x: tf.map_fn(f, x)


def nested_functions(f):
    return tf.function(lambda x: 3.0 * tf.function(tf.function(f))(x))


def cond_in_a_loop(f):
    def body(i, x):
        return i + 1, tf.cond(tf.equal(i, 1), lambda: f(x), lambda: 2.0 * x)

    return lambda x: tf.while_loop(lambda i, _: i < 3, body, (0, x))[1]


def loop_in_a_cond(f):
    return lambda x: tf.cond(x[0] > 0, lambda: while_loop(f)(x), lambda: -x)


def autograph_for(f):
    @tf.function
    def run(x):
        for factor in tf.constant([2.0, 0.5], tf.float64):
            x = f(x) * factor
        return x

    return run


def autograph_if(f):
    @tf.function
    def run(x):
        if x[1] > 0:  # noqa: SIM108
            y = -x
        else:
            y = f(x)
        return y + x

    return run


CONTROLS = {
    "while_loop": Control(while_loop, lambda f, x: f(f(x))),
    "cond": Control(cond, lambda f, x: f(x) + x * 1000.0),
    "switch_case": Control(switch_case, lambda f, x: f(x)),
    "scan": Control(scan, lambda f, x: f(f(x) * 2.0) * 0.5),
    "map_fn": Control(map_fn, lambda f, x: f(x)),
    "nested_functions": Control(nested_functions, lambda f, x: f(x) * 3.0),
    "cond_in_a_loop": Control(cond_in_a_loop, lambda f, x: f(x * 2.0) * 2.0),
    "loop_in_a_cond": Control(loop_in_a_cond, lambda f, x: f(f(x))),
    "autograph_for": Control(autograph_for, lambda f, x: f(f(x) * 2.0) * 0.5),
    "autograph_if": Control(autograph_if, lambda f, x: f(x) + x),
}
# With these numbers, cond and switch_case take the branches described above.
X, DY = np.array([0.7, -1.3, 1.1]), np.array([1.0, 10.0, -3.0])
