"""while_loop gives the values and gradients of the loop in NumPy, wherever it ends."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS as MODES
from ..support.modes import assert_all_close, vjp
from ..support.tensors import pairs

RNG = np.random.default_rng(1)
X, W, DY = RNG.normal(size=[4]), RNG.normal(size=[4]), RNG.normal(size=[4])


def looped(x, num_steps, w, **options):
    def body(i, x):
        return i + 1, tf.sin(w * x)

    return cg.while_loop(lambda i, x: i < num_steps, body, (0, x), **{"maximum_iterations": 100, **options})[1]


def reference(num_steps, x=X):
    """x after num_steps steps x = sin(w * x), and the gradients with respect to x and w."""
    values, dw, dy = [x], np.zeros_like(W), DY
    for _ in range(num_steps):
        values.append(np.sin(W * values[-1]))
    for before in values[-2::-1]:
        dz = np.cos(W * before) * dy
        dw, dy = dw + before * dz, W * dz
    return values[-1], dy, dw


def assert_close(got, expected):
    assert_all_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("checkpoint", "mode"), pairs(["sqrt", "log", 1, 4, 100, None], MODES))
def test_loops_that_end_anywhere(checkpoint, mode):
    w = tf.Variable(W)

    @MODES[mode]
    def run(x, num_steps):
        y, gradients = vjp(
            lambda: looped(x, num_steps, w, maximum_iterations=11, checkpoint=checkpoint), [x, w], tf.constant(DY)
        )
        return y, *gradients

    for num_steps in (0, 5, 50) if mode == "eager" else (0, 1, 3, 4, 5, 10, 11, 50):
        assert_close(run(tf.constant(X), tf.constant(num_steps)), reference(min(num_steps, 11)))


@pytest.mark.core
@pytest.mark.parametrize("mode", ["eager", "jit"])
def test_a_condition_on_the_values(mode):
    traces = []

    def body(y):
        traces.append(1)
        return y * y

    def cond(y):
        return tf.reduce_max(y) < 1000.0

    @MODES[mode]
    def run(x):
        # A single loop variable need not be in a tuple.
        return vjp(lambda: cg.while_loop(cond, body, [x], maximum_iterations=50)[0], x, tf.constant([1.0, 10.0]))

    for start in ([3.0, 2.0], [2.0, 3.0]):
        y, dx = run(tf.constant(start))
        np.testing.assert_allclose(y, np.power(start, 8))
        np.testing.assert_allclose(dx, [8.0, 80.0] * np.power(start, 7))
    assert len(traces) == (2 if mode == "eager" else 1)


@pytest.mark.parametrize("checkpoint", ["sqrt", "log", 3, None])
def test_a_maximum_that_only_the_run_tells(checkpoint):
    w = tf.Variable(W)

    @tf.function
    def run(x, maximum):
        y, gradients = vjp(
            lambda: looped(x, 99, w, maximum_iterations=maximum, checkpoint=checkpoint), [x, w], tf.constant(DY)
        )
        return y, *gradients

    for maximum in (0, 1, 2, 9, 30):
        assert_close(run(tf.constant(X), tf.constant(maximum)), reference(maximum))
    assert run.experimental_get_tracing_count() == 1


@pytest.mark.parametrize(
    ("checkpoint", "around", "map_fn"), [(None, True, False), ("sqrt", True, True), (2, False, True)]
)
def test_members_of_a_map_can_have_different_numbers_of_steps(checkpoint, around, map_fn):
    xs = tf.constant([[1.5, 0.5], [3.0, 0.1], [200.0, 7.0]], tf.float64)
    dys = tf.constant([[1.0, -10.0], [3.0, 5.0], [-2.0, 7.0]], tf.float64)
    vectorized = lambda function, elements: tf.vectorized_map(function, elements)  # noqa: E731
    mapped = (lambda f, x: tf.map_fn(f, x, fn_output_signature=tf.float64)) if map_fn else vectorized

    def run(x):
        return cg.while_loop(
            lambda y: tf.reduce_max(y) < 100.0, lambda y: (y * y,), (x,), maximum_iterations=9, checkpoint=checkpoint
        )[0]

    def gradient(function, x, dy):
        return vjp(lambda: function(x), x, dy)[1]

    def gradients(mapped):
        if around:
            return gradient(lambda xs: mapped(run, xs), xs, dys)
        return mapped(lambda pair: gradient(run, *pair), (xs, dys))

    powers = np.array([[16.0], [8.0], [1.0]])  # 1.5**16 = 657, 3**8 = 6561
    np.testing.assert_allclose(gradients(mapped), dys * powers * xs.numpy() ** (powers - 1), rtol=1e-12)
    if around and map_fn:
        with pytest.raises(tf.errors.InvalidArgumentError):
            gradients(vectorized)


def test_no_iterations_at_all():
    assert cg.while_loop(lambda x: True, lambda x: (2 * x,), (tf.constant(3.0),), maximum_iterations=0) == (3.0,)
