"""Hessian-vector products through scan and while_loop, by a GradientTape around a ForwardAccumulator."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS
from ..support.tensors import pairs

X, W, V = np.array([0.7, -1.3, 1.1]), np.array([0.5, -0.4, 2.0]), np.array([0.3, 2.0, -1.0])
DY = np.array([1.0, 10.0, -3.0])


def step(carry, w):
    return tf.sin(carry) * w + carry


def scanned(checkpoint, closes_over):
    def run(x, w):
        if closes_over:
            return cg.scan(lambda carry, _: (step(carry, w), None), x, length=4, checkpoint=checkpoint)[0]
        return cg.scan(lambda carry, w: (step(carry, w), None), x, tf.stack([w] * 4), checkpoint=checkpoint)[0]

    return run


def looped(x, w):
    return cg.while_loop(lambda i, _: i < 4, lambda i, y: (i + 1, step(y, w)), (0, x), maximum_iterations=6)[1]


LOOPS = {
    "scan": scanned("sqrt", True),
    "scan over slices": scanned("sqrt", False),
    "scan, checkpoint=None": scanned(None, True),
    "scan in recompute_grad": lambda x, w: cg.recompute_grad(scanned("sqrt", True))(x, w),
    "while_loop": looped,
}


def gradient_by_hand(x, w):
    """The gradient of sum(DY * loop + x**3) by x and w, in NumPy."""
    carries = [x]
    for _ in range(4):
        carries.append(np.sin(carries[-1]) * w + carries[-1])
    dx, dw = DY.copy(), np.zeros(3)
    for carry in carries[3::-1]:
        dw += dx * np.sin(carry)
        dx *= np.cos(carry) * w + 1.0
    return dx + 3.0 * x**2, dw


def hessian_times(v, eps=1e-6):
    """The derivative along v in x of the gradient by x and w: central differences in float64."""
    above, below = (gradient_by_hand(X + sign * eps * v, W) for sign in (1.0, -1.0))
    return [(a - b) / (2 * eps) for a, b in zip(above, below, strict=True)]


def tape_around_accumulator(loop, x, w):
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        with tf.autodiff.ForwardAccumulator(x, tf.constant(V)) as accumulator:
            loss = tf.reduce_sum(DY * loop(x, w) + x**3)
        slope = accumulator.jvp(loss)
    return slope, *tape.gradient(slope, [x, w])


def tape_by_weights_alone(loop, x, w):
    """The tape does not watch what has the tangent."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(w)
        with tf.autodiff.ForwardAccumulator(x, tf.constant(V)) as accumulator:
            loss = tf.reduce_sum(DY * loop(x, w) + x**3)
        slope = accumulator.jvp(loss)
    return slope, tape.gradient(slope, w)


@pytest.mark.parametrize(("loop", "mode"), pairs(LOOPS, RUNS))
def test_a_tape_around_an_accumulator_gives_the_hessian_vector_product(loop, mode):
    slope, *products = RUNS[mode](lambda x, w: tape_around_accumulator(LOOPS[loop], x, w))(
        tf.constant(X), tf.constant(W)
    )
    np.testing.assert_allclose(slope, gradient_by_hand(X, W)[0] @ V, rtol=1e-12)
    for product, expected in zip(products, hessian_times(V), strict=True):
        np.testing.assert_allclose(product, expected, rtol=1e-6)


def test_the_tape_may_watch_other_tensors_than_the_accumulator():
    slope, product = tape_by_weights_alone(looped, tf.constant(X), tf.constant(W))
    np.testing.assert_allclose(slope, gradient_by_hand(X, W)[0] @ V, rtol=1e-12)
    np.testing.assert_allclose(product, hessian_times(V)[1], rtol=1e-6)
