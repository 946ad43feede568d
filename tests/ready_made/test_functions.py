"""reverse_gradient, scale_gradient, clip_gradient and straight_through: what graph/test_modes.py does not test."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import MODES, vjp
from ..support.tensors import DTYPES, GRADIENT_RTOL, address, assert_gradient_close, bits, pairs, random_array

pytestmark = pytest.mark.core

REAL = [dtype for dtype in DTYPES if not dtype.is_complex]


def wide(array):
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


@pytest.mark.parametrize("shape", [(0,), (2, 3)])
def test_reversal_and_scaling_in_every_dtype(dtype, shape, rng, gradient):
    x, dy = random_array(rng, shape, dtype), tf.constant(random_array(rng, shape, dtype))
    for function, factor in ((cg.reverse_gradient, -0.25), (cg.scale_gradient, 0.25)):
        (dx,) = gradient(lambda x, f=function: f(x, 0.25), [x], dy)
        assert_gradient_close(dx, factor * wide(dy.numpy()), dtype)
        assert dx.dtype == dtype


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (2, 3)])
def test_a_factor_for_each_element(shape, rng, gradient):
    x, dy, factor = rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), rng.normal(size=shape)
    (dx,) = gradient(lambda x: cg.scale_gradient(x, tf.constant(factor)), [x], tf.constant(dy))
    np.testing.assert_allclose(dx, factor * dy, rtol=1e-15)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (cg.reverse_gradient, {"factor": 3.0}),
        (cg.scale_gradient, {"factor": 3.0}),
        (cg.clip_gradient, {"value": 1.0}),
        (cg.clip_gradient, {"norm": 1.0}),
        (cg.clip_gradient, {"global_norm": 1.0}),
    ],
)
def test_the_value_is_the_input_bit_for_bit_and_in_its_memory(function, arguments):
    x = tf.constant([-0.0, np.inf, np.nan, 1e-42])
    y = function(x, **arguments)
    assert address(y) == address(x)
    np.testing.assert_array_equal(bits(y.numpy()), bits(x.numpy()))


def traced_gradient(function, x, dy):
    """The gradient as a tf.function of the number that it reads, and how often it was traced."""
    traces = []

    @tf.function
    def run(factor):
        traces.append(1)
        return vjp(lambda: function(x, factor), x, dy)[1]

    return run, traces


X, DY = tf.constant([1.0, 2.0, 3.0]), tf.constant([1.0, 10.0, -100.0])

NUMBERS = {
    "reverse_gradient": (cg.reverse_gradient, lambda f: -f * DY),
    "scale_gradient": (cg.scale_gradient, lambda f: f * DY),
    "clip by value": (lambda x, f: cg.clip_gradient(x, value=f), lambda f: np.clip(DY, -f, f)),
    "clip by norm": (lambda x, f: cg.clip_gradient(x, norm=f), lambda f: DY * min(1, f / np.linalg.norm(DY))),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_variable_or_a_tensor_changes_without_a_new_trace(name):
    function, expected = NUMBERS[name]
    variable = tf.Variable(2.0, trainable=False)
    by_variable, traces_by_variable = traced_gradient(lambda x, _: function(x, variable), X, DY)
    by_tensor, traces_by_tensor = traced_gradient(function, X, DY)
    for number in (2.0, 0.5, 1000.0):
        variable.assign(number)
        np.testing.assert_allclose(by_variable(0.0), expected(number), rtol=1e-6)
        np.testing.assert_allclose(by_tensor(tf.constant(number, tf.float64)), expected(number), rtol=1e-6)
    assert len(traces_by_variable) == len(traces_by_tensor) == 1


@pytest.mark.parametrize("name", NUMBERS)
def test_the_number_itself_has_no_gradient(name):
    function, _ = NUMBERS[name]
    number = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        y = function(X, number)
    assert tape.gradient(y, number, output_gradients=DY) is None


def test_the_number_is_read_when_the_value_is_computed():
    number = tf.Variable(2.0, trainable=False)
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = cg.scale_gradient(cg.clip_gradient(X, value=number), number)
    number.assign(1000.0)
    np.testing.assert_allclose(tape.gradient(y, X, output_gradients=DY), np.clip(2 * DY, -2, 2))


def shrink(dy, norm, limit):
    return dy * np.where(norm > limit, limit / np.where(norm > limit, norm, 1), 1)


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


def test_norms_do_not_overflow_in_16_bits(gradient):
    dy = np.full([4], 3e4, np.float16)
    (dx,) = gradient(lambda x: cg.clip_gradient(x, norm=1.0), [np.ones([4], np.float16)], tf.constant(dy))
    np.testing.assert_allclose(dx, [0.5] * 4, rtol=GRADIENT_RTOL[tf.float16])


def test_an_upstream_that_is_not_finite_is_not_hidden(gradient):
    for limit in ({"norm": 1.0}, {"global_norm": 1.0}):
        (dx,) = gradient(lambda x, limit=limit: cg.clip_gradient(x, **limit), [np.ones(2)], np.array([np.inf, 1.0]))
        assert np.isnan(dx).any()
    (dx,) = gradient(lambda x: cg.clip_gradient(x, value=1.0), [np.ones(2)], np.array([np.nan, np.inf]))
    np.testing.assert_array_equal(dx, [np.nan, 1.0])


def test_second_derivatives_of_clipping_are_finite_at_zero_and_right_elsewhere():
    """d(n * dy / |dy|) has the projection away from dy as its Jacobian."""
    for dy, limit in ((np.zeros(3), 1.0), (np.array([3.0, -4.0, 0.5]), 2.0)):
        upstream = tf.constant(dy)
        with tf.GradientTape() as outer:
            outer.watch(upstream)
            with tf.GradientTape() as inner:
                x = tf.ones([3], tf.float64)
                inner.watch(x)
                y = cg.clip_gradient(x, norm=limit)
            dx = inner.gradient(y, x, output_gradients=upstream)
            weighted = tf.reduce_sum(dx * [1.0, 10.0, -3.0])
        second = outer.gradient(weighted, upstream)
        norm = np.linalg.norm(dy)
        jacobian = limit / norm * (np.eye(3) - np.outer(dy, dy) / norm**2) if norm else np.eye(3)
        np.testing.assert_allclose(second, [1.0, 10.0, -3.0] @ jacobian, rtol=1e-12)


def test_sparse_upstreams_are_clipped(gradient):
    (dx,) = gradient(lambda x: tf.gather(cg.clip_gradient(x, value=2.0), [2, 2]), [np.ones(3)], np.array([1.5, 5.0]))
    np.testing.assert_allclose(dx, [0.0, 0.0, 2.0])


SURROGATES = {
    "identity": lambda x, slope: np.ones_like(x),
    "hard_tanh": lambda x, slope: (np.abs(slope * x) <= 1).astype(float),
    "sigmoid": lambda x, slope: slope * np.exp(-slope * x) / (1 + np.exp(-slope * x)) ** 2,
    "fast_sigmoid": lambda x, slope: 1 / (1 + slope * np.abs(x)) ** 2,
}


@pytest.mark.parametrize("slope", [0.5, 1, 32.0])
@pytest.mark.parametrize(("surrogate", "dtype"), pairs(SURROGATES, REAL))
def test_surrogates(surrogate, slope, dtype, rng, gradient):
    x, dy = random_array(rng, (5,), dtype), random_array(rng, (5,), dtype)
    # The derivative of hard_tanh includes both ends.
    x[:2] = 1 / slope, -1 / slope
    function = cg.straight_through(tf.sign, surrogate, slope=slope)
    np.testing.assert_array_equal(function(tf.constant(x)).numpy().astype(float), np.sign(x.astype(float)))
    (dx,) = gradient(function, [x], tf.constant(dy))
    rounding = 20 if surrogate in ("sigmoid", "fast_sigmoid") else 1
    np.testing.assert_allclose(
        wide(dx.numpy()),
        SURROGATES[surrogate](wide(x), slope) * wide(dy),
        rtol=rounding * GRADIENT_RTOL[dtype],
        atol=GRADIENT_RTOL[dtype],
    )


def test_far_from_zero_the_derivative_of_the_sigmoid_is_not_rounded_to_zero(gradient):
    (dx,) = gradient(cg.straight_through(tf.sign, "sigmoid"), [np.array([-50.0, 50.0])], np.array([1.0, 10.0]))
    np.testing.assert_allclose(dx, np.exp(-50.0) * np.array([1, 10]), rtol=1e-12)


def cubed(x):
    return tf.square(x) * x


SURROGATE_FUNCTIONS = {
    "of TensorFlow": (tf.tanh, lambda x: 1 - np.tanh(x) ** 2, lambda x: -2 * np.tanh(x) * (1 - np.tanh(x) ** 2)),
    "of the user": (cubed, lambda x: 3 * x**2, lambda x: 6 * x),
    "not elementwise": (lambda x: x * tf.reduce_sum(x), None, None),
    "with a custom gradient": (
        cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: dy * tf.exp(x))),
        lambda x: np.exp(x),
        lambda x: np.exp(x),
    ),
}


@pytest.mark.core
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SURROGATE_FUNCTIONS)
def test_a_surrogate_function_is_differentiated(name, mode):
    """First and second derivatives come from the surrogate, the value from the function."""
    surrogate, first, second = SURROGATE_FUNCTIONS[name]
    x, dy = np.array([0.3, -0.8, 1.7]), np.array([1.0, 10.0, 100.0])
    value, dx, ddx = MODES[mode](cg.straight_through(tf.sign, surrogate), x, dy)
    np.testing.assert_array_equal(value, np.sign(x))
    if first is None:
        np.testing.assert_allclose(dx, dy * x.sum() + (dy * x).sum(), rtol=1e-12)
        np.testing.assert_allclose(ddx, (dy**2).sum() + dy * dy.sum(), rtol=1e-12)
    else:
        np.testing.assert_allclose(dx, dy * first(x), rtol=1e-12)
        np.testing.assert_allclose(ddx, dy**2 * second(x), rtol=1e-12)


def test_a_surrogate_function_in_forward_mode_and_in_a_loaded_model(tmp_path):
    function = cg.straight_through(tf.sign, tf.tanh)
    x, tangent = tf.constant([0.3, -0.8]), tf.constant([1.0, 10.0])
    expected = (1 - np.tanh(x) ** 2) * tangent
    for run in (function, tf.function(function)):
        with tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
            y = run(x)
        np.testing.assert_allclose(accumulator.jvp(y), expected, rtol=1e-5)
    module = tf.Module()
    module.run = tf.function(function, input_signature=[tf.TensorSpec([None])])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path)).run
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = loaded(x)
    np.testing.assert_allclose(tape.gradient(y, x, tangent), expected, rtol=1e-5)


@pytest.mark.parametrize("in_dtype", [lambda d: tf.cast(d, tf.float64), lambda d: tf.cast(d, tf.float16), np.asarray])
def test_a_derivative_of_another_floating_point_dtype_is_cast(in_dtype):
    x, dy = tf.constant([-1.0, 0.5]), tf.constant([3.0, 10.0])
    f = cg.straight_through(tf.sign, derivative=lambda x: in_dtype(x / 4))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    dx = tape.gradient(y, x, output_gradients=dy)
    assert dx.dtype == tf.float32
    np.testing.assert_array_equal(dx, [-0.75, 1.25])


def test_a_custom_derivative_and_a_value_of_another_dtype(gradient):
    spike = cg.straight_through(lambda v: v > 1.0, derivative=lambda v: 3.0 * v)
    x = np.array([0.5, 1.5])
    y = spike(tf.constant(x))
    assert y.dtype == tf.float64
    np.testing.assert_array_equal(y, [0.0, 1.0])
    (dx,) = gradient(spike, [x], np.array([1.0, 10.0]))
    np.testing.assert_allclose(dx, [1.5, 45.0])


def test_arrays_and_numbers_work_too():
    stepped = cg.straight_through(lambda v: v > 1.0, "hard_tanh")
    np.testing.assert_array_equal(stepped(np.array([0.5, 1.5])), [0.0, 1.0])
    assert stepped(1.5).numpy() == 1.0


WIDER = "'<lambda>' of 'sign' must return the shape of x, "
OTHER_SHAPES = {
    "a linear surrogate": (
        lambda: cg.straight_through(tf.sign, lambda x: x * tf.ones([1, 3], x.dtype)),
        f"straight_through: the surrogate {WIDER}[3,1], got [3,3]. If it is the derivative of a surrogate",
    ),
    "a surrogate": (
        lambda: cg.straight_through(tf.sign, lambda x: tf.tanh(x) * tf.ones([1, 3], x.dtype)),
        f"straight_through: the surrogate {WIDER}[3,1], got [3,3]. If it is the derivative of a surrogate",
    ),
    "a derivative of fewer elements": (
        lambda: cg.straight_through(tf.sign, derivative=lambda x: tf.reduce_max(x, -1)),
        f"straight_through: the derivative {WIDER}[3,1], got [3]. Return one number for each element of x.",
    ),
    "a derivative that is a scalar": (
        lambda: cg.straight_through(tf.sign, derivative=lambda x: tf.reduce_sum(x)),
        f"straight_through: the derivative {WIDER}[3,1], got []. Return one number for each element of x.",
    ),
    "a function": (
        lambda: cg.straight_through(lambda x: tf.reduce_max(x, 0, keepdims=True), "sigmoid"),
        "straight_through: '<lambda>' must return the shape of x, [3,1], got [1,1]. For a function that changes the shape, ",
    ),
}


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("name", OTHER_SHAPES)
def test_another_shape_that_is_only_known_at_run_time_is_an_error(name, jit_compile):
    make, message = OTHER_SHAPES[name]

    @tf.function(input_signature=[tf.TensorSpec(None)] * 2, jit_compile=jit_compile)
    def dx(x, dy):
        return tf.gradients(make()(x), x, dy)[0]

    dy = tf.constant([[7.0]] if name == "a function" else [[1.0], [10.0], [100.0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        dx(tf.constant([[1.0], [2.0], [3.0]]), dy)


@pytest.mark.parametrize("number", [2, 2.0, np.float32(2.0), np.int64(2)])
def test_a_derivative_can_be_one_number(number, gradient):
    (dx,) = gradient(cg.straight_through(tf.sign, derivative=lambda x: number), [np.ones([2])], np.array([1.0, 10.0]))
    np.testing.assert_array_equal(dx, [2.0, 20.0])


def test_the_surrogate_is_not_computed_without_a_gradient():
    calls = []
    cg.straight_through(tf.sign, lambda v: calls.append(1) or v)(X)
    cg.straight_through(tf.sign, derivative=lambda v: calls.append(1) or v)(X)
    assert not calls


def test_straight_through_decorates_methods_with_further_arguments_and_variables(gradient):
    class Quantiser:
        def __init__(self):
            self.step = tf.Variable(0.5, dtype=tf.float64)

        @cg.straight_through(surrogate="hard_tanh", slope=0.5)
        def __call__(self, x, offset, *, mode="nearest"):
            assert mode == "nearest"
            return self.step * tf.round(x / self.step) + offset

    quantiser = Quantiser()
    x, offset = np.array([0.6, 2.6]), np.array([1.0, 2.0])
    np.testing.assert_allclose(quantiser(tf.constant(x), offset), [1.5, 4.5])
    dx, d_offset = gradient(lambda x, o: quantiser(x, o, mode="nearest"), [x, offset], np.array([1.0, 10.0]))
    np.testing.assert_allclose(dx, [1.0, 0.0])
    assert d_offset is None
    with tf.GradientTape() as tape:
        y = quantiser(tf.constant(x), offset)
    assert tape.gradient(y, quantiser.step) is None


SCALES = {
    "number": lambda: 4.0,
    "tensor": lambda: tf.constant(4.0, tf.float16),
    "variable": lambda: tf.Variable(4.0, trainable=False),
    "function": lambda: lambda: tf.Variable(4.0, trainable=False) if tf.executing_eagerly() else 4,
}


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize(
    ("limit", "clipped"),
    [
        ({"value": 0.5}, lambda dy: np.clip(dy, -0.5, 0.5)),
        ({"norm": 5.0}, lambda dy: shrink(dy, np.linalg.norm(dy), 5.0)),
        ({"norm": 2.0, "axis": [0]}, lambda dy: shrink(dy, np.linalg.norm(dy, axis=0), 2.0)),
        ({"global_norm": 5.0}, lambda dy: shrink(dy, np.linalg.norm(dy), 5.0)),
    ],
    ids=["value", "norm", "norm of columns", "global norm"],
)
def test_a_limit_under_loss_scaling_is_for_the_gradient_divided_by_the_scale(limit, clipped, kind, rng, gradient):
    x, dy, scale = rng.normal(size=(3, 2)), rng.normal(size=(3, 2)) * 3, SCALES[kind]()
    (dx,) = gradient(lambda x: cg.clip_gradient(x, **limit, loss_scale=scale), [x], tf.constant(4 * dy))
    np.testing.assert_allclose(dx, 4 * clipped(dy), rtol=1e-12)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("limit", [{"value": 0.5}, {"norm": 0.5}, {"global_norm": 0.5}], ids=str)
def test_under_loss_scaling_an_overflow_stays_one(limit, bad, gradient):
    dy = np.array([1.0, bad, -3.0], np.float16)
    (dx,) = gradient(
        lambda x: cg.clip_gradient(x, **limit, loss_scale=2.0**20), [np.ones(3, np.float16)], tf.constant(dy)
    )
    assert not np.isfinite(dx[1])


def test_the_loss_scale_is_read_when_the_value_is_computed():
    scale = tf.Variable(2.0, trainable=False)
    seen = []
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = cg.watch_gradient(cg.clip_gradient(X, value=1.0, loss_scale=scale), "y", call=seen.append, loss_scale=scale)
    scale.assign(1000.0)
    np.testing.assert_allclose(tape.gradient(y, X, output_gradients=DY), np.clip(DY, -2, 2))
    np.testing.assert_allclose(seen, [DY / 2])
