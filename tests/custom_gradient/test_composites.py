"""Objects that stand for a Tensor as arguments; cases.py has composite tensors and extension types."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, gradients
from ..support.tensors import pairs
from .cases import Batchable, Masked, to_tensor, with_rule

X, Y, DY = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0]), tf.constant([1.0, 10.0])


def test_a_gradient_of_another_type_is_an_error():
    function = cg.custom_gradient(lambda m: (to_tensor(m), lambda dy: Batchable(dy, dy, m.mask)))
    with pytest.raises(TypeError, match=r"must return a Masked as the gradient of 'm', got a Batchable\.$"):
        gradients("eager", lambda x: function(Masked(x, Y, tf.constant([True, False]))), [X], DY)


@pytest.fixture
def tfp():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Its import brings one about distutils.
        return pytest.importorskip("tensorflow_probability")


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
def test_the_gradient_of_a_transformed_variable_goes_on_to_its_variable(name, mode, tfp):
    transformed = tfp.util.TransformedVariable([1.0, 2.0], tfp.bijectors.Exp())
    (variable,) = transformed.trainable_variables
    found = gradients(mode, lambda x, _: OF_TRANSFORMED[name](x, transformed), [X, variable], DY)
    # The derivative of exp is its value, the transformed variable.
    np.testing.assert_allclose(found, [7.0 * DY, 5.0 * DY * [1.0, 2.0]], rtol=1e-6)


def test_a_distribution_and_a_dataset_may_be_arguments(tfp, gradient):
    distribution, dataset = tfp.distributions.Normal(X, 1.0), tf.data.Dataset.range(3)
    function = cg.custom_gradient(lambda x, d, dataset: (x * d.mean(), lambda dy: (7.0 * dy, None, None)))
    (dx,) = gradient(lambda x: function(x, distribution, dataset), [X], DY)
    np.testing.assert_allclose(dx, 7.0 * DY)
