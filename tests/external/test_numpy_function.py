"""numpy_function, with and without a vjp: values and gradients against formulas, in every mode that runs Python."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.mode_table import fills
from ..support.modes import (
    ALL_MODES,
    VJP_MODES,
    assert_all_close,
    constants,
    tape_vjp,
)
from ..support.tensors import DTYPES, pairs, random_array

pytestmark = pytest.mark.core

# XLA cannot compile Python: see external/test_numpy_function_errors.py.
WITHOUT_XLA = [name for name in VJP_MODES if not name.startswith("jit")]
RNG = np.random.default_rng(20240229)


def spec(*shape, dtype=tf.float64):
    return tf.TensorSpec(shape, dtype)


def array(*shape, dtype=tf.float64):
    return random_array(RNG, shape, dtype)


def sine(x):
    return np.sin(x), np.cos(x)


def sums_of_sines(x):
    return np.cumsum(np.sin(x)), np.tril(np.ones([3, 3])) * np.cos(x)


def product_in_lists(*arrays):
    value = np.prod(arrays, axis=0)
    rows = [(value / a).tolist() for a in arrays]
    return value.tolist(), rows[0] if len(rows) == 1 else rows


def matrix_outputs(a, b):
    """[B, 2, 4] from [B, 2, 3], [B, 3, 4] and [B]."""
    return a @ b, (np.einsum("ik,Bjl->Bilkj", np.eye(2), b), np.einsum("lm,Bij->Biljm", np.eye(4), a))


def scaled_sum(a, b):
    total = np.sum(a, (1, 2))
    return total * b, (np.ones_like(a) * b[:, None, None], total)


def size(z, x):
    return np.abs(z) * x, [np.diag(np.conj(z) / np.abs(z) * x), np.diag(np.abs(z))]


def solve(matrix, right):
    value = np.linalg.solve(matrix, right)
    return value, (matrix, value)


def adjoint(residuals, dy):
    matrix, value = residuals
    by_right = np.linalg.solve(matrix.T, dy)
    return -np.outer(by_right, value), by_right


def tangent(residuals, matrix_tangent, right_tangent):
    matrix, value = residuals
    return np.linalg.solve(matrix, right_tangent - matrix_tangent @ value)


linear = cg.numpy_function(solve, spec(3), vjp=adjoint, jvp=tangent)


def cases():
    """The name of each, a function with its inputs, dy, and the value and the gradients that it must have."""
    x, y, z, dy = array(4, 3), array(4, 1), array(3), array(4, 3)
    c, dc, w, dw = (array(4, dtype=tf.complex128) for _ in range(4))
    a, b, dm = array(5, 2, 3), array(5, 3, 4), array(5, 2, 4)
    matrix, right = array(3, 3) + 3 * np.eye(3), array(3)
    long, d_long = array(100_000), array(100_000)

    yield "elementwise", (cg.numpy_function(sine), [x], dy, np.sin(x), [dy * np.cos(x)])
    yield "complex", (cg.numpy_function(sine), [c], dc, np.sin(c), [dc * np.conj(np.cos(c))])
    for kind in (list, tuple):  # A list of one array is one gradient, not a gradient of shape [1, ...].
        one = cg.numpy_function(lambda x, kind=kind: (np.sin(x), kind([np.cos(x)])))
        yield f"a {kind.__name__} of one", (one, [z[:1]], z[1:2], np.sin(z[:1]), [z[1:2] * np.cos(z[:1])])
    for n in (1, 2, 3):  # As many rows as there are inputs.
        inputs = [array(2, 3) for _ in range(n)]
        value = np.prod(inputs, axis=0)
        expected = [dy[:2] * value / each for each in inputs]
        yield f"lists of {n}", (cg.numpy_function(product_in_lists), inputs, dy[:2], value, expected)
    product = cg.numpy_function(lambda y, z: (y * np.exp(z), (np.exp(z) + 0 * y, y * np.exp(z))))
    by_y, by_z = np.sum(dy * np.exp(z), 1, keepdims=True), np.sum(dy * y * np.exp(z), 0)
    yield "broadcast", (product, [y, z], dy, y * np.exp(z), [by_y, by_z])
    for shape in ([3], [None]):
        jacobian = cg.numpy_function(sums_of_sines, spec(*shape))
        by_sums = np.cos(z) * np.cumsum(y[:3, 0][::-1])[::-1]
        yield f"Jacobian {shape}", (jacobian, [z], y[:3, 0], np.cumsum(np.sin(z)), [by_sums])
    scalar = cg.numpy_function(lambda x, c: (c * np.sum(x**2), [2 * c * x, np.sum(x**2)]), spec())
    yield "scalar", (scalar, [x, np.array(0.7)], np.array(3.0), 0.7 * np.sum(x**2), [4.2 * x, 3.0 * np.sum(x**2)])
    by_size = [z * x[0] * c[:3] / np.abs(c[:3]), z * np.abs(c[:3])]
    yield "real of complex", (cg.numpy_function(size, spec(3)), [c[:3], x[0]], z, np.abs(c[:3]) * x[0], by_size)
    phase = cg.numpy_function(lambda x: (np.exp(1j * x), np.diag(1j * np.exp(1j * x))), spec(4, dtype=tf.complex128))
    real = np.abs(w)
    by_phase = np.real(dw * np.conj(1j * np.exp(1j * real)))
    yield "complex of real", (phase, [real], dw, np.exp(1j * real), [by_phase])
    batch = cg.numpy_function(matrix_outputs, spec(2, 4), batched=True)
    by_matrices = [dm @ np.swapaxes(b, 1, 2), np.swapaxes(a, 1, 2) @ dm]
    yield "batch", (batch, [a, b], dm, a @ b, by_matrices)
    for count in (0, 1, 3):
        many, factor, upstream = a[:count], array(count), array(count)
        total = many.sum((1, 2))
        expected = [(upstream * factor)[:, None, None] * np.ones_like(many), upstream * total]
        scaled = cg.numpy_function(scaled_sum, spec(), batched=True)
        yield f"batch of {count}", (scaled, [many, factor], upstream, total * factor, expected)

    yield "vjp", (linear, [matrix, right], z, solve(matrix, right)[0], adjoint(solve(matrix, right)[1], z))
    # The inputs broadcast, and each gradient has the shape of its input. One is complex, so the vjp conjugates.
    power = cg.numpy_function(
        lambda c, x: (c**2 * x, (c, x)),
        vjp=lambda r, dy: (dy * np.conj(2 * r[0] * r[1]), np.sum(np.real(dy * np.conj(r[0] ** 2)), 0)),
    )
    c, d = c.reshape(2, 2), dc.reshape(2, 2)
    by_power = [d * np.conj(2 * c * right[:2]), np.sum(np.real(d * np.conj(c**2)), 0)]
    yield "vjp, elementwise", (power, [c, right[:2]], d, c**2 * right[:2], by_power)
    rows = cg.numpy_function(
        lambda x: (np.sum(x**2, -1), x), spec(), vjp=lambda x, dy: 2 * x * dy[:, None], batched=True
    )
    yield "vjp, batch", (rows, [x], y[:, 0], np.sum(x**2, -1), [2 * x * y])
    # Their Jacobian would take 80 GB.
    cumulative = cg.numpy_function(
        lambda x: (np.cumsum(np.sin(x)), np.cos(x)),
        spec(100_000),
        vjp=lambda r, dy: r * np.cumsum(dy[::-1])[::-1],
    )
    by_long = np.cos(long) * np.cumsum(d_long[::-1])[::-1]
    yield "vjp of 100,000", (cumulative, [long], d_long, np.cumsum(np.sin(long)), [by_long])


CASES = dict(cases())


@fills("eager", "numpy_function")
@fills("traced", "numpy_function")
@fills("jacobians", "numpy_function", "numpy_function, vjp")
@fills("forward_mode", "numpy_function, vjp")
@fills("forward_mode_eager", "numpy_function", "numpy_function, vjp")
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *pairs(CASES, WITHOUT_XLA, quick=3),
        *itertools.product(
            ["broadcast", "Jacobian [3]", "scalar", "vjp"], ["jacobians", "forward_mode", "forward_mode_eager"]
        ),
    ],
)
def test_values_and_gradients(name, mode):
    function, args, dy, *expected = CASES[name]
    value, found = ALL_MODES[mode].vjp(function, args, dy)
    assert [gradient.dtype for gradient in found] == [x.dtype for x in args]
    assert_all_close([value, *found], [expected[0], *expected[1]], rtol=1e-11, atol=1e-12)


def largest(x):
    position = int(np.argmax(x))
    return {"size": x[position], "rest": (np.delete(x, position), position)}, position


def test_a_structure_with_an_integer(gradient):
    def by_largest(position, by_rest, by_position, by_size):
        assert by_position == 0
        return [np.insert(by_rest, position, by_size)]

    output_signature = {"size": spec(), "rest": (spec(3), spec(dtype=tf.int64))}
    function = cg.numpy_function(largest, output_signature, vjp=by_largest)
    x = np.array([1.0, 5.0, 2.0, 3.0])

    def loss(x):
        value = function(x)
        assert value["rest"][1].dtype == tf.int64
        return 2 * value["size"] + tf.reduce_sum(value["rest"][0] * [1.0, 10.0, 100.0])

    tf.nest.map_structure(np.testing.assert_array_equal, function(x), {"size": 5.0, "rest": (x[[0, 2, 3]], 1)})
    np.testing.assert_array_equal(gradient(loss, [x], None)[0], [1.0, 2.0, 10.0, 100.0])


@pytest.mark.parametrize(("dtype", "result"), pairs(DTYPES, [np.float16, np.int8, np.bool_, np.float64, "list"]))
def test_results_of_any_kind_are_cast(dtype, result):
    x = np.array([1.0, 0.0, 1.0])

    def function(_):
        return (x.tolist(), (2 * x).tolist()) if result == "list" else (x.astype(result), x.astype(result))

    z, dy = tf.constant(x, dtype), tf.constant([1, 10, 100], dtype)
    for wrapped in (cg.numpy_function(function), tf.function(cg.numpy_function(function))):
        y, (dz,) = tape_vjp(wrapped, [z], dy)
        assert y.dtype == dz.dtype == dtype
        np.testing.assert_array_equal(tf.cast(y, tf.complex64), x)
        np.testing.assert_array_equal(tf.cast(dz, tf.complex64), (1 + (result == "list")) * x * [1, 10, 100])


@fills("while_loop", "numpy_function", "numpy_function, vjp")
@fills("cond", "numpy_function, vjp")
@pytest.mark.parametrize(
    ("has_vjp", "mode"), pairs([False, True], ["eager", "traced", "tf1", "around_traced"], quick=2)
)
def test_in_a_loop_and_a_conditional(has_vjp, mode):
    """Each step has its own residuals."""
    function = cg.numpy_function(sine, spec(3), vjp=lambda c, dy: c * dy) if has_vjp else cg.numpy_function(sine)
    x, dy = array(3), array(3)

    def step(i, x):
        return i + 1, tf.cond(i < 3, lambda: function(x), lambda: 1000.0 * x)

    value, expected = x, dy
    for _ in range(3):
        value, expected = np.sin(value), expected * np.cos(value)
    _, (dx,) = ALL_MODES[mode].vjp(lambda x: tf.while_loop(lambda i, _: i < 4, step, (0, x))[1], [x], dy)
    np.testing.assert_allclose(dx, 1000.0 * expected, rtol=1e-12)


def jvp_of(function, args, tangents):
    with tf.autodiff.ForwardAccumulator(args, tangents) as accumulator:
        y = function(*args)
    return accumulator.jvp(y)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "around"])
def test_tangents_of_all_inputs_together(wrap):
    """Around a tf.function, TensorFlow transposes twice."""
    (z, u), (x, t) = array(2, 3, dtype=tf.complex128), array(2, 3)
    found = jvp_of(wrap(cg.numpy_function(size, spec(3))), constants([z, x]), constants([u, t]))
    np.testing.assert_allclose(found, np.real(np.conj(z) / np.abs(z) * x * u) + np.abs(z) * t, rtol=1e-11)
    matrix, by_matrix = array(2, 3, 3) + 3 * np.eye(3)
    found = jvp_of(wrap(linear), constants([matrix, x]), constants([by_matrix, t]))
    np.testing.assert_allclose(found, tangent(solve(matrix, x)[1], by_matrix, t), rtol=1e-11)


@pytest.mark.parametrize("only", [0, 1])
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "around"])
def test_the_tangent_of_one_of_several_inputs(wrap, only):
    """Its transposed rule reads what Python computed for the other input."""
    function = cg.numpy_function(lambda x, y: (np.sin(x) * y, (np.diag(np.cos(x) * y), np.diag(np.sin(x)))), spec(3))
    args, t = (array(3), array(3)), array(3)
    with tf.autodiff.ForwardAccumulator((inputs := constants(args))[only], tf.constant(t)) as accumulator:
        y = wrap(function)(*inputs)
    slopes = np.cos(args[0]) * args[1], np.sin(args[0])
    np.testing.assert_allclose(accumulator.jvp(y), slopes[only] * t, rtol=1e-11)


def test_the_tangents_of_a_structure_and_reverse_mode_over_them():
    x, t = tf.constant(array(3)), tf.constant(array(3))
    function = cg.numpy_function(
        lambda x: ([np.sin(x), 7], np.cos(x)),
        [spec(3), spec(dtype=tf.int64)],
        vjp=lambda c, dy, _: c * dy,
        jvp=lambda c, t: [c * t, None],
    )
    np.testing.assert_allclose(jvp_of(lambda x: function(x)[0], [x], [t]), np.cos(x) * t, rtol=1e-13)
    dy = tf.constant([1.0, 10.0, 100.0], tf.float64)
    for function in (cg.numpy_function(sine), cg.numpy_function(sine, vjp=np.multiply, jvp=np.multiply)):
        with tf.GradientTape() as tape:
            tape.watch(t)
            tangent_of_y = jvp_of(function, [x], [t])
        np.testing.assert_allclose(tape.gradient(tangent_of_y, t, output_gradients=dy), np.cos(x) * dy, rtol=1e-13)


sine_by_tensors = cg.numpy_function(
    lambda inputs, dy: (np.cos(inputs[0]) * dy, (inputs[0], dy)),
    spec(3),
    vjp=lambda r, u: (-u * r[1] * np.sin(r[0]), u * np.cos(r[0])),
)


@pytest.mark.parametrize("is_function", [False, True], ids=["numpy_function", "tf.function"])
def test_a_second_derivative_by_a_vjp_of_tensors(is_function, gradient):
    vjp = tf.function(lambda inputs, dy: tf.cos(inputs[0]) * dy) if is_function else sine_by_tensors
    function = cg.numpy_function(lambda x: (np.sin(x), None), spec(3), vjp=vjp)
    x, dy, u = (array(3) for _ in range(3))
    by_x, by_dy = gradient(lambda x, dy: tape_vjp(function, [x], dy)[1][0], [x, dy], u)
    np.testing.assert_allclose(by_x, -u * dy * np.sin(x), rtol=1e-13)
    np.testing.assert_allclose(by_dy, u * np.cos(x), rtol=1e-13)


WITHOUT_SECOND = {
    "gradients": cg.numpy_function(sine),
    "vjp": cg.numpy_function(sine, vjp=np.multiply, jvp=np.multiply),
}


@pytest.mark.parametrize("name", WITHOUT_SECOND)
@pytest.mark.parametrize("where", ["inside", "around"])
def test_a_second_derivative_by_arrays_is_an_error(name, where):
    """Though the graph is built before anybody asks for it: TensorFlow would take None for zero.

    The page of messages has it in eager mode.
    """
    x, dy = tf.constant(array(3)), tf.constant(array(3))

    def first(x):
        return tape_vjp(WITHOUT_SECOND[name], [x], dy)[1][0]

    def second(x):
        return tape_vjp(tf.function(first) if where == "around" else first, [x], None)

    with pytest.raises(tf.errors.UnimplementedError, match="because its gradients are computed with arrays"):
        (tf.function(second) if where == "inside" else second)(x)


def test_the_second_derivative_with_respect_to_the_upstream_gradient_alone(gradient):
    x, u = array(3), array(3)
    for function in WITHOUT_SECOND.values():
        (by_dy,) = gradient(lambda dy, f=function: tape_vjp(f, [tf.constant(x)], dy)[1][0], [array(3)], u)
        np.testing.assert_allclose(by_dy, u * np.cos(x), rtol=1e-13)


WRAPPED = {
    "recompute_grad": lambda f: cg.recompute_grad(lambda x: tf.exp(f(x))),
    "override_gradients": lambda f: cg.override_gradients(
        lambda x: tf.exp(f(x)), {"Exp": lambda op, dy: dy * op.outputs[0]}
    ),
    "custom_gradient": lambda f: cg.custom_gradient(lambda x: (tf.exp(f(x)), lambda dy: dy * tf.exp(f(x)) * tf.cos(x))),
}


@pytest.mark.parametrize(("name", "mode"), pairs(WRAPPED, ["eager", "traced"]))
@pytest.mark.parametrize("has_vjp", [False, True], ids=["gradients", "vjp"])
def test_inside_of_other_functions_of_the_library(name, has_vjp, mode):
    calls = []

    def counted(x):
        calls.append(1)
        return sine(x)

    function = cg.numpy_function(counted, spec(3), vjp=lambda c, dy: c * dy) if has_vjp else cg.numpy_function(counted)
    x, dy = array(3), array(3)
    _, (dx,) = ALL_MODES[mode].vjp(WRAPPED[name](function), [x], dy)
    np.testing.assert_allclose(dx, dy * np.exp(np.sin(x)) * np.cos(x), rtol=1e-13)
    if name == "recompute_grad":
        assert len(calls) == 1  # Its result is kept, because it can have side effects.
