"""Decorated functions with gradients that are wrong on purpose, and the numbers to expect.

Every one maps [n] to [n]. `by_hand` gives the value, dx, and the gradient of sum(dx * dy) by x, each as NumPy.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg


@dataclass
class Case:
    function: Any
    by_hand: Any


@cg.custom_gradient
def square(x):
    """Ten times the gradient of the square."""
    return x**2, lambda dy: 20.0 * dy * x


@cg.custom_gradient
def scaled(x, *, factor=1.0, power):
    def grad_fn(dy):
        return 3.0 * dy * factor * x**power, None if isinstance(factor, float) else tf.zeros_like(factor), None

    return factor * x**power, grad_fn


def with_keywords(x):
    return scaled(power=2, x=x, factor=tf.constant(5.0, tf.float64))


@cg.custom_gradient(saved_orders=2)  # The rule calls a decorated function.
def outer(x):
    """Its gradient function calls a decorated function, which gives the second order."""

    @cg.custom_gradient
    def inner(z):
        return tf.sin(z), lambda dz: 7.0 * dz * z

    return tf.exp(x), lambda dy: dy * inner(x)


@tf.function
def product(a, b):
    return a * b


@cg.custom_gradient
def calling_function(x):
    """Its gradient function calls a tf.function."""
    return tf.cos(x), lambda dy: 2.0 * product(dy, product(x, x))


WEIGHT = tf.Variable(tf.constant([2.0, -3.0, 0.5], tf.float64))


@cg.custom_gradient
def with_variable(x):
    """Reads a variable; dx = 10 w x dy, dw = 100 x dy."""

    def grad_fn(dy, variables):
        (w,) = variables
        return 10.0 * w * x * dy, [100.0 * x * dy]

    return WEIGHT * x, grad_fn


def while_loop(x):
    return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, square(x)), (0, x), maximum_iterations=2)[1]


def cond(x):
    return tf.cond(x[0] > 0, lambda: square(x), lambda: 1000.0 * x)


def scan(x):
    """a[i] = square(a[i - 1]) * x[i], element by element; returns the last one for all elements."""
    last = tf.scan(lambda a, b: square(a) * b, x, initializer=tf.constant(1.1, tf.float64))[-1]
    return last * tf.ones_like(x)


def map_fn(x):
    return tf.map_fn(square, x)


def nested_functions(x):
    return tf.function(tf.function(square))(x)


def vectorized(x):
    return tf.vectorized_map(square, x, fallback_to_while_loop=False)


@cg.recompute_grad
def recomputed(x):
    return tf.sin(x) * x


# The derivative of the sine is 3 x sin(x), also inside the second derivative.
overridden = cg.override_gradients(
    lambda x: tf.sin(x) * x, {"Sin": lambda op, dy: 3.0 * dy * op.inputs[0] * op.outputs[0]}
)


def residual_forward(x, scale):
    return scale * x**2, (x, tf.cos(x))


def residual_backward(residuals, dy, scale):
    x, cosine = residuals
    return dy * scale * cosine * x


residual = cg.custom_vjp(residual_forward, residual_backward, nondiff_argnames=["scale"])


@cg.custom_jvp
def with_tangent(x):
    return x**3


@with_tangent.defjvp
def five_times(primals, tangents):
    """Five times the tangent of the square."""
    return with_tangent(*primals), 10.0 * primals[0] * tangents[0]


def square_by_hand(x, dy):
    return x**2, 20 * dy * x, 20 * dy**2


def while_loop_by_hand(x, dy):
    # y = square(square(x)): dx = dy * 20 x**2 * 20 x; the second order differentiates x**2 by the decorated rule again.
    return x**4, dy * 400 * x**3, 400 * dy**2 * (20 * x * x + x**2)


def scan_by_hand(x, dy):
    # For the last element, with the value a before it: last = a**2 x[-1], and d last/d a = 20 a x[-1] by the rule.
    a = [1.1]
    for b in x:
        a.append(a[-1] ** 2 * b)
    upstream, dx = np.sum(dy), np.zeros_like(x)
    for i in range(len(x) - 1, -1, -1):
        dx[i] = upstream * a[i] ** 2
        upstream = upstream * 20 * a[i] * x[i]
    return np.full_like(x, a[-1]), dx, None


W0 = WEIGHT.numpy()
CASES = {
    "with_variable": Case(with_variable, lambda x, dy: (W0 * x, 10 * W0 * x * dy, 10 * W0 * dy**2)),
    "plain": Case(square, square_by_hand),
    "keywords": Case(with_keywords, lambda x, dy: (5 * x**2, 15 * dy * x**2, 30 * dy**2 * x)),
    "nested": Case(outer, lambda x, dy: (np.exp(x), dy * np.sin(x), 7 * dy**2 * x)),
    "calling_function": Case(calling_function, lambda x, dy: (np.cos(x), dy * 2 * x**2, dy**2 * 4 * x)),
    "while_loop": Case(while_loop, while_loop_by_hand),
    "cond": Case(cond, square_by_hand),
    "scan": Case(scan, scan_by_hand),
    "map_fn": Case(map_fn, square_by_hand),
    "nested_functions": Case(nested_functions, square_by_hand),
    "vectorized": Case(vectorized, square_by_hand),
    "recompute_grad": Case(
        recomputed,
        lambda x, dy: (
            np.sin(x) * x,
            dy * (np.cos(x) * x + np.sin(x)),
            dy**2 * (2 * np.cos(x) - np.sin(x) * x),
        ),
    ),
    "custom_vjp": Case(
        lambda x: residual(x, scale=3.0),
        lambda x, dy: (3 * x**2, dy * 3 * np.cos(x) * x, dy**2 * 3 * (np.cos(x) - x * np.sin(x))),
    ),
    "custom_jvp": Case(with_tangent, lambda x, dy: (x**3, dy * 10 * x, 10 * dy**2)),
    "override_gradients": Case(
        overridden,
        lambda x, dy: (
            np.sin(x) * x,
            dy * np.sin(x) * (1 + 3 * x**2),
            dy**2 * np.sin(x) * (9 * x + 9 * x**3),
        ),
    ),
    "grad_pass_through": Case(lambda x: cg.grad_pass_through(tf.round)(x), lambda x, dy: (np.round(x), dy, 0 * x)),
}


def stopped(x):
    """gx is stopped, so the second order is zero."""
    return cg.embed_gradient(tf.sin(x), 10.0 * x, x)


def unstopped(x):
    """Computes sin(x) + 10 x (x - stop(x)): its first derivative is cos(x) + 10 x, the second one -sin(x) + 20."""
    return cg.embed_gradient(tf.sin(x), 10.0 * x, x, fx_gx_manually_stopped=True)


def along_an_axis(x):
    pairs = tf.stack([x, 2.0 * x], 1)
    return cg.embed_gradient(tf.reduce_sum(pairs**2, 1), 3.0 * pairs, pairs, axis=-1)


def two_inputs(x):
    return cg.embed_gradient(tf.sin(x), [3.0 * x, tf.reduce_max(x)], [x, 2.0 * x])


def bayesflow(x):
    return cg.compat.bayesflow.custom_gradient(x**2, 5.0 * x, x)


def tfp_math(x):
    return cg.compat.tfp_math.custom_gradient(x**2, [5.0 * x, x], [x, 3.0 * x])


EMBED_CASES = {
    "embed_gradient": Case(stopped, lambda x, dy: (np.sin(x), 10 * x * dy, 0 * x)),
    "embed_gradient, unstopped": Case(
        unstopped, lambda x, dy: (np.sin(x), dy * (np.cos(x) + 10 * x), dy**2 * (20 - np.sin(x)))
    ),
    "embed_gradient, axis": Case(along_an_axis, lambda x, dy: (5 * x**2, 15 * x * dy, 0 * x)),
    "embed_gradient, lists": Case(two_inputs, lambda x, dy: (np.sin(x), dy * (3 * x + 2 * np.max(x)), 0 * x)),
    "compat.bayesflow": Case(bayesflow, lambda x, dy: (x**2, 5 * x * dy, 0 * x)),
    "compat.tfp_math": Case(tfp_math, lambda x, dy: (x**2, 8 * x * dy, 0 * x)),
}


def clipped(dy):
    return np.clip(dy, -2.0, 2.0)


READY_MADE = {
    "reverse_gradient": Case(
        lambda x: cg.reverse_gradient(x**2, 3.0),
        lambda x, dy: (x**2, -6 * x * dy, -6 * dy**2),
    ),
    "scale_gradient": Case(
        lambda x: cg.scale_gradient(x**2, 0.25),
        lambda x, dy: (x**2, 0.5 * x * dy, 0.5 * dy**2),
    ),
    "clip_gradient": Case(
        lambda x: cg.clip_gradient(x**2, value=2.0),
        lambda x, dy: (x**2, 2 * x * clipped(dy), 2 * clipped(dy) * dy),
    ),
    "fake_quant": Case(
        lambda x: cg.fake_quant(x**2, 0.25, bits=4),
        lambda x, dy: (
            np.minimum(np.floor(4 * x**2 + 0.5) / 4, 1.75),
            np.where(x**2 <= 1.75, 2 * x * dy, 0),
            np.where(x**2 <= 1.75, 2 * dy**2, 0),
        ),
    ),
    "straight_through": Case(
        cg.straight_through(tf.round, "fast_sigmoid", slope=2.0),
        lambda x, dy: (
            np.round(x),
            dy / (1 + 2 * np.abs(x)) ** 2,
            -4 * np.sign(x) * dy**2 / (1 + 2 * np.abs(x)) ** 3,
        ),
    ),
}


def erf(x):
    return np.vectorize(math.erf, otypes=[x.dtype])(x), 2 / np.sqrt(np.pi) * np.exp(-(x**2))
