"""The rules of tf_cg_ops.rules, compared with NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

import tf_cg_ops as cg

from ..support.modes import RUNS, assert_all_close, tape_vjp
from ..support.tensors import pairs

X = np.array([-2.0, -0.5, 0.5, 3.0, 8.0])
DY = np.array([1.0, -10.0, 4.0, -3.0, 2.0])


def gradient(function, x=X, dy=DY):
    return tf.convert_to_tensor(tape_vjp(function, [tf.constant(x)], tf.constant(dy))[1][0])


POSITIVE = np.maximum(DY, 0.0)
ACTIVATIONS = {
    "Relu": (tf.nn.relu, X > 0),
    "Relu6": (tf.nn.relu6, (X > 0) & (X < 6)),
    "LeakyRelu": (lambda x: tf.nn.leaky_relu(x, 0.25), np.where(X > 0, 1.0, 0.25)),
    "Elu": (tf.nn.elu, np.where(X > 0, 1.0, np.exp(X))),
    "Softplus": (tf.nn.softplus, 1.0 / (1.0 + np.exp(-X))),
}


@pytest.mark.core
@pytest.mark.parametrize(("activation", "mode"), pairs(ACTIVATIONS, RUNS))
def test_rules_of_saliency_maps(activation, mode):
    function, derivative = ACTIVATIONS[activation]
    expected = {
        cg.rules.guided: POSITIVE * derivative,
        cg.rules.deconvnet: POSITIVE,
        cg.rules.pass_through: DY,
        cg.rules.zero: 0.0 * DY,
        cg.rules.built_in: DY * derivative,
        cg.rules.clip(value=2.0): np.clip(DY * derivative, -2.0, 2.0),
        cg.rules.clip(norm=2.0): DY * derivative * min(1.0, 2.0 / np.linalg.norm(DY * derivative)),
    }
    functions = [cg.override_gradients(function, {activation: rule}) for rule in expected]
    assert_all_close(RUNS[mode](lambda: [gradient(f) for f in functions])(), expected.values(), rtol=1e-12)


def test_rules_of_ops_with_several_inputs():
    low, high = tf.constant(-1.0, tf.float64), tf.constant(1.0, tf.float64)
    function = lambda x: tf.clip_by_value(x, low, high)  # noqa: E731
    overridden = cg.override_gradients(function, {"Minimum": cg.rules.pass_through, "Maximum": cg.rules.pass_through})
    np.testing.assert_array_equal(gradient(overridden), DY)
    table = tf.constant(np.eye(3))
    taken = cg.override_gradients(lambda t: tf.gather(t, [2, 0]), {"GatherV2": cg.rules.guided})
    dy = np.array([[1.0, -10.0, 3.0], [-2.0, 5.0, 6.0]])
    np.testing.assert_array_equal(gradient(taken, table, dy), np.maximum([dy[1], np.zeros(3), dy[0]], 0.0))
    both = cg.override_gradients(lambda x: tf.atan2(x, 2.0 * x), {"Atan2": cg.rules.zero})
    np.testing.assert_array_equal(gradient(both), 0.0 * X)


def test_a_limit_is_clipped_over_all_inputs_and_may_change():
    limit = tf.Variable(2.0)
    overridden = cg.override_gradients(lambda x: x * x[::-1], {"Mul": cg.rules.clip(global_norm=limit)})
    for value in (2.0, 50.0, 1000.0):
        limit.assign(value)
        dz = [DY * X[::-1], DY * X]
        factor = min(1.0, value / np.sqrt(np.sum(np.square(dz))))
        np.testing.assert_allclose(gradient(overridden), factor * (dz[0] + dz[1][::-1]), rtol=1e-6)


def _update(x, begin):
    """Writes a part of `x` elsewhere. `tf.slice` has this op as its gradient under XLA, and TensorFlow stops there."""
    update = gen_xla_ops.xla_dynamic_update_slice(input=x**3, update=tf.slice(x, [0, 0], [2, 3]) ** 4, indices=begin)
    return update**2


# The same with ops that have all derivatives. XLA moves a part that does not fit back into the tensor.
def _scattered(x, begin):
    begin = tf.minimum(begin, [2, 1])
    places = tf.stack(tf.meshgrid(tf.range(2) + begin[0], tf.range(3) + begin[1], indexing="ij"), -1)
    return tf.tensor_scatter_nd_update(x**3, places, x[:2, :3] ** 4) ** 2


SLICES = {
    "slice": (lambda x, begin: tf.slice(x, begin, [2, -1]) ** 5, lambda x, begin: x[1:3, 1:] ** 5, [1, 1]),
    "update": (_update, _scattered, [1, 1]),
    "update beyond the end": (_update, _scattered, [3, 3]),
}


@pytest.mark.parametrize(("case", "mode"), [*pairs(SLICES, ["jit"]), ("slice", "eager"), ("slice", "traced")])
def test_slices_have_all_derivatives_under_xla(case, mode):
    function, plain, begin = SLICES[case]
    x, begin = tf.constant(np.arange(1.0, 17.0).reshape(4, 4) / 8.0), tf.constant(begin)
    rules = dict.fromkeys(["Slice", "XlaDynamicUpdateSlice"], cg.rules.dynamic_slice)

    def derivative(function, order):
        if order == 0:
            return lambda x, begin: function(x, begin)
        return lambda x, begin: _weighted_gradient(derivative(function, order - 1), x, begin)

    overridden = cg.override_gradients(function, rules, unmatched="ignore")
    for order in (1, 2, 3):
        found = RUNS[mode](derivative(overridden, order))(x, begin)
        np.testing.assert_allclose(found, derivative(plain, order)(x, begin), rtol=1e-12)


def _weighted_gradient(function, x, begin):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x, begin)
    weights = tf.reshape(tf.range(1, tf.size(y) + 1), tf.shape(y))
    return tape.gradient(y, x, output_gradients=tf.cast(weights, x.dtype))
