"""reverse_gradient, scale_gradient and clip_gradient: what graph/test_modes.py and test_edges.py do not test."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import vjp
from ..support.tensors import DTYPES, address, assert_gradient_close, bits, pairs, random_array

pytestmark = pytest.mark.core


def wide(array):
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (2, 3)])
def test_a_factor_for_each_element(shape, rng, gradient):
    x, dy, factor = rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), rng.normal(size=shape)
    (dx,) = gradient(lambda x: cg.scale_gradient(x, tf.constant(factor)), [x], tf.constant(dy))
    np.testing.assert_allclose(dx, factor * dy, rtol=1e-15)


X, DY = tf.constant([1.0, 2.0, 3.0]), tf.constant([1.0, 10.0, -100.0])
# A function of x and of a number, and its gradient.
NUMBERS = {
    "reverse_gradient": (cg.reverse_gradient, lambda f: -f * DY),
    "scale_gradient": (cg.scale_gradient, lambda f: f * DY),
    "value": (lambda x, f: cg.clip_gradient(x, value=f), lambda f: np.clip(DY, -f, f)),
    "norm": (lambda x, f: cg.clip_gradient(x, norm=f), lambda f: shrink(DY, np.linalg.norm(DY), f)),
    "global_norm": (lambda x, f: cg.clip_gradient(x, global_norm=f), lambda f: shrink(DY, np.linalg.norm(DY), f)),
}


def shrink(dy, norm, limit):
    return dy * np.where(norm > limit, limit / np.where(norm > limit, norm, 1), 1)


@pytest.mark.parametrize("name", NUMBERS)
def test_the_value_is_the_input_bit_for_bit_and_in_its_memory(name):
    x = tf.constant([-0.0, np.inf, np.nan, 1e-42])
    y = NUMBERS[name][0](x, 3.0)
    assert address(y) == address(x)
    np.testing.assert_array_equal(bits(y.numpy()), bits(x.numpy()))


@pytest.mark.parametrize("name", NUMBERS)
def test_a_variable_or_a_tensor_changes_without_a_new_trace(name):
    """It has no gradient, and counts as it was when the value was computed."""
    (function, expected), variable, traces = NUMBERS[name], tf.Variable(2.0), []

    @tf.function
    def run(factor, before):
        traces.append(1)
        variable.assign(before)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([X, factor])
            of_variable, of_tensor = function(X, variable), function(X, factor)
        variable.assign(1000.0)
        unused = tape.gradient(of_variable, variable), tape.gradient(of_tensor, factor)
        return [tape.gradient(y, X, output_gradients=DY) for y in (of_variable, of_tensor)], unused

    for number in (2.0, 0.5, 1000.0):
        found, unused = run(tf.constant(number, tf.float64), tf.constant(number))
        assert unused == (None, None)
        for dx in found:
            np.testing.assert_allclose(dx, expected(number), rtol=1e-6)
    assert len(traces) == 1


@pytest.mark.parametrize(("dtype", "axis"), pairs(DTYPES, [None, -1, 0, (0, 1)]))
def test_clipping_by_norm(axis, dtype, rng, gradient):
    x, dy = random_array(rng, (4, 3), dtype), random_array(rng, (4, 3), dtype)
    dy[1] = 0  # A row without a norm.
    norm = np.sqrt(np.sum(np.abs(wide(dy)) ** 2, axis=axis, keepdims=True))
    for limit in (0.0, 0.5, 1.5, 100.0):
        (dx,) = gradient(lambda x, limit=limit: cg.clip_gradient(x, norm=limit, axis=axis), [x], tf.constant(dy))
        assert_gradient_close(dx, shrink(wide(dy), norm, limit), dtype)


@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_clipping_by_global_norm_of_a_structure_of_dtypes(limit, rng, gradient):
    dtypes = [tf.float16, tf.float32, tf.float64, tf.complex64]
    xs = [random_array(rng, shape, dtype) for shape, dtype in zip([(2,), (), (3, 1), (2,)], dtypes, strict=True)]
    dys = [random_array(rng, np.shape(x), dtype) for x, dtype in zip(xs, dtypes, strict=True)]

    def function(*xs):
        y = cg.clip_gradient({"a": list(xs[:2]), "b": (xs[2], xs[3])}, global_norm=limit)
        assert isinstance(y["b"], tuple)
        return [*y["a"], *y["b"]]

    dxs = gradient(function, xs, [tf.constant(dy) for dy in dys])
    norm = np.sqrt(sum(np.sum(np.abs(wide(dy)) ** 2) for dy in dys))
    for dx, dy, dtype in zip(dxs, dys, dtypes, strict=True):
        assert_gradient_close(dx, shrink(wide(dy), norm, limit), dtype)


def test_second_derivatives_of_clipping_are_finite_at_zero_and_right_elsewhere():
    """d(n * dy / |dy|) has the projection away from dy as its Jacobian."""
    x = tf.ones([3], tf.float64)
    for dy, limit in ((np.zeros(3), 1.0), (np.array([3.0, -4.0, 0.5]), 2.0)):
        upstream, norm = tf.constant(dy), np.linalg.norm(dy)
        with tf.GradientTape() as outer:
            outer.watch(upstream)
            _, dx = vjp(lambda limit=limit: cg.clip_gradient(x, norm=limit), x, upstream)
        second = outer.gradient(dx, upstream, output_gradients=tf.constant([1.0, 10.0, -3.0], tf.float64))
        jacobian = limit / norm * (np.eye(3) - np.outer(dy, dy) / norm**2) if norm else np.eye(3)
        np.testing.assert_allclose(second, [1.0, 10.0, -3.0] @ jacobian, rtol=1e-12)


def test_sparse_upstreams_are_clipped(gradient):
    (dx,) = gradient(lambda x: tf.gather(cg.clip_gradient(x, value=2.0), [2, 2]), [np.ones(3)], np.array([1.5, 5.0]))
    np.testing.assert_allclose(dx, [0.0, 0.0, 2.0])


SCALES = {
    "number": lambda: 4.0,
    "tensor": lambda: tf.constant(4.0, tf.float16),
    "variable": lambda: tf.Variable(4.0, trainable=False),
    "function": lambda: lambda: tf.Variable(4.0, trainable=False) if tf.executing_eagerly() else 4,
}
LIMITS = {
    "value": ({"value": 0.5}, lambda dy: np.clip(dy, -0.5, 0.5)),
    "norm": ({"norm": 5.0}, lambda dy: shrink(dy, np.linalg.norm(dy), 5.0)),
    "norm of columns": ({"norm": 2.0, "axis": [0]}, lambda dy: shrink(dy, np.linalg.norm(dy, axis=0), 2.0)),
    "global norm": ({"global_norm": 5.0}, lambda dy: shrink(dy, np.linalg.norm(dy), 5.0)),
}


@pytest.mark.parametrize(("name", "kind"), pairs(LIMITS, SCALES))
def test_a_limit_under_loss_scaling_is_for_the_gradient_divided_by_the_scale(name, kind, rng, gradient):
    (limit, clipped), scale = LIMITS[name], SCALES[kind]()
    x, dy = rng.normal(size=(3, 2)), rng.normal(size=(3, 2)) * 3
    (dx,) = gradient(lambda x: cg.clip_gradient(x, **limit, loss_scale=scale), [x], tf.constant(4 * dy))
    np.testing.assert_allclose(dx, 4 * clipped(dy), rtol=1e-12)


@pytest.mark.parametrize("name", LIMITS)
def test_an_upstream_that_is_not_finite_is_not_hidden(name, gradient):
    """Under loss scaling, an overflow stays one, so that the optimizer can skip the step."""
    limit, _ = LIMITS[name]
    dtypes = [np.float16] if name == "value" else [np.float16, np.complex64]
    for scale, bad, dtype in itertools.product([None, 2.0**20], [np.inf, -np.inf, np.nan], dtypes):
        dy = np.array([[1.0], [bad], [-3.0]], dtype)
        (dx,) = gradient(lambda x, s=scale: cg.clip_gradient(x, **limit, loss_scale=s), [np.ones_like(dy)], dy)
        if name == "value" and scale is None and not np.isnan(bad):
            assert dx[1] == np.sign(bad) * 0.5
        else:
            assert not np.isfinite(dx[1])


def test_the_loss_scale_is_read_when_the_value_is_computed():
    scale = tf.Variable(2.0, trainable=False)
    seen = []
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = cg.clip_gradient(X, value=1.0, loss_scale=scale)
        y = cg.watch_gradient(y, "y", callback=seen.append, loss_scale=scale)
    scale.assign(1000.0)
    np.testing.assert_allclose(tape.gradient(y, X, output_gradients=DY), np.clip(DY, -2, 2))
    np.testing.assert_allclose(seen, [DY / 2])


@pytest.mark.parametrize("options", [{}, {"axis": -1}], ids=str)
@pytest.mark.parametrize(("size", "norm"), [(1e20, 1.0), (5e37, 1.0), (1e-20, 1e-25)])
def test_squares_of_huge_and_tiny_gradients_do_not_overflow(options, size, norm, gradient):
    """test_edges.py has the largest numbers of each dtype."""
    dy = np.float32([3 * size, 4 * size])
    for scale in (None, 1.0):
        function = functools.partial(cg.clip_gradient, norm=norm, loss_scale=scale, **options)
        (dx,) = gradient(function, [np.ones(2, np.float32)], dy)
        np.testing.assert_allclose(dx, np.array([0.6, 0.8]) * norm, rtol=1e-5)
