"""Composite tensors, extension types, and objects that stand for a Tensor, as arguments and results."""

import types
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, gradients
from ..support.tensors import pairs

X, Y, DY = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0]), tf.constant([1.0, 10.0])


def test_ragged_tensors(gradient):
    @cg.custom_gradient
    def function(ragged):
        def grad_fn(dy):
            assert isinstance(dy, tf.RaggedTensor)
            return dy.with_values(30.0 * dy.values)

        return ragged * 2.0, grad_fn

    def run(values):
        return function(tf.RaggedTensor.from_row_lengths(values, [2, 0, 1])).values

    (dx,) = gradient(run, [np.array([1.0, 2.0, 3.0])], np.array([1.0, 10.0, 100.0]))
    np.testing.assert_allclose(dx, [30.0, 300.0, 3000.0])


def test_sparse_tensors(gradient):
    @cg.custom_gradient
    def function(sparse, x):
        def grad_fn(dy):
            return tf.SparseTensor(sparse.indices, 40.0 * tf.gather(dy, [0, 1]), sparse.dense_shape), None

        return tf.sparse.to_dense(sparse)[:2] * x, grad_fn

    def run(values):
        return function(tf.SparseTensor([[0], [1]], values, [3]), Y)

    (dx,) = gradient(run, [X], DY)
    np.testing.assert_allclose(dx, 40 * DY)


def test_structures_that_only_tf_nest_knows(gradient):
    @cg.custom_gradient
    def function(tree):
        return tree["a"] * tree["b"], lambda dy: (3.0 * dy, 5.0 * dy)

    da, db = gradient(lambda a, b: function(types.MappingProxyType({"a": a, "b": b})), [X, Y], DY)
    np.testing.assert_allclose(da, 3 * DY)
    np.testing.assert_allclose(db, 5 * DY)


MASK = tf.constant([True, False])


class Masked(tf.experimental.ExtensionType):
    values: tf.Tensor
    weights: tf.Tensor
    mask: tf.Tensor


class Batchable(tf.experimental.BatchableExtensionType):
    values: tf.Tensor
    weights: tf.Tensor
    mask: tf.Tensor


KINDS = {"extension": Masked, "batchable": Batchable}


def with_rule(function, rule):
    decorated = cg.custom_jvp(function)
    decorated.defjvp(rule)
    return decorated


def to_tensor(m):
    return m.values * m.weights


def doubled(m):
    return type(m)(2.0 * m.values, 3.0 * m.weights, m.mask)


def times(m, first, second):
    return type(m)(first * m.values, second * m.weights, m.mask)


def scaled(m, dy):
    return type(m)(7.0 * dy, 5.0 * dy, m.mask)


TO_TENSORS = {
    "custom_gradient": cg.custom_gradient(lambda m: (to_tensor(m), lambda dy: scaled(m, dy))),
    "in_a_structure": lambda m: cg.custom_gradient(
        lambda d: (to_tensor(d["a"][0]) * d["b"], lambda dy: {"b": None, "a": [scaled(d["a"][0], dy)]})
    )({"a": [m], "b": tf.ones([2])}),
    "custom_vjp": cg.custom_vjp(lambda m: (to_tensor(m), m), scaled),
    "custom_jvp": with_rule(to_tensor, lambda p, t: (to_tensor(*p), 7.0 * t[0].values + 5.0 * t[0].weights)),
}


@pytest.mark.parametrize(("name", "mode"), pairs(TO_TENSORS, RUNS))
@pytest.mark.parametrize("kind", KINDS)
def test_an_argument_has_gradients_for_its_parts(name, kind, mode):
    found = gradients(mode, lambda x, y: TO_TENSORS[name](KINDS[kind](x, y, MASK)), [X, Y], DY)
    np.testing.assert_allclose(found, [7.0 * DY, 5.0 * DY])


TO_EXTENSIONS = {
    "custom_gradient": (cg.custom_gradient(lambda m: (doubled(m), lambda dm: times(dm, 7.0, 5.0))), 7.0, 5.0),
    "grad_pass_through": (cg.grad_pass_through(doubled), 1.0, 1.0),
    "custom_vjp": (cg.custom_vjp(lambda m: (doubled(m), None), lambda r, dm: times(dm, 7.0, 5.0)), 7.0, 5.0),
    "custom_jvp": (with_rule(doubled, lambda p, t: (doubled(*p), times(t[0], 7.0, 5.0))), 7.0, 5.0),
}


@pytest.mark.parametrize(("name", "mode"), pairs(TO_EXTENSIONS, RUNS))
@pytest.mark.parametrize("kind", KINDS)
def test_a_result_has_upstream_gradients_for_its_parts(name, kind, mode):
    function, first, second = TO_EXTENSIONS[name]

    def parts(x, y):
        result = function(KINDS[kind](x, y, MASK))
        assert type(result) is KINDS[kind]
        return [result.values, result.weights]

    found = gradients(mode, parts, [X, Y], [DY, 100.0 * DY])
    np.testing.assert_allclose(found, [first * DY, 100.0 * second * DY])


@pytest.mark.parametrize("mode", RUNS)
def test_tangents_of_the_parts(mode):
    function, first, second = TO_EXTENSIONS["custom_jvp"]

    def run():
        with tf.autodiff.ForwardAccumulator([X, Y], [DY, 100.0 * DY]) as accumulator:
            result = function(Masked(X, Y, MASK))
        return [accumulator.jvp(result.values), accumulator.jvp(result.weights)]

    np.testing.assert_allclose(RUNS[mode](run)(), [first * DY, 100.0 * second * DY])


@pytest.mark.parametrize("mode", RUNS)
def test_an_unused_part_does_not_hide_the_other(mode):
    """With materialize_grads=False a whole result can have None as its upstream gradient, but a part of it cannot."""
    function = cg.custom_vjp(lambda m: (doubled(m), None), lambda r, dm: times(dm, 7.0, 5.0), materialize_grads=False)

    found = gradients(mode, lambda x, y: function(Masked(x, y, MASK)).values, [X, Y], DY)
    np.testing.assert_allclose(found, [7.0 * DY, 0.0 * DY])


@pytest.mark.parametrize("mode", RUNS)
def test_none_is_the_gradient_of_all_parts(mode):
    function = cg.custom_gradient(lambda m, x: (to_tensor(m) * x, lambda dy: (None, 7.0 * dy)))
    np.testing.assert_allclose(function(Masked(X, Y, MASK), X), X**2 * Y)  # Without a tape.
    dx, dy = gradients(mode, lambda x, y: function(Masked(x, y, MASK), x), [X, Y], DY)
    np.testing.assert_allclose(dx, 7.0 * DY)
    assert dy is None


def test_a_gradient_of_another_type_is_an_error():
    function = cg.custom_gradient(lambda m: (to_tensor(m), lambda dy: Batchable(dy, dy, m.mask)))
    with pytest.raises(TypeError, match=r"must return a Masked as the gradient of 'm', got a Batchable\.$"):
        gradients("eager", lambda x: function(Masked(x, Y, MASK)), [X], DY)


@pytest.fixture
def tfp():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Its import brings one about distutils.
        return pytest.importorskip("tensorflow_probability")


@pytest.fixture
def transformed(tfp):
    return tfp.util.TransformedVariable([1.0, 2.0], tfp.bijectors.Exp())


OF_TRANSFORMED = {
    "custom_gradient": cg.custom_gradient(lambda x, t: (x * t, lambda dy: (7.0 * dy, 5.0 * dy))),
    "custom_vjp": cg.custom_vjp(lambda x, t: (x * t, None), lambda r, dy: (7.0 * dy, 5.0 * dy)),
    "custom_jvp": with_rule(lambda x, t: x * t, lambda p, t: (p[0], 7.0 * t[0] + 5.0 * t[1])),
    "grad_pass_through": lambda x, t: sum(
        k * y for k, y in zip((7.0, 5.0), cg.grad_pass_through(lambda x, t: [x, 2.0 * t])(x, t), strict=True)
    ),
    "only_returned": lambda x, t: sum(
        k * y
        for k, y in zip((1.0, 5.0), cg.custom_gradient(lambda x: ([x, t], lambda dx, dt: 7.0 * dx))(x), strict=True)
    ),
}


@pytest.mark.parametrize(("name", "mode"), pairs(OF_TRANSFORMED, RUNS))
def test_the_gradient_of_a_transformed_variable_goes_on_to_its_variable(name, transformed, mode):
    (variable,) = transformed.trainable_variables
    found = gradients(mode, lambda x, _: OF_TRANSFORMED[name](x, transformed), [X, variable], DY)
    # The derivative of exp is its value, the transformed variable.
    np.testing.assert_allclose(found, [7.0 * DY, 5.0 * DY * [1.0, 2.0]], rtol=1e-6)


def test_a_distribution_and_a_dataset_may_be_arguments(tfp, gradient):
    distribution, dataset = tfp.distributions.Normal(X, 1.0), tf.data.Dataset.range(3)
    function = cg.custom_gradient(lambda x, d, dataset: (x * d.mean(), lambda dy: (7.0 * dy, None, None)))
    (dx,) = gradient(lambda x: function(x, distribution, dataset), [X], DY)
    np.testing.assert_allclose(dx, 7.0 * DY)


def test_a_loaded_model_has_the_gradients_of_the_parts(tmp_path, gradient):
    @tf.function(input_signature=[tf.TensorSpec([2])] * 2)
    def function(x, y):
        result = TO_EXTENSIONS["custom_gradient"][0](Masked(x, y, MASK))
        return result.values + 10.0 * result.weights

    model = tf.Module()
    model.f = function
    tf.saved_model.save(model, tmp_path)
    np.testing.assert_allclose(gradient(tf.saved_model.load(tmp_path).f, [X, Y], DY), [7.0 * DY, 50.0 * DY])
