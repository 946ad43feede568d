"""Functions of single numbers with gradients that are wrong on purpose, and the numbers to expect."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from .functions import recomputed, residual, square, with_tangent


@dataclass
class Pointwise:
    """`function` for tensors, and in NumPy the value, the gradient and its gradient that the library promises."""

    function: Any
    value: Any
    slope: Any
    curvature: Any

    def orders(self, x, dy):
        """The results of `modes.Mode.orders`."""
        return self.value(x), dy * self.slope(x), dy**2 * self.curvature(x)


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


X, DY = np.array([0.7, -1.3, 1.1]), np.array([1.0, 10.0, -3.0])
