"""The modes of check_gradient that wrap the function: in a loop, a SavedModel, a Keras model, half precision."""

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
    assert dtypes == {HALF[mode], tf.float64}  # The reference is computed in float64.
    assert not check_gradient(sine, [X], modes=[mode], second_order=True).failures
    assert not check_gradient(tf.math.conj, [X + 1j], modes=[mode]).failures  # Keras does not cast complex numbers.


@pytest.mark.parametrize(("mode", "small", "large"), [("mixed_float16", 1.005, 1.02), ("mixed_bfloat16", 1.03, 1.1)])
def test_errors_within_16_roundings_are_not_found_in_half_precision(mode, small, large):
    def with_factor(factor):
        return cg.custom_gradient(lambda x: (x, lambda dy: dy * (1.0 if x.dtype == tf.float64 else factor)))

    check_gradient(with_factor(small), [tf.constant([1.0])], modes=[mode])
    for wrong in (large, 0.8, -1.0):
        message = f"the gradient of '<lambda>' with respect to 'x' is wrong in mode '{mode}'"
        with pytest.raises(AssertionError, match=message):
            check_gradient(with_factor(wrong), [tf.constant([1.0])], modes=["eager", mode])


with_a_dtype = cg.custom_gradient(lambda x: (x * x, lambda dy: 2 * tf.cast(dy, tf.float64) * x))
overflowing = cg.custom_gradient(lambda x: (tf.exp(x), lambda dy: dy * tf.exp(3 * x) / tf.exp(2 * x)))


@cg.custom_gradient
def wrong_in_a_loop(x):
    def grad_fn(dy):
        name = tf.compat.v1.get_default_graph().name if not tf.executing_eagerly() else ""
        return dy * tf.cos(x) * (-1.0 if "while" in name else 1.0)

    return tf.sin(x), grad_fn


untraceable = cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: tf.constant(dy.numpy() * np.cos(x.numpy()))))
in_python = cg.numpy_function(lambda x: (np.sin(x), np.cos(x)))
WRONG, NOT_COMPUTED = "is wrong in mode '{}': .*", "could not be computed in mode '{}': "
IN_PYTHON = ["eager", "function", "while_loop", "cond"]
# A function, its arguments, modes in which it passes, the mode in which it fails, and the message.
FAULTS = {
    "reads a variable": (weighted, [X, 3], ["eager"], "functional", "'weighted'.*functional"),
    "not of Keras": (lambda x: tf.sin(x), [X], ["eager"], "functional", NOT_COMPUTED + "ValueError: A KerasTensor"),
    "a dtype in the code": (with_a_dtype, [X], ["eager"], "mixed_float16", NOT_COMPUTED + ".*float16"),
    "overflow": (overflowing, [X + 4], ["eager", "mixed_bfloat16"], "mixed_float16", WRONG + "gradient is not finite"),
    "loop": (wrong_in_a_loop, [X], ["eager", "function"], "while_loop", WRONG + "the sign is wrong"),
    "untraceable": (untraceable, [X], ["eager"], "saved_model", NOT_COMPUTED + "Runtime"),
    "Python": (in_python, [X], IN_PYTHON, "saved_model", NOT_COMPUTED),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_one_mode_are_found_there_alone(name):
    function, args, modes, mode, message = FAULTS[name]
    with pytest.raises(AssertionError, match=message.format(mode)) as failure:
        check_gradient(function, args, modes=[*modes, mode])
    rows = [line.split() for line in str(failure.value).splitlines() if " first " in line]
    assert {row[0] for row in rows if row[-1] != "ok"} <= {mode}


def test_functions_of_keras_pass_in_a_functional_model():
    assert not check_gradient(lambda x: keras.ops.tanh(x) * 2.0, [X], modes=["functional"]).failures
