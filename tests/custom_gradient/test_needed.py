"""`backward` of `custom_vjp` learns which gradients are not needed."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

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
    sources = [tf.constant(X), tf.constant(Y)]
    with tf.GradientTape() as tape:
        tape.watch([tensor for tensor, is_watched in zip(sources, watched, strict=True) if is_watched])
        z = function(*sources)
    return tape.gradient(z, sources, output_gradients=tf.constant(DY))


@pytest.mark.parametrize("watched", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("mode", ["eager", "function", "tape inside"])
def test_gradients_that_no_tape_watches_are_not_needed(watched, mode, product, log):
    if mode == "tape inside":
        found = tf.function(gradients, autograph=False)(product, watched)
    else:
        found = gradients(product if mode == "eager" else tf.function(product), watched)
    for actual, expected, is_watched in zip(found, (DX_BY_HAND, DY_BY_HAND), watched, strict=True):
        if is_watched:
            np.testing.assert_allclose(actual, expected)
        else:
            assert actual is None
    # A graph is traced for all: tapes around it can watch either, and so can tapes around a loaded model.
    assert log[-1] == ((True, True) if mode == "function" else watched)


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


def test_forward_mode_and_symbolic_gradients_need_all(product, log):
    with tf.autodiff.ForwardAccumulator(y := tf.constant(Y), tf.constant(DY)) as accumulator:
        z = product(tf.constant(X), y)
    np.testing.assert_allclose(accumulator.jvp(z), np.sin(X) * DY)
    log.clear()
    run = tf.function(lambda x, y: tf.gradients(product(x, y), [x, y], tf.constant(DY)))
    np.testing.assert_allclose(run(tf.constant(X), tf.constant(Y)), [DX_BY_HAND, DY_BY_HAND])
    assert set(log) == {(True, True)}


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
        dx, _ = run(function, watched)
        np.testing.assert_allclose(dx, DX_BY_HAND)
        assert len(calls) == number


def test_variables_structures_and_other_arguments(log):
    weight, frozen = tf.Variable([2.0, 3.0], dtype=tf.float64), tf.Variable(5.0, dtype=tf.float64, trainable=False)

    def forward(pair, mode, weight, frozen, scale):
        return pair["a"] * pair["b"] * weight * frozen, (pair, weight.read_value(), frozen.read_value())

    def backward(residuals, dy, scale, *, needed):
        log.append((needed, scale))
        pair, w, f = residuals
        rows = [dy * pair["b"] * w * f, dy * pair["a"] * w * f, None, dy * pair["a"] * pair["b"] * f, None]
        return [row if is_needed else None for row, is_needed in zip(rows, needed, strict=True)]

    function = cg.custom_vjp(forward, backward, nondiff_argnames=["scale"])
    a, b = tf.constant(X), tf.constant(Y)
    with tf.GradientTape() as tape:
        tape.watch(b)
        z = function({"a": a, "b": b}, "mode", weight, frozen, scale=3)
    db, dw = tape.gradient(z, [b, weight], output_gradients=tf.constant(DY))
    assert log == [((False, True, False, True, False), 3)]
    np.testing.assert_allclose(db, DY * X * weight.numpy() * 5.0)
    np.testing.assert_allclose(dw, DY * X * Y * 5.0)


def test_variables_that_the_function_reads_come_beside(log):
    weight = tf.Variable(2.0, dtype=tf.float64)

    def backward(x, dy, needed, variables):
        log.append(needed)
        assert variables == [weight]
        return None, [tf.reduce_sum(dy * x)]

    function = cg.custom_vjp(lambda x: (x * weight, x), backward)
    with tf.GradientTape() as tape:
        z = function(tf.constant(X))
    np.testing.assert_allclose(tape.gradient(z, weight, output_gradients=tf.constant(DY)), np.sum(DY * X))
    assert log == [(False,)]


def test_an_argument_of_that_name_without_gradient_is_passed_as_it_is():
    def backward(x, dy, needed):
        return dy * needed

    function = cg.custom_vjp(lambda x, needed: (x, x), backward, nondiff_argnames=["needed"])
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        z = function(x, 7.0)
    np.testing.assert_allclose(tape.gradient(z, x, output_gradients=tf.constant(DY)), 7.0 * DY)


def test_a_loaded_model_and_a_batch_need_all(product, log, tmp_path):
    module = tf.Module()
    module.f = tf.function(product, input_signature=[tf.TensorSpec([2], tf.float64)] * 2)
    tf.saved_model.save(module, tmp_path)
    log.clear()
    dx, none = gradients(tf.saved_model.load(tmp_path).f, (True, False))
    np.testing.assert_allclose(dx, DX_BY_HAND)
    assert none is None
    assert log == []

    def one(x, y, dy):
        with tf.GradientTape() as tape:
            tape.watch(y)
            z = product(x, y)
        return tape.gradient(z, y, output_gradients=dy)

    found = tf.vectorized_map(lambda row: one(*row), tuple(map(tf.constant, (X, Y, DY))), fallback_to_while_loop=False)
    np.testing.assert_allclose(found, DY_BY_HAND)
