"""What docs/migrating.md says about TFP and TensorFlow and no other test checks, compared with this library."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import vjp
from ..support.tensors import address

X, DY = tf.constant([1.0, 2.0]), tf.constant([1.0, 10.0])


def gradient(function, x=X, dy=DY):
    return vjp(lambda: function(x), x, dy)[1]


def traced(function, x=X, dy=DY):
    return tf.function(gradient, autograph=False)(function, x, dy)


BOTH = gradient, traced


@pytest.mark.parametrize(
    ("api", "options"),
    [(cg.compat.bayesflow, {"axis": ()}), (cg.compat.tfp_math, {})],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_signatures_are_those_of_the_originals_and_the_buffer_is_shared(api, options):
    parameters = inspect.signature(api.custom_gradient).parameters
    assert list(parameters)[:3] == ["fx", "gx", "x"]
    defaults = {name: parameter.default for name, parameter in list(parameters.items())[3:]}
    assert defaults == options | {"fx_gx_manually_stopped": False, "name": None}
    fx, x = tf.ones([100]), tf.ones([100, 3])
    of_rows = (fx, fx, x, -1) if options else (fx, x, x)
    for args in ((fx, fx, fx), of_rows):
        assert address(api.custom_gradient(*args)) == address(fx)


def square(x):
    """Its gradient is ten times the derivative of its operations."""
    return x**2, lambda dy: 20.0 * dy * x


# The messages have the errors of this library.


def test_tensorflow_ignores_the_gradient_of_keyword_arguments():
    theirs, ours = (lambda x, api=api: api.custom_gradient(square)(x=x) for api in (tf, cg))
    np.testing.assert_allclose(gradient(theirs), 2 * X * DY)
    with pytest.raises(ValueError, match="supports keywords arguments only when eager execution is enabled"):
        traced(theirs)
    for run in BOTH:
        np.testing.assert_allclose(run(ours), 20 * X * DY)


def test_keyword_arguments_count_among_the_gradients():
    def call(api, *second):
        scaled = api.custom_gradient(lambda x, scale: (x * scale, lambda dy: (5.0 * dy, *second)))
        return lambda x: scaled(x, scale=tf.constant(2.0))

    np.testing.assert_allclose(gradient(call(tf)), 5 * DY)
    for run in BOTH:
        np.testing.assert_allclose(run(call(cg, None)), 5 * DY)


def test_tensorflow_ignores_the_gradient_in_forward_mode():
    for api, slope in (tf, 2.0), (cg, 20.0):
        with tf.autodiff.ForwardAccumulator(X, DY) as accumulator:
            y = api.custom_gradient(square)(X)
        np.testing.assert_allclose(accumulator.jvp(y), slope * X * DY)


def test_tensorflow_accepts_gradients_of_the_wrong_shape():
    wrong = tf.custom_gradient(lambda x: (x, lambda dy: tf.ones([7, 1])))
    total = tf.grad_pass_through(lambda x: tf.reduce_sum(x))
    for run in BOTH:
        assert run(lambda x: wrong(x)).shape == [7, 1]
        assert run(lambda x: total(x), dy=None).shape == []


def test_recompute_grad_has_second_derivatives_unlike_that_of_tensorflow():
    theirs, ours = (
        recompute(lambda x, scale=1.0: x**3 * scale) for recompute in (tf.recompute_grad, cg.recompute_grad)
    )
    with pytest.raises(NotImplementedError, match="recompute_grad tried to transpose grad"):
        traced(lambda x: gradient(theirs, x))
    np.testing.assert_allclose(traced(lambda x: gradient(ours, x)), 6 * X * DY**2)
    scale = tf.constant(1.0)
    assert gradient(lambda scale: theirs(X, scale=scale), scale) is None
    np.testing.assert_allclose(gradient(lambda scale: ours(X, scale=scale), scale), 81.0)


def test_tensorflow_does_not_pass_a_gradient_to_a_keyword_argument():
    theirs, ours = (lambda x, api=api: api.grad_pass_through(tf.round)(x=x) for api in (tf, cg))
    assert gradient(theirs) is None
    for run in BOTH:
        np.testing.assert_allclose(run(ours), DY)
