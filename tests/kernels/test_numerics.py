"""Mixed precision, determinism and random seeds."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.keras_models import data, sign_layer
from ..support.processes import run_python
from ..support.sources import ROOT

# The policy, the dtype of its computations, and a unit in its last place.
POLICIES = {"mixed_float16": (tf.float16, 1e-3), "mixed_bfloat16": (tf.bfloat16, 8e-3)}


@pytest.mark.mode_table(feature="embed_gradient", mode="mixed_precision")
@pytest.mark.mode_table(feature="custom_gradient", mode="mixed_precision")
@pytest.mark.parametrize("policy", POLICIES)
def test_gradients_in_mixed_precision(policy, library):
    """The layer alone, for a non-uniform upstream: its gradients are float32, like its weights."""
    library.mixed_precision.set_global_policy(policy)
    compute_dtype, rtol = POLICIES[policy]
    layer = sign_layer(library)
    library.mixed_precision.set_global_policy("float32")
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


SUMS = """
import hashlib
import sys
import tensorflow as tf
import tf_cg_ops as cg

tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
tf.config.experimental.enable_op_determinism()
tf.random.set_seed(7)

@tf.function
def gradient(fx, gx, x, axis):
    return tf.gradients(cg.embed_gradient(fx, gx, x, axis=axis), x, fx)[0]

for shape, out, axis in (((3_000_001,), [], ()), ((3001, 700), [700], ()), ((700, 3001), [700, 1], ()), ((700,), [9, 700], 0)):
    fx, gx = tf.random.normal([2, *shape])
    found = {gradient(fx, gx, tf.zeros(out), axis).numpy().tobytes() for _ in range(3)}
    print(*(hashlib.sha256(numbers).hexdigest() for numbers in found))
"""


def test_sums_are_equal_bit_by_bit_run_after_run_and_with_more_threads(tmp_path):
    one, many = (
        run_python(SUMS, threads, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)}).stdout for threads in (1, 8)
    )
    assert len(one.split()) == 4
    assert one == many


def square_by(decorator):
    return decorator(lambda x: (x**2, lambda dy: 2.0 * dy * x))


SQUARES = {
    "built_in": square_by(tf.custom_gradient),
    "custom_gradient": square_by(cg.custom_gradient),
    "embed_gradient": lambda x: cg.embed_gradient(x**2, 2.0 * x, x),
    "recompute_grad": cg.recompute_grad(tf.square),
}


def draws(function, traced):
    """Random numbers around a call: with the global seed, with an op's seed as well, and from a generator."""
    tf.random.set_seed(7)
    generator = tf.random.Generator.from_seed(3)

    def run(x):
        drawn = [tf.random.normal([2]), generator.normal([2])]
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = function(x)
        drawn += [tf.random.normal([2]), tape.gradient(result, x, output_gradients=tf.constant([1.0, 10.0]))]
        return [*drawn, tf.random.normal([2]), tf.random.normal([2], seed=5), generator.normal([2])]

    return np.stack((tf.function(run) if traced else run)(tf.constant([1.0, 2.0])))


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_random_numbers_are_the_same_with_and_without_a_call(traced):
    """A graph counts the draws without their own seed, not its operations."""
    plain = draws(tf.square, traced)
    for name, function in SQUARES.items():
        np.testing.assert_array_equal(draws(function, traced), plain, err_msg=name)


def noise_of_rules(seed):
    """The random numbers that two rules in one graph draw, and the numbers that the graph draws after them."""
    function = cg.custom_gradient(lambda x: (x + 0.0, lambda dy: dy * tf.random.normal([3])))

    @tf.function
    def run(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            values = [function(x), function(x)]
        return [*(tape.gradient(value, x) for value in values), tf.random.normal([3])]

    tf.random.set_seed(seed)
    return np.stack(run(tf.zeros([3])))


def test_each_traced_grad_fn_draws_numbers_of_its_own():
    """Two rules with the same noise would not be independent."""
    noise = noise_of_rules(7)
    assert not any(np.allclose(noise[i], noise[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    np.testing.assert_array_equal(noise, noise_of_rules(7))
    assert not np.allclose(noise, noise_of_rules(8))
