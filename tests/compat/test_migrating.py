"""What docs/migrating.md says about TFP and TensorFlow and no other test checks, compared with this library."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import tape_vjp
from ..support.tensors import address

X, DY = tf.constant([1.0, 2.0]), tf.constant([1.0, 10.0])


def gradient(function, *sources, traced=False, upstream=DY):
    run = lambda *sources: tape_vjp(function, sources, upstream)[1]  # noqa: E731
    return (tf.function(run, autograph=False) if traced else run)(*sources)


@pytest.fixture(params=[False, True], ids=["eager", "traced"])
def traced(request):
    return request.param


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


def test_tensorflow_ignores_the_gradient_of_keyword_arguments(traced):
    theirs, ours = (lambda x, api=api: api.custom_gradient(square)(x=x) for api in (tf, cg))
    np.testing.assert_allclose(gradient(theirs, X)[0], 2 * X * DY)
    with pytest.raises(ValueError, match="supports keywords arguments only when eager execution is enabled"):
        gradient(theirs, X, traced=True)
    np.testing.assert_allclose(gradient(ours, X, traced=traced)[0], 20 * X * DY)


def test_keyword_arguments_count_among_the_gradients(traced):
    def call(api, *second):
        scaled = api.custom_gradient(lambda x, scale: (x * scale, lambda dy: (5.0 * dy, *second)))
        return lambda x: scaled(x, scale=tf.constant(2.0))

    np.testing.assert_allclose(gradient(call(tf), X)[0], 5 * DY)
    with pytest.raises(ValueError, match="returned 1 gradient; expected 2"):
        gradient(call(cg), X, traced=traced)
    np.testing.assert_allclose(gradient(call(cg, None), X, traced=traced)[0], 5 * DY)


def test_tensorflow_ignores_the_gradient_in_forward_mode():
    def tangent(function):
        with tf.autodiff.ForwardAccumulator(X, DY) as accumulator:
            y = function(X)
        return accumulator.jvp(y)

    np.testing.assert_allclose(tangent(tf.custom_gradient(square)), 2 * X * DY)
    np.testing.assert_allclose(tangent(cg.custom_gradient(square)), 20 * X * DY)


def test_tensorflow_accepts_a_gradient_of_the_wrong_shape(traced):
    def wrong(x):
        return x, lambda dy: tf.ones([7, 1])

    assert gradient(tf.custom_gradient(wrong), X, traced=traced)[0].shape == [7, 1]
    with pytest.raises(ValueError, match=r"a gradient of the wrong shape for 'x'; expected \(2,\), got \(7, 1\)"):
        gradient(cg.custom_gradient(wrong), X, traced=traced)


def test_recompute_grad_has_second_derivatives_unlike_that_of_tensorflow():
    theirs, ours = (
        recompute(lambda x, scale=1.0: x**3 * scale) for recompute in (tf.recompute_grad, cg.recompute_grad)
    )

    def second_derivative(function):
        return gradient(lambda x: gradient(function, x)[0], X, traced=True)[0]

    with pytest.raises(NotImplementedError, match="recompute_grad tried to transpose grad"):
        second_derivative(theirs)
    np.testing.assert_allclose(second_derivative(ours), 6 * X * DY**2)

    def by_scale(function):
        return gradient(lambda scale: function(X, scale=scale), tf.constant(1.0))[0]

    assert by_scale(theirs) is None
    np.testing.assert_allclose(by_scale(ours), 81.0)


def test_tensorflow_passes_a_gradient_of_another_shape_through(traced):
    def total(pass_through):
        return gradient(pass_through(lambda x: tf.reduce_sum(x)), X, traced=traced, upstream=None)[0]

    assert total(tf.grad_pass_through).shape == []
    with pytest.raises(ValueError, match=r"returned a value of the wrong shape for 'x'; expected \(2,\), got \(\)"):
        total(cg.grad_pass_through)
    assert gradient(lambda x: tf.grad_pass_through(tf.round)(x=x), X)[0] is None
    np.testing.assert_allclose(gradient(lambda x: cg.grad_pass_through(tf.round)(x=x), X, traced=traced)[0], DY)
