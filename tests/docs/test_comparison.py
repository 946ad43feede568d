"""The comparison table: one test a row, with every column that can be run.

The TFP column runs TFP, if it is installed (`make test` installs it), and its formula. `test_benchmarks` has the memory of a loop.
"""

import warnings

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops  # Only a test may look inside.

import tf_cg_ops as cg

from ..support.modes import run_in_a_fresh_process, tape_vjp
from ..support.reference import tfp_formula
from ..support.tensors import address

OURS = (cg.embed_gradient, cg.compat.tfp_math.custom_gradient, cg.compat.bayesflow.custom_gradient)


@pytest.fixture(scope="module")
def tfp():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TFP causes warnings at import.
        return pytest.importorskip("tensorflow_probability")


def with_tf_custom_gradient(fx, gx, x):
    """The formula of embed_gradient for operands of one shape."""

    @tf.custom_gradient
    def function(_):
        return fx, lambda dy: dy * gx

    return function(x)


def test_vector_jacobian_product(tfp):
    x, dy = tf.constant([1.0, 2.0, 3.0]), tf.constant([1.0, 10.0, 100.0])
    for embed in (*OURS[:2], with_tf_custom_gradient, tfp.math.custom_gradient):
        _, (dx,) = tape_vjp(lambda x, embed=embed: embed(x**2, 2 * x, x), [x], dy)
        assert dx.numpy().tolist() == ([74, 148, 222] if embed is tfp.math.custom_gradient else [2, 40, 600])
    _, (dx,) = tape_vjp(lambda x: tfp_formula(x**2, [2 * x], [x]), [x], dy)
    assert dx.numpy().tolist() == [74, 148, 222]


def test_value_at_infinity(tfp):
    fx, gx, x = tf.constant([1.0, 0.5]), tf.constant([0.0, 0.25]), tf.constant([np.inf, 1.0])
    for embed in (*OURS, with_tf_custom_gradient):
        assert embed(fx, gx, x).numpy().tolist() == [1.0, 0.5]
    np.testing.assert_array_equal(tfp.math.custom_gradient(fx, gx, x), [np.nan, np.nan])


def test_memory_of_the_value(tfp):
    fx = tf.random.stateless_normal([1000], [1, 2])
    for embed in (*OURS, with_tf_custom_gradient):
        assert address(embed(fx, fx, fx)) == address(fx)
    assert address(tfp.math.custom_gradient(fx, fx, fx)) != address(fx)


def test_keyword_arguments_and_forward_mode():
    """In eager mode. The derivative is ten times the square's."""
    x, t = tf.constant([1.0, 2.0]), tf.constant([1.0, 10.0])
    for custom_gradient, factor in ((cg.custom_gradient, 20), (tf.custom_gradient, 2)):
        square = custom_gradient(lambda x: (x**2, lambda dy: 20.0 * dy * x))
        _, (dx,) = tape_vjp(lambda x, square=square: square(x=x), [x], t)
        with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
            y = square(x)
        assert dx.numpy().tolist() == accumulator.jvp(y).numpy().tolist() == [factor, 20 * factor]
    with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
        y = tfp_formula(x**2, [20.0 * x], [x])
    assert accumulator.jvp(y).numpy().tolist() == [210, 210]


def test_the_mask_of_recomputed_dropout():
    x, dy = tf.ones([100]), tf.random.stateless_normal([100], [1, 2])
    for recompute_grad, same in ((cg.recompute_grad, True), (tf.recompute_grad, False)):
        y, (dx,) = tape_vjp(recompute_grad(lambda x: tf.nn.dropout(x, 0.5)), [x], dy)
        assert np.array_equal(dx, dy * y) == same


def in_a_loop(square):
    return lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, square(x)), (0, x))[1]


def in_a_branch(square):
    return lambda x: tf.cond(x[0] > 0, lambda: square(x), lambda: x)


SQUARES = {
    "embed": lambda x: cg.embed_gradient(x**2, 20.0 * x, x),
    "tfp": lambda x: tfp_formula(x**2, [20.0 * x], [x]),
    "custom": tf.custom_gradient(lambda x: (x**2, lambda dy: 20.0 * dy * x)),
}
# What is around a square, its right gradient, and the exception of tf.custom_gradient.
PLACES = {
    "loop": (in_a_loop, [400.0, 32000.0], "TypeError"),
    "cond": (in_a_branch, [20.0, 400.0], "AssertionError"),
}


def test_loops_and_conds_of_a_saved_model_in_a_fresh_process(tmp_path):
    """The derivative is ten times the square's: 20 x, and 20 x**2 * 20 x in a loop of two."""
    x, dy = np.array([[1.0, 2.0], [1.0, 10.0]], np.float32)
    model = tf.Module()
    names = [f"{name}_{kind}" for name in SQUARES for kind in PLACES]
    for name in names:
        square, kind = name.split("_")
        specs = [tf.TensorSpec([2], tf.float32)]
        setattr(model, name, tf.function(PLACES[kind][0](SQUARES[square]), input_signature=specs))
    found = run_in_a_fresh_process(model, {name: ([x], dy) for name in names}, tmp_path)
    for kind, (_, right, exception) in PLACES.items():
        assert found[f"custom_{kind}"].startswith(f"{exception}: ")
        for name in ("embed", "tfp"):
            _, (here,) = tape_vjp(getattr(model, f"{name}_{kind}"), [tf.constant(x)], tf.constant(dy))
            np.testing.assert_array_equal(found[f"{name}_{kind}"][1][0], here)
            # TFP's is as wrong as elsewhere, but it exists.
            assert np.array_equal(here, right) == (name == "embed")


def test_gradient_of_the_wrong_shape(tfp):
    x, gx = tf.constant([1.0, 2.0]), tf.ones([7, 1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="fx must have shape"):
        cg.embed_gradient(x, gx, x)
    _, (silent,) = tape_vjp(lambda x: with_tf_custom_gradient(x, gx, x), [x], tf.ones([2]))
    assert silent.shape == [7, 2]
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have the same shape"):
        tfp.math.custom_gradient(x, gx, x)


def test_entries_in_the_gradient_registry(tfp):
    for embed in (with_tf_custom_gradient, cg.embed_gradient, tfp.math.custom_gradient):
        before = len(ops.gradient_registry.list())
        for size in range(1, 6):
            function = tf.function(lambda x, embed=embed: embed(x**2, 2 * x, x))
            function.get_concrete_function(tf.TensorSpec([size]))
        assert len(ops.gradient_registry.list()) - before == (5 if embed is with_tf_custom_gradient else 0)
