"""Paths on which gradients flow or are stopped, with and without fx_gx_manually_stopped."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import VJP_MODES, vjp
from ..support.tensors import pairs, random_array

pytestmark = pytest.mark.core


@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_flows_into_fx_and_gx_unless_manually_stopped_which_lets_dy_into_fx_and_zeros_into_gx(
    stopped, mode, rng
):
    """fx and gx depend on their own variables, a and b."""
    a, b, x, dy = (random_array(rng, [4]) for _ in range(4))
    _, (da, db, dx) = mode(
        lambda a, b, x: cg.embed_gradient(tf.exp(a), tf.sin(b), x, fx_gx_manually_stopped=stopped), [a, b, x], dy
    )
    np.testing.assert_allclose(dx, dy * np.sin(b))
    if stopped:
        np.testing.assert_allclose(da, dy * np.exp(a))
        np.testing.assert_array_equal(db, np.zeros(4))
    else:
        assert da is db is None


@pytest.mark.parametrize("run", [lambda f: f, tf.function], ids=["eager", "traced"])
def test_nothing_flows_into_fx_and_gx_where_x_is_not_watched(run, rng):
    a, dy = (tf.constant(random_array(rng, [4])) for _ in range(2))
    for x in tf.constant(random_array(rng, [4])), tf.constant(1.5, tf.float64):

        def derivatives(x=x):
            with tf.autodiff.ForwardAccumulator(a, dy) as accumulator:
                h, gradient = vjp(lambda: cg.embed_gradient(tf.exp(a), tf.sin(a), x), a)
            return accumulator.jvp(h, unconnected_gradients="zero"), tf.zeros(4) if gradient is None else gradient

        for derivative in run(derivatives)():
            np.testing.assert_array_equal(derivative, np.zeros(4))


@pytest.mark.parametrize(("where", "mode"), pairs(["x", "dy", "gx"], VJP_MODES, quick=3))
def test_the_gradient_of_gx_is_exactly_zero_even_where_numbers_are_not_finite(where, mode):
    numbers = {"x": np.array([1.0, 2.0, 4.0]), "dy": np.array([3.0, -5.0, 7.0]), "gx": np.array([0.5, 7.0, -1.0])}
    numbers[where] = np.array([np.inf, -np.inf, np.nan])
    _, (dgx, _) = VJP_MODES[mode](
        lambda gx, x: cg.embed_gradient(np.ones(3), gx, x, fx_gx_manually_stopped=True),
        [numbers["gx"], numbers["x"]],
        numbers["dy"],
    )
    np.testing.assert_array_equal(dgx, np.zeros(3))


def test_x_twice_a_side_variable_and_fx_that_is_x(mode, rng):
    """x collects both gradients; y is a constant, though a gx depends on it."""
    x, y, gx, dy = (random_array(rng, [3]) for _ in range(4))
    value, (dx, d_side) = mode(lambda x, y: cg.embed_gradient(x, [y, gx], [x, x]), [x, y], dy)
    np.testing.assert_array_equal(value, x)
    np.testing.assert_allclose(dx, dy * (y + gx))
    assert d_side is None


def test_a_forward_pass_adds_one_op_and_no_gradient_op():
    traced = tf.function(lambda x: cg.embed_gradient(x, x, x)).get_concrete_function(tf.TensorSpec([5]))
    types = [op.type for op in traced.graph.get_operations()]
    assert sorted(types) == ["CustomGradientEmbed", "Identity", "Placeholder"]  # Identity: the function's return.


def test_the_eager_tape_computes_only_the_gradients_that_are_used(monkeypatch):
    from tf_cg_ops._src.core import library

    computed = []
    original = library.custom_gradient_embed_grad

    def counting(*args, **kwargs):
        computed.append(kwargs["wrt"])
        return original(*args, **kwargs)

    monkeypatch.setattr(library, "custom_gradient_embed_grad", counting)
    a, b, g = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0]), tf.constant([5.0, 6.0])
    with tf.GradientTape() as tape:
        tape.watch(b)
        h = cg.embed_gradient(a, [g, g], [a, b], fx_gx_manually_stopped=True)
    db = tape.gradient(h, b, output_gradients=tf.constant([1.0, 10.0]))
    np.testing.assert_array_equal(db, [5.0, 60.0])
    assert computed == ["x"]
