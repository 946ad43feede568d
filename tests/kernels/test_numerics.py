"""Mixed precision, determinism, checked numerics and random seeds."""

import contextlib
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.keras_models import data, sign_layer
from ..support.processes import run_python
from ..support.sources import ROOT


@pytest.fixture
def keras(library):
    """Keras 3 and Keras 2; restores the policy afterwards."""
    yield library
    library.mixed_precision.set_global_policy("float32")


POLICIES = {
    # The policy, the dtype of its computations, and the tolerances of gradients and of 32 training steps against float64.
    "mixed_float16": (tf.float16, 1e-3),
    "mixed_bfloat16": (tf.bfloat16, 8e-3),
}


@pytest.mark.mode_table(feature="embed_gradient", mode="mixed_precision")
@pytest.mark.mode_table(feature="custom_gradient", mode="mixed_precision")
@pytest.mark.parametrize("policy", POLICIES)
def test_gradients_in_mixed_precision(policy, keras):
    """The layer alone, for a non-uniform upstream: its gradients are float32, like its weights."""
    keras.mixed_precision.set_global_policy(policy)
    compute_dtype, rtol = POLICIES[policy]
    layer = sign_layer(keras)
    x = tf.cast(data()[0][:4], compute_dtype)
    layer.build(x.shape)
    dy = np.array([[1.0], [10.0], [-3.0], [0.5]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = layer(x)
    gradients = tape.gradient(value, [x, *layer.trainable_variables], output_gradients=tf.cast(dy, compute_dtype))
    wide = x.numpy().astype(np.float64)
    z = wide @ np.ones((4, 1))
    dz = 0.5 * dy / (1 + z * z)
    assert [tf.as_dtype(g.dtype) for g in gradients] == [compute_dtype, tf.float32, tf.float32]
    for actual, expected in zip(
        gradients, [dz @ np.ones((1, 4)), wide.T @ dz, np.sum(dy * np.sign(z), 0)], strict=True
    ):
        actual = actual.numpy().astype(np.float64)
        # A few units in the last place of the largest number.
        np.testing.assert_allclose(actual, expected, rtol=0, atol=4 * rtol * np.max(np.abs(expected)))


DETERMINISM = pathlib.Path(__file__).with_name("deterministic_training.py").read_text()


def test_sums_and_training_are_equal_bit_by_bit_run_after_run_and_with_more_threads(tmp_path):
    one, many = (
        run_python(DETERMINISM, threads, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)}).stdout.split()
        for threads in (1, 8)
    )
    assert len(one) == 1
    assert one == many


CHECKED_NUMERICS = pathlib.Path(__file__).with_name("checked_numerics.py").read_text()


def test_checked_numerics_report_the_op_where_a_bad_number_comes_up(tmp_path):
    result = run_python(CHECKED_NUMERICS, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    names = ["CustomGradientEmbedGrad", "Mul", "CustomGradientEmbedGrad", "node mul/CheckNumericsV2"]
    for found, name in zip(json.loads(result.stdout.splitlines()[-1]), names, strict=True):
        finite, infinite_x, unused, used = found
        assert finite == [[1.0, 2.0], [10.0, 6.0]]
        assert infinite_x == [[1.0, 2.0], [10.0, 6.0]]
        # The value is finite even if gx is not.
        assert unused == [[1.0, 2.0], [1.0, 2.0]]
        assert "Detected Infinity or NaN in output 0" in used
        assert name in used


def square_by(decorator):
    return decorator(lambda x: (x**2, lambda dy: 2.0 * dy * x))


SQUARES = {
    "built_in": square_by(tf.custom_gradient),
    "custom_gradient": square_by(cg.custom_gradient),
    "embed_gradient": lambda x: cg.embed_gradient(x**2, 2.0 * x, x),
    "recompute_grad": cg.recompute_grad(tf.square),
}


def draws(function, traced, with_gradient):
    """Random numbers around a call: with the global seed, with an op's seed as well, and from a generator."""
    tf.random.set_seed(7)
    generator = tf.random.Generator.from_seed(3)

    def run(x):
        drawn = [tf.random.normal([2]), generator.normal([2])]
        with tf.GradientTape() if with_gradient else contextlib.nullcontext() as tape:
            if with_gradient:
                tape.watch(x)
            result = function(x)
        if with_gradient:
            result = tape.gradient(result, x, output_gradients=tf.constant([1.0, 10.0]))
        return [*drawn, tf.random.normal([2]), tf.random.normal([2], seed=5), generator.normal([2])], result

    drawn, result = (tf.function(run) if traced else run)(tf.constant([1.0, 2.0]))
    np.testing.assert_array_equal(result, [2.0, 40.0] if with_gradient else [1.0, 4.0])
    return np.stack(drawn)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("with_gradient", [False, True], ids=["value", "gradient"])
def test_random_numbers_are_the_same_with_and_without_a_call(traced, with_gradient):
    """A graph counts the draws without their own seed, not its operations."""
    plain = draws(tf.square, traced, with_gradient)
    for name, function in SQUARES.items():
        np.testing.assert_array_equal(draws(function, traced, with_gradient), plain, err_msg=name)


def test_the_import_draws_nothing(tmp_path):
    code = """
import sys
import tensorflow as tf

def draw(between):
    tf.random.set_seed(7)
    first = tf.random.normal([2])
    between()
    return [*first.numpy(), *tf.random.normal([2]).numpy()]

def load():
    assert "tf_cg_ops" not in sys.modules
    import tf_cg_ops

assert draw(lambda: None) == draw(load) == draw(lambda: None)
"""
    run_python(code, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})


def noise_of_rules(decorator, seed):
    """The random numbers that two rules in one graph draw, and the numbers that the graph draws after them."""
    function = decorator(lambda x: (x + 0.0, lambda dy: dy * tf.random.normal([3])))

    @tf.function
    def run(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            values = [function(x), function(x)]
        return [*(tape.gradient(value, x) for value in values), tf.random.normal([3])]

    tf.random.set_seed(seed)
    return np.stack(run(tf.zeros([3])))


@pytest.mark.parametrize("decorator", [cg.custom_gradient, tf.custom_gradient], ids=["cg", "tf"])
def test_each_traced_grad_fn_draws_numbers_of_its_own(decorator):
    """Two rules with the same noise would not be independent."""
    noise = noise_of_rules(decorator, 7)
    assert not any(np.allclose(noise[i], noise[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    np.testing.assert_array_equal(noise, noise_of_rules(decorator, 7))
    assert not np.allclose(noise, noise_of_rules(decorator, 8))
