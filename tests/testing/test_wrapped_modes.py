"""The modes of check_gradient that put the function into a loop, a SavedModel, a model of Keras, half precision."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops.testing import check_gradient

MODES = ["while_loop", "cond", "saved_model", "functional"]
HALF = {"mixed_float16": tf.float16, "mixed_bfloat16": tf.bfloat16}
X = np.array([0.3, -0.7, 1.2])
WEIGHT = tf.Variable([2.0, 3.0, 4.0], dtype=tf.float64)


@cg.custom_gradient
def sine(x):
    return tf.sin(x), lambda dy: dy * tf.cos(x)


@cg.custom_gradient
def weighted(x, n):
    def grad_fn(_, dy, variables):
        return (dy * WEIGHT * n, None), [dy * x * n]

    return {"y": WEIGHT * x * n, "which": tf.argmax(x)}, grad_fn


@cg.custom_gradient
def scaled(x, n):
    return {"y": x * n, "which": tf.argmax(x)}, lambda _, dy: (dy * n, None)


@pytest.mark.parametrize("mode", MODES)
def test_a_right_gradient_passes(mode):
    report = check_gradient(sine, [X], modes=[mode], second_order=True)
    assert {(c.mode, c.order) for c in report.comparisons} == {(mode, order) for order in ("value", "first", "second")}
    function = weighted if mode != "functional" else scaled  # Such a model refuses functions that read variables.
    assert not check_gradient(function, [X, 3], modes=[mode]).failures


@pytest.mark.parametrize("mode", HALF)
def test_a_right_gradient_passes_in_half_precision(mode):
    dtypes = set()

    @cg.custom_gradient
    def product(x, y):
        dtypes.update([x.dtype, y.dtype])
        return x * y, lambda dy: (dy * y, dy * x)

    assert not check_gradient(product, [X, 2 * X], modes=[mode]).failures
    assert dtypes == {HALF[mode], tf.float64}  # The reference is of double precision.
    assert not check_gradient(sine, [X], modes=[mode], second_order=True).failures
    assert not check_gradient(tf.math.conj, [X + 1j], modes=[mode]).failures  # Keras leaves complex numbers alone.


@pytest.mark.parametrize(("mode", "small", "large"), [("mixed_float16", 1.005, 1.02), ("mixed_bfloat16", 1.03, 1.1)])
def test_errors_within_16_roundings_are_not_found_in_half_precision(mode, small, large):
    def with_factor(factor):
        return cg.custom_gradient(lambda x: (x, lambda dy: dy * (1.0 if x.dtype == tf.float64 else factor)))

    check_gradient(with_factor(small), [tf.constant([1.0])], modes=[mode])
    for wrong in (large, 0.8, -1.0):
        message = f"the gradient of '<lambda>' with respect to 'x' is wrong in mode '{mode}'"
        with pytest.raises(AssertionError, match=message):
            check_gradient(with_factor(wrong), [tf.constant([1.0])], modes=["eager", mode])


def test_a_functional_model():
    """It takes functions of Keras, but none that reads variables or takes no symbolic inputs."""
    assert not check_gradient(lambda x: keras.ops.tanh(x) * 2.0, [X], modes=["functional"]).failures
    with pytest.raises(AssertionError, match=r"'weighted'.*functional"):
        check_gradient(weighted, [X, 3], modes=["eager", "functional"])
    with pytest.raises(AssertionError, match="in mode 'functional'; expected numbers, got ValueError: A KerasTensor"):
        check_gradient(lambda x: tf.sin(x), [X], modes=["eager", "functional"])


def test_faults_of_half_precision():
    """A dtype that is written into the code, and an overflow."""

    @cg.custom_gradient
    def written(x):
        return x * x, lambda dy: 2 * tf.cast(dy, tf.float64) * x

    check_gradient(written, [X])
    with pytest.raises(AssertionError, match=r"mode 'mixed_float16'; .*float16"):
        check_gradient(written, [X], modes=["eager", "mixed_float16"])

    @cg.custom_gradient
    def overflowing(x):
        return tf.exp(x), lambda dy: dy * tf.exp(3 * x) / tf.exp(2 * x)

    check_gradient(overflowing, [X + 4], modes=["eager", "mixed_bfloat16"])
    with pytest.raises(AssertionError, match=r"wrong in mode 'mixed_float16'; .* The gradient is not finite"):
        check_gradient(overflowing, [X + 4], modes=["eager", "mixed_float16"])


def test_a_gradient_that_is_wrong_in_a_loop_alone_is_found_there():
    @cg.custom_gradient
    def faulty(x):
        def grad_fn(dy):
            name = tf.compat.v1.get_default_graph().name if not tf.executing_eagerly() else ""
            return dy * tf.cos(x) * (-1.0 if "while" in name else 1.0)

        return tf.sin(x), grad_fn

    with pytest.raises(AssertionError, match=r"is wrong in mode 'while_loop'; .*the sign is wrong"):
        check_gradient(faulty, [X], modes=["eager", "function", "while_loop"])


def test_gradients_that_cannot_be_saved_are_found_in_a_saved_model():
    """A gradient that cannot be traced, and a Python function."""

    @cg.custom_gradient
    def faulty(x):
        return tf.sin(x), lambda dy: tf.constant(dy.numpy() * np.cos(x.numpy()))

    message = "could not be computed in mode 'saved_model'; expected numbers, got "
    with pytest.raises(AssertionError, match=f"{message}Runtime"):
        check_gradient(faulty, [X], modes=["eager", "saved_model"])
    function = cg.numpy_function(lambda x: (np.sin(x), np.cos(x)))
    check_gradient(function, [X], modes=["eager", "function", "while_loop", "cond"])
    with pytest.raises(AssertionError, match=message):
        check_gradient(function, [X], modes=["saved_model"])
