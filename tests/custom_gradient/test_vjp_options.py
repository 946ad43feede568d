"""`needed` and `materialize_grads` of custom_vjp beyond cases.py: several tapes and gradients, threads, failures."""

import concurrent.futures
import threading

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, tape_vjp, vjp

X, Y = tf.constant([0.5, -1.0, 2.0], tf.float64), tf.constant([3.0, 4.0, 5.0], tf.float64)
DY = tf.constant([1.0, 10.0, 100.0], tf.float64)
BY_X, BY_Y = DY * tf.cos(X) * Y, DY * tf.sin(X)


def product(backward):
    return cg.custom_vjp(lambda x, y: (tf.sin(x) * y, (x, y)), backward)


def noting(log):
    def backward(residuals, dy, needed):
        log.append(needed)
        x, y = residuals
        return dy * tf.cos(x) * y if needed[0] else None, dy * tf.sin(x) if needed[1] else None

    return product(backward)


def test_an_inner_tape_needs_what_an_outer_one_watches():
    log = []
    with tf.GradientTape() as outer:
        outer.watch(X)
        by_y = vjp(lambda: noting(log)(X, Y), Y, DY)[1]
    np.testing.assert_allclose(by_y, BY_Y)
    assert log == [(True, True)]
    np.testing.assert_allclose(outer.gradient(by_y, X, output_gradients=DY), DY * DY * tf.cos(X))


@pytest.mark.parametrize("tape", ["around", "inside"])
def test_a_graph_does_not_run_unused_gradients(tape):
    """Counted by a Python function without side effects, in the gradient of one of two arguments.

    TensorFlow runs the whole gradient of a tf.function for a tape around it.
    """
    calls = []

    def count(x):
        calls.append(1)
        return x

    def backward(residuals, dy, needed):
        x, y = residuals
        expensive = tf.ensure_shape(tf.numpy_function(count, [dy * tf.sin(x)], tf.float64, stateful=False), [3])
        return dy * tf.cos(x) * y, expensive

    function = tf.function(product(backward))
    for watched, number in (([X], int(tape == "around")), ([X, Y], 1)):
        calls.clear()
        run = RUNS["eager" if tape == "around" else "traced"](lambda: vjp(lambda: function(X, Y), watched, DY)[1])  # noqa: B023
        np.testing.assert_allclose(run()[0], BY_X)
        assert len(calls) == number


class Pair:
    """Sine, cosine and an integer, with a backward pass that notes which upstream gradients are None."""

    def __init__(self, before=lambda: None):
        self.seen, self.before = [], before
        value = lambda x: ({"a": tf.sin(x), "b": [tf.cos(x), tf.argmax(x)]}, x)  # noqa: E731
        self.function = cg.custom_vjp(value, self.backward, materialize_grads=False)

    def __call__(self, x):
        return tf.nest.flatten(self.function(x))

    def backward(self, x, by_sine, by_cosine, by_integer):
        self.before()
        self.seen.append([dy is None for dy in (by_sine, by_cosine, by_integer)])
        dx = tf.zeros_like(x)
        if by_sine is not None:
            dx += by_sine * tf.cos(x)
        return dx if by_cosine is None else dx - by_cosine * tf.sin(x)


BY_HAND = [DY * tf.cos(X), -DY * tf.sin(X)]


def recorded(compute):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(X)
        value = compute(X)
    return tape, value


@pytest.mark.parametrize("mode", list(RUNS))
@pytest.mark.parametrize(
    ("used", "upstream"),
    {
        "zeros": (True, lambda: [DY, tf.zeros([3], tf.float64)]),
        "zeros_like": (True, lambda: [DY, tf.zeros_like(X)]),
        "none": (False, lambda: [DY, None]),
    }.values(),
)
def test_zeros_as_the_upstream_gradient_are_not_none(used, upstream, mode):
    pair = Pair()

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            sine, cosine, _ = pair(x)
        return tape.gradient([sine, cosine], x, output_gradients=upstream())

    np.testing.assert_allclose(RUNS[mode](run)(X), BY_HAND[0], rtol=1e-12)
    assert pair.seen[-1] == [False, not used, True]


def test_a_persistent_tape_tells_each_gradient_its_own():
    pair = Pair()
    tape, value = recorded(pair)
    for used in ([0], [1], [0, 1], [0]):
        gradient = tape.gradient([value[i] for i in used], X, output_gradients=[DY] * len(used))
        np.testing.assert_allclose(gradient, sum(BY_HAND[i] for i in used), rtol=1e-14)
    assert [seen[:2] for seen in pair.seen] == [[False, True], [True, False], [False, False], [False, True]]


def test_for_a_tape_around_a_function_they_are_zeros():
    pair = Pair()
    _, (dx,) = tape_vjp(lambda x: tf.function(pair)(x)[1], [X], DY)
    np.testing.assert_allclose(dx, BY_HAND[1], rtol=1e-14)
    assert pair.seen[-1] == [False, False, True]


def test_threads_share_a_persistent_tape():
    pair = Pair(threading.Barrier(2, timeout=30).wait)  # Both marks are set before either backward pass goes on.
    tape, values = recorded(pair)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        for _ in range(20):
            found = [threads.submit(tape.gradient, values[i], X, output_gradients=DY) for i in (0, 1)]
            for gradient, expected in zip(found, BY_HAND, strict=True):
                np.testing.assert_allclose(gradient.result(), expected, rtol=1e-14)


def test_a_gradient_that_failed_leaves_no_mark():
    pair, fails = Pair(), [True]

    def grad_fn(dy):
        if fails:
            raise RuntimeError("not this time")
        return dy

    def compute(x):
        sine, cosine, _ = pair(x)
        return cosine, sine + cg.custom_gradient(lambda x: (tf.identity(x), grad_fn))(cosine)

    tape, (cosine, total) = recorded(compute)
    with pytest.raises(RuntimeError, match="not this time"):
        tape.gradient(total, X, output_gradients=DY)
    fails.clear()
    np.testing.assert_allclose(tape.gradient(cosine, X, output_gradients=DY), BY_HAND[1], rtol=1e-14)
    assert pair.seen == [[True, False, True]]
