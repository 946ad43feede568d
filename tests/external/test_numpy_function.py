"""numpy_function with NumPy and SciPy: its gradients against vector-Jacobian products in NumPy."""

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import tensorflow as tf

import tf_cg_ops as cg

from ..support.functions import erf
from ..support.modes import VJP_MODES, eager, tape_vjp, traced
from ..support.tensors import DTYPES, pairs, random_array

pytestmark = pytest.mark.core

# XLA cannot compile Python: see external/test_numpy_function_errors.py.
WITHOUT_XLA = [name for name in VJP_MODES if not name.startswith("jit")]


@pytest.fixture(params=WITHOUT_XLA)
def mode(request):
    return VJP_MODES[request.param]


def lennard_jones(positions, charge):
    """The energy of particles in [n, 3], and its gradients with respect to the positions and a charge."""
    difference = positions[:, None] - positions[None]
    square = np.sum(difference**2, -1) + np.eye(len(positions))
    energy = charge * np.sum(np.triu(square**-3, 1))
    by_positions = charge * np.sum((-6 * square**-4 * (1 - np.eye(len(positions))))[..., None] * difference, 1)
    return energy, [by_positions, energy / charge]


def decay(rates):
    """The end of y' = -k y, with the sensitivities s' = -k s - y, from SciPy's solver of initial value problems."""

    def right_hand_side(_, state):
        y, s = np.split(state, 2)
        return np.concatenate([-rates * y, -rates * s - y])

    start = np.concatenate([np.ones_like(rates), np.zeros_like(rates)])
    solution = scipy.integrate.solve_ivp(right_hand_side, (0.0, 1.0), start, rtol=1e-10, atol=1e-12)
    y, s = np.split(solution.y[:, -1], 2)
    return y, np.diag(s)


def test_an_elementwise_function_of_scipy(mode, rng):
    x, dy = random_array(rng, [4, 3]), random_array(rng, [4, 3])
    value, (dx,) = mode(cg.numpy_function(erf), [x], dy)
    np.testing.assert_allclose(value, scipy.special.erf(x), rtol=1e-14)
    np.testing.assert_allclose(dx, dy * erf(x)[1], rtol=1e-14)


@pytest.mark.parametrize("sequence", [list, tuple])
def test_one_gradient_can_come_in_a_sequence(sequence, gradient, rng):
    """A list of one array counts as one gradient, not as a gradient of shape [1, ...]."""
    x, dy = random_array(rng, [1]), random_array(rng, [1])
    (dx,) = gradient(cg.numpy_function(lambda x: (np.sin(x), sequence([np.cos(x)]))), [x], dy)
    np.testing.assert_allclose(dx, dy * np.cos(x), rtol=1e-14)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("sequence", [list, tuple])
def test_a_gradient_can_be_a_list_of_lists_with_as_many_rows_as_there_are_inputs(sequence, number, mode, rng):
    inputs, dy = [random_array(rng, [2, 3]) for _ in range(number)], random_array(rng, [2, 3])

    def product(*arrays):
        value = np.prod(arrays, axis=0)
        gradients = [(value / array).tolist() for array in arrays]
        return value.tolist(), gradients[0] if number == 1 else sequence(gradients)

    value, gradients = mode(cg.numpy_function(product), inputs, dy)
    np.testing.assert_allclose(value, np.prod(inputs, axis=0), rtol=1e-13)
    for x, dx in zip(inputs, gradients, strict=True):
        np.testing.assert_allclose(dx, dy * np.prod(inputs, axis=0) / x, rtol=1e-13)


def test_elementwise_inputs_broadcast(gradient, rng):
    x, y, dy = random_array(rng, [4, 1]), random_array(rng, [3]), random_array(rng, [4, 3])

    def product(x, y):
        return x * np.exp(y), (np.broadcast_to(np.exp(y), (4, 3)), x * np.exp(y))

    dx, by_y = gradient(cg.numpy_function(product), [x, y], dy)
    np.testing.assert_allclose(dx, np.sum(dy * np.exp(y), 1, keepdims=True), rtol=1e-13)
    np.testing.assert_allclose(by_y, np.sum(dy * x * np.exp(y), 0), rtol=1e-13)


@pytest.mark.parametrize("dimensions", [[3], [None]], ids=str)
def test_a_jacobian_from_an_initial_value_problem(mode, dimensions):
    rates, dy = np.array([0.5, 1.0, 2.0]), np.array([1.0, 10.0, 100.0])
    value, (dx,) = mode(cg.numpy_function(decay, tf.TensorSpec(dimensions, tf.float64)), [rates], dy)
    np.testing.assert_allclose(value, np.exp(-rates), rtol=1e-8)
    np.testing.assert_allclose(dx, -np.exp(-rates) * dy, rtol=1e-8)


def test_a_scalar_of_inputs_of_several_ranks(mode, rng):
    positions, charge, dy = random_array(rng, [5, 3]), np.array(0.7), np.array(3.0)
    value, gradients = mode(cg.numpy_function(lennard_jones, tf.TensorSpec([], tf.float64)), [positions, charge], dy)
    expected, expected_gradients = lennard_jones(positions, charge)
    np.testing.assert_allclose(value, expected, rtol=1e-14)
    for actual, by_hand in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(actual, 3.0 * by_hand, rtol=1e-13)


def matrix_outputs(a, b):
    """[B, 2, 4] from [B, 2, 3], [B, 3, 4] and [B]."""
    by_a = np.einsum("ik,Bjl->Bilkj", np.eye(2), b)
    by_b = np.einsum("lm,Bij->Biljm", np.eye(4), a)
    return a @ b, [by_a, by_b]


def test_a_batch_is_one_call(mode, rng):
    a, b, dy = random_array(rng, [5, 2, 3]), random_array(rng, [5, 3, 4]), random_array(rng, [5, 2, 4])
    function = cg.numpy_function(matrix_outputs, tf.TensorSpec([2, 4], tf.float64), batched=True)
    value, (da, db) = mode(function, [a, b], dy)
    np.testing.assert_allclose(value, a @ b, rtol=1e-14)
    np.testing.assert_allclose(da, dy @ np.swapaxes(b, 1, 2), rtol=1e-13)
    np.testing.assert_allclose(db, np.swapaxes(a, 1, 2) @ dy, rtol=1e-13)


def test_the_gradients_of_a_batch_have_a_static_size_for_each_example():
    """Otherwise the gradient would compute the size in the graph, and the rank and shape of dx would be unknown."""
    function = cg.numpy_function(matrix_outputs, tf.TensorSpec([2, 4], tf.float64), batched=True)
    specs = [tf.TensorSpec(shape, tf.float64) for shape in ([None, 2, 3], [None, 3, 4])]
    graph = tf.function(function, input_signature=specs).get_concrete_function().graph
    shapes = [t.shape.as_list() for op in graph.get_operations() if op.type == "EnsureShape" for t in op.outputs]
    shapes += [t.shape.as_list() for op in graph.get_operations() if op.type == "PyFunc" for t in op.outputs]
    assert [None, 2, 4] in shapes
    assert [None, 2, 4, 6] in shapes
    assert [None, 2, 4, 12] in shapes


@pytest.mark.parametrize(("run", "size"), [(eager, 0), (traced, 0), (eager, 1), (traced, 3)])
def test_a_batch_of_inputs_of_several_ranks(run, size, rng):
    a, b, dy = random_array(rng, [size, 2, 3]), random_array(rng, [size]), random_array(rng, [size])

    def scaled_sum(a, b):
        total = np.sum(a, (1, 2))
        return total * b, (np.ones_like(a) * b[:, None, None], total)

    value, (da, db) = run(cg.numpy_function(scaled_sum, tf.TensorSpec([], tf.float64), batched=True), [a, b], dy)
    np.testing.assert_allclose(value, a.sum((1, 2)) * b)
    np.testing.assert_allclose(da, (dy * b)[:, None, None] * np.ones_like(a))
    np.testing.assert_allclose(db, dy * a.sum((1, 2)))


@pytest.mark.mode_table(feature="numpy_function", mode="map_fn")
def test_one_example_at_a_time_with_map_fn(gradient, rng):
    rates, dy = np.exp(random_array(rng, [4, 2])), random_array(rng, [4, 2])
    one = cg.numpy_function(decay, tf.TensorSpec([2], tf.float64))
    (dx,) = gradient(lambda x: tf.map_fn(one, x), [rates], dy)
    np.testing.assert_allclose(dx, -np.exp(-rates) * dy, rtol=1e-8)


@pytest.mark.mode_table(feature="numpy_function", mode="while_loop")
def test_in_a_while_loop(rng):
    x, dy = random_array(rng, [3]), random_array(rng, [3])
    function = cg.numpy_function(erf)

    def loop(x):
        return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, function(y)), (0, x))[1]

    inner = scipy.special.erf(x)
    for run in (eager, traced, VJP_MODES["tf1_session"]):
        value, (dx,) = run(loop, [x], dy)
        np.testing.assert_allclose(value, scipy.special.erf(inner), rtol=1e-13)
        np.testing.assert_allclose(dx, dy * erf(inner)[1] * erf(x)[1], rtol=1e-13)


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


@pytest.mark.mode_table(feature="numpy_function", mode="eager")
@pytest.mark.mode_table(feature="numpy_function", mode="traced")
@pytest.mark.parametrize("run", [eager, traced])
def test_a_complex_function(run, rng):
    """The Faddeeva function, w' = -2 z w + 2i / sqrt(pi)."""
    z, dy = random_array(rng, [4], tf.complex128), random_array(rng, [4], tf.complex128)

    def faddeeva(z):
        w = scipy.special.wofz(z)
        return w, -2 * z * w + 2j / np.sqrt(np.pi)

    value, (dz,) = run(cg.numpy_function(faddeeva), [z], dy)
    np.testing.assert_allclose(value, scipy.special.wofz(z), rtol=1e-13)
    np.testing.assert_allclose(dz, dy * np.conj(faddeeva(z)[1]), rtol=1e-12)


def test_values_of_another_dtype_than_the_inputs(gradient, rng):
    z, x = random_array(rng, [3], tf.complex128), random_array(rng, [3], tf.float32)
    dy, dz = random_array(rng, [3]), random_array(rng, [3], tf.complex128)

    def real(z, x):
        return np.abs(z) * x, [np.diag(np.conj(z) / np.abs(z) * x), np.diag(np.abs(z))]

    by_z, by_x = gradient(cg.numpy_function(real, tf.TensorSpec([3], tf.float64)), [z, x], dy)
    assert (by_z.dtype, by_x.dtype) == (tf.complex128, tf.float32)
    np.testing.assert_allclose(by_z, dy * x * z / np.abs(z), rtol=1e-13)
    np.testing.assert_allclose(by_x, dy * np.abs(z), rtol=1e-6)
    phase = cg.numpy_function(
        lambda x: (np.exp(1j * x), np.diag(1j * np.exp(1j * x))), tf.TensorSpec([3], tf.complex128)
    )
    (dx,) = gradient(phase, [np.abs(z)], dz)
    np.testing.assert_allclose(dx, np.real(dz * np.conj(1j * np.exp(1j * np.abs(z)))), rtol=1e-13)


def test_there_is_no_second_derivative(gradient):
    function = cg.numpy_function(erf)
    assert gradient(lambda x: tape_vjp(function, [x], tf.ones_like(x))[1][0], [np.array([0.5, 1.0])], None) == [None]


@pytest.mark.mode_table(feature="numpy_function", mode="forward_mode_eager")
def test_tangents(rng):
    x, t = random_array(rng, [3]), random_array(rng, [3])

    def jvp(x, t):
        with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
            y = cg.numpy_function(erf)(x)
        return accumulator.jvp(y)

    for run in (jvp, tf.function(jvp)):
        np.testing.assert_allclose(run(tf.constant(x), tf.constant(t)), t * erf(x)[1], rtol=1e-13)


@pytest.mark.mode_table(feature="numpy_function", mode="jacobians")
def test_jacobians(rng):
    x = random_array(rng, [3])
    function = cg.numpy_function(decay, tf.TensorSpec([3], tf.float64))
    with tf.GradientTape() as tape:
        z = tf.constant(x)
        tape.watch(z)
        y = function(z)
    np.testing.assert_allclose(tape.jacobian(y, z, experimental_use_pfor=True), decay(x)[1], rtol=1e-12)
