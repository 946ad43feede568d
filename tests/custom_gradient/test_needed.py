"""`backward` of `custom_vjp` learns which gradients are not needed."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import vjp

pytestmark = pytest.mark.core

X, Y, DY = np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([1.0, 10.0])
DX_BY_HAND, DY_BY_HAND = DY * np.cos(X) * Y, DY * np.sin(X)


def forward(x, y):
    return tf.sin(x) * y, (x, y)


@pytest.fixture
def log():
    return []


@pytest.fixture
def product(log):
    def backward(residuals, dy, needed):
        log.append(needed)
        x, y = residuals
        return dy * tf.cos(x) * y if needed[0] else None, dy * tf.sin(x) if needed[1] else None

    return cg.custom_vjp(forward, backward)


def gradients(function, watched):
    """The gradients for x and y, of which a tape watches some."""
    tensors = [tf.constant(X), tf.constant(Y)]
    sources = [tensor for tensor, is_watched in zip(tensors, watched, strict=True) if is_watched]
    return vjp(lambda: function(*tensors), sources, tf.constant(DY))[1]


def test_an_inner_tape_needs_what_an_outer_one_watches(product, log):
    x, y = tf.constant(X), tf.constant(Y)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(y)
            z = product(x, y)
        dy = inner.gradient(z, y, output_gradients=tf.constant(DY))
    np.testing.assert_allclose(dy, DY_BY_HAND)
    assert log == [(True, True)]
    second = outer.gradient(dy, x, output_gradients=tf.constant(DY))
    np.testing.assert_allclose(second, DY * DY * np.cos(X))


@pytest.mark.parametrize("outer", [True, False])
def test_a_graph_does_not_run_unused_gradients(outer):
    """Counted by a Python function without side effects, in the gradient of one of two arguments.

    TensorFlow runs the whole gradient of a tf.function for a tape around it.
    """
    calls = []

    def count(x):
        calls.append(1)
        return x

    def backward(residuals, dy, needed):
        x, y = residuals
        expensive = tf.ensure_shape(tf.numpy_function(count, [dy * tf.sin(x)], tf.float64, stateful=False), [2])
        return dy * tf.cos(x) * y, expensive

    function = tf.function(cg.custom_vjp(forward, backward))
    for watched, number in (((True, False), int(outer)), ((True, True), 1)):
        calls.clear()
        run = gradients if outer else tf.function(gradients, autograph=False)
        dx, *_ = run(function, watched)
        np.testing.assert_allclose(dx, DX_BY_HAND)
        assert len(calls) == number


def test_a_loaded_model_and_a_batch_need_all(product, log, tmp_path):
    module = tf.Module()
    module.f = tf.function(product, input_signature=[tf.TensorSpec([2], tf.float64)] * 2)
    tf.saved_model.save(module, tmp_path)
    log.clear()
    (dx,) = gradients(tf.saved_model.load(tmp_path).f, (True, False))
    np.testing.assert_allclose(dx, DX_BY_HAND)
    assert log == []

    def one(row):
        x, y, dy = row
        return vjp(lambda: product(x, y), y, dy)[1]

    found = tf.vectorized_map(one, tuple(map(tf.constant, (X, Y, DY))), fallback_to_while_loop=False)
    np.testing.assert_allclose(found, DY_BY_HAND)
