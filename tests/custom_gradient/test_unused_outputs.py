"""custom_vjp with materialize_grads=False, beyond cases.py: several gradients, threads, failures."""

import concurrent.futures
import threading

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

X = tf.constant([0.5, -1.0, 2.0], tf.float64)
DY = tf.constant([1.0, 10.0, 100.0], tf.float64)


class Pair:
    """Sine, cosine and an integer, with a backward pass that notes which upstream gradients are None."""

    def __init__(self, **options):
        self.seen = []
        self.function = cg.custom_vjp(
            lambda x: ({"a": tf.sin(x), "b": [tf.cos(x), tf.argmax(x)]}, x), self.backward, **options
        )

    def backward(self, x, by_sine, by_cosine, by_integer):
        self.seen.append([dy is None for dy in (by_sine, by_cosine, by_integer)])
        dx = tf.zeros_like(x)
        if by_sine is not None:
            dx += by_sine * tf.cos(x)
        return dx if by_cosine is None else dx - by_cosine * tf.sin(x)


def by_hand(used):
    x, dy = X.numpy(), DY.numpy()
    return sum(([dy * np.cos(x), -dy * np.sin(x)][i] for i in used), np.zeros(3))


def test_a_persistent_tape_tells_each_gradient_its_own():
    pair = Pair(materialize_grads=False)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(X)
        value = tf.nest.flatten(pair.function(X))
    for used in ([0], [1], [0, 1], [0]):
        targets = [value[i] for i in used]
        gradient = tape.gradient(targets, X, output_gradients=[DY] * len(used))
        np.testing.assert_allclose(gradient, by_hand(used), rtol=1e-14)
    assert [seen[:2] for seen in pair.seen] == [[False, True], [True, False], [False, False], [False, True]]


def test_for_a_tape_around_a_function_they_are_zeros():
    pair = Pair(materialize_grads=False)
    with tf.GradientTape() as tape:
        tape.watch(X)
        value = tf.nest.flatten(tf.function(pair.function)(X))
    np.testing.assert_allclose(tape.gradient(value[1], X, output_gradients=DY), by_hand([1]), rtol=1e-14)
    assert pair.seen[-1] == [False, False, True]


def test_slices_and_second_derivatives():
    seen = []

    def backward(x, dy, unused):
        seen.append((isinstance(dy, tf.Tensor), unused is None))
        return tf.convert_to_tensor(dy) * x**2

    function = cg.custom_vjp(lambda x: ((x, 2 * x), x), backward, materialize_grads=False)
    with tf.GradientTape() as outer:
        outer.watch(X)
        with tf.GradientTape() as inner:
            inner.watch(X)
            y = tf.gather(function(X)[0], [2, 0])
        dx = inner.gradient(y, X, output_gradients=DY[:2])
    np.testing.assert_allclose(dx, [10.0 * 0.25, 0.0, 4.0])
    np.testing.assert_allclose(outer.gradient(dx, X, output_gradients=DY), [10.0 * 1.0, 0.0, 400.0])
    assert seen == [(True, True)]


def test_threads_share_a_persistent_tape():
    def forward(x):
        return (tf.sin(x), tf.cos(x)), x

    both_wait = threading.Barrier(2, timeout=30)

    def backward(x, by_sine, by_cosine):
        both_wait.wait()
        dx = tf.zeros_like(x) if by_sine is None else by_sine * tf.cos(x)
        assert (by_sine is None) != (by_cosine is None)
        return dx if by_cosine is None else dx - by_cosine * tf.sin(x)

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(X)
        values = cg.custom_vjp(forward, backward, materialize_grads=False)(X)
        # Both marks are set before either backward pass goes on.
        values = [cg.custom_gradient(lambda x: (tf.identity(x), lambda dy: dy))(value) for value in values]
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        for _ in range(20):
            found = [threads.submit(tape.gradient, values[i], X, output_gradients=DY) for i in (0, 1)]
            for i in (0, 1):
                np.testing.assert_allclose(found[i].result(), by_hand([i]), rtol=1e-14)


def test_a_gradient_that_failed_leaves_no_mark():
    pair = Pair(materialize_grads=False)
    fails = [True]

    def grad_fn(dy):
        if fails:
            raise RuntimeError("not this time")
        return dy

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(X)
        sine, (cosine, _) = pair.function(X).values()
        total = sine + cg.custom_gradient(lambda x: (tf.identity(x), grad_fn))(cosine)
    with pytest.raises(RuntimeError, match="not this time"):
        tape.gradient(total, X, output_gradients=DY)
    fails.clear()
    np.testing.assert_allclose(tape.gradient(cosine, X, output_gradients=DY), by_hand([1]), rtol=1e-14)
    assert pair.seen == [[True, False, True]]
