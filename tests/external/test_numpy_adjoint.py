"""numpy_function with vjp: its gradients against formulas, in every mode that runs Python."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, VJP_MODES, eager, gradients, tape_vjp, traced
from ..support.tensors import pairs, random_array

pytestmark = pytest.mark.core

WITHOUT_XLA = [name for name in VJP_MODES if not name.startswith("jit")]


@pytest.fixture(params=WITHOUT_XLA)
def mode(request):
    return VJP_MODES[request.param]


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


def system(rng):
    return random_array(rng, [3, 3]) + 3 * np.eye(3), random_array(rng, [3])


SPEC = tf.TensorSpec([3], tf.float64)
linear = cg.numpy_function(solve, SPEC, vjp=adjoint, jvp=tangent)


def sine(x):
    return np.sin(x), np.cos(x)


def test_the_adjoint_of_a_linear_system(mode, rng):
    (matrix, right), dy = system(rng), random_array(rng, [3])
    value, (by_matrix, by_right) = mode(linear, [matrix, right], dy)
    np.testing.assert_allclose(value, np.linalg.solve(matrix, right), rtol=1e-12)
    expected = np.linalg.solve(matrix.T, dy)
    np.testing.assert_allclose(by_right, expected, rtol=1e-12)
    np.testing.assert_allclose(by_matrix, -np.outer(expected, value), rtol=1e-12)


def test_without_an_output_the_value_is_elementwise(gradient, rng):
    """The inputs broadcast, and each gradient has the shape of its input. One is complex, so the vjp conjugates."""
    z, y, dy = (
        random_array(rng, [2, 3], tf.complex128),
        random_array(rng, [3]),
        random_array(rng, [2, 3], tf.complex128),
    )
    product = cg.numpy_function(
        lambda z, y: (z**2 * y, (z, y)),
        vjp=lambda r, dy: (dy * np.conj(2 * r[0] * r[1]), np.sum(np.real(dy * np.conj(r[0] ** 2)), 0)),
    )
    by_z, by_y = gradient(product, [z, y], dy)
    np.testing.assert_allclose(by_z, dy * np.conj(2 * z * y), rtol=1e-13)
    np.testing.assert_allclose(by_y, np.sum(np.real(dy * np.conj(z**2)), 0), rtol=1e-13)


def test_a_batch_is_one_call(gradient, rng):
    x, dy = random_array(rng, [5, 3]), random_array(rng, [5])
    function = cg.numpy_function(
        lambda x: (np.sum(x**2, -1), x),
        tf.TensorSpec([], tf.float64),
        vjp=lambda x, dy: 2 * x * dy[:, None],
        batched=True,
    )
    (dx,) = gradient(function, [x], dy)
    np.testing.assert_allclose(dx, 2 * x * dy[:, None])
    traced_function = tf.function(function).get_concrete_function(tf.TensorSpec([5, 3], tf.float64))
    assert traced_function.output_shapes == [5]


def largest(x):
    position = int(np.argmax(x))
    return {"size": x[position], "rest": (np.delete(x, position), position)}, position


def by_largest(position, by_rest, by_position, by_size):
    assert by_position == 0
    dx = np.insert(by_rest, position, by_size)
    return [dx]


LARGEST = {"size": tf.TensorSpec([], tf.float64), "rest": (tf.TensorSpec([3], tf.float64), tf.TensorSpec([], tf.int64))}


def test_a_structure_with_an_integer(gradient):
    function = cg.numpy_function(largest, LARGEST, vjp=by_largest)

    def loss(x):
        value = function(x)
        assert value["rest"][1].dtype == tf.int64
        return 2 * value["size"] + tf.reduce_sum(value["rest"][0] * [1.0, 10.0, 100.0])

    x = np.array([1.0, 5.0, 2.0, 3.0])
    tf.nest.map_structure(np.testing.assert_array_equal, function(x), {"size": 5.0, "rest": (x[[0, 2, 3]], 1)})
    (dx,) = gradient(loss, [x], None)
    np.testing.assert_array_equal(dx, [1.0, 2.0, 10.0, 100.0])


def test_needed_tells_what_a_tape_watches(gradient):
    seen = []

    def vjp(residuals, dy, needed):
        seen.append(needed)
        return [g if n else None for g, n in zip(adjoint(residuals, dy), needed, strict=True)]

    function = cg.numpy_function(solve, SPEC, vjp=vjp)
    dy = tf.constant([1.0, 2.0, 4.0], tf.float64)
    (by_right,) = gradient(lambda right: function(2 * np.eye(3), right), [np.zeros(3)], dy)
    np.testing.assert_array_equal(by_right, [0.5, 1.0, 2.0])
    assert seen == [(False, True)]


def jvp_of(function, args, tangents):
    with tf.autodiff.ForwardAccumulator(args, tangents) as accumulator:
        y = function(*args)
    return accumulator.jvp(y)


@pytest.mark.mode_table(feature="numpy_function, vjp", mode="forward_mode")
@pytest.mark.mode_table(feature="numpy_function, vjp", mode="forward_mode_eager")
@pytest.mark.parametrize("where", ["eager", "inside", "around"])
def test_tangents(where, rng):
    """In eager mode and inside a tf.function, only `jvp` is called. Around a tf.function, TensorFlow transposes twice."""
    args, tangents = [tf.constant(a) for a in system(rng)], [tf.constant(a) for a in system(rng)]
    if where == "inside":
        result = tf.function(lambda: jvp_of(linear, args, tangents))()
    else:
        result = jvp_of(tf.function(linear) if where == "around" else linear, args, tangents)
    matrix, right = (a.numpy() for a in args)
    expected = tangent((matrix, np.linalg.solve(matrix, right)), *(t.numpy() for t in tangents))
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_the_tangents_of_a_structure_and_reverse_mode_over_them(rng):
    x, t = random_array(rng, [3]), random_array(rng, [3])
    output = [SPEC, tf.TensorSpec([], tf.int64)]
    function = cg.numpy_function(
        lambda x: ([np.sin(x), 7], np.cos(x)),
        output,
        vjp=lambda c, dy, _: c * dy,
        jvp=lambda c, t: [c * t, None],
    )
    x, t = tf.constant(x), tf.constant(t)
    np.testing.assert_allclose(jvp_of(lambda x: function(x)[0], [x], [t]), np.cos(x) * t, rtol=1e-13)
    with tf.GradientTape() as tape:
        tape.watch(t)
        with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
            y = cg.numpy_function(sine, vjp=lambda c, dy: c * dy, jvp=lambda c, t: c * t)(x)
        tangent_of_y = accumulator.jvp(y)
    dy = tf.constant([1.0, 10.0, 100.0], tf.float64)
    np.testing.assert_allclose(tape.gradient(tangent_of_y, t, output_gradients=dy), np.cos(x) * dy, rtol=1e-13)


sine_by_tensors = cg.numpy_function(
    lambda inputs, dy: (np.cos(inputs[0]) * dy, (inputs[0], dy)),
    SPEC,
    vjp=lambda r, u: (-u * r[1] * np.sin(r[0]), u * np.cos(r[0])),
)


@pytest.mark.parametrize("is_function", [False, True], ids=["numpy_function", "tf.function"])
def test_a_second_derivative_by_a_vjp_of_tensors(is_function, gradient, rng):
    vjp = tf.function(lambda inputs, dy: tf.cos(inputs[0]) * dy) if is_function else sine_by_tensors
    function = cg.numpy_function(lambda x: (np.sin(x), None), SPEC, vjp=vjp)
    x, dy, u = (random_array(rng, [3]) for _ in range(3))
    by_x, by_dy = gradient(lambda x, dy: tape_vjp(function, [x], dy)[1][0], [x, dy], u)
    np.testing.assert_allclose(by_x, -u * dy * np.sin(x), rtol=1e-13)
    np.testing.assert_allclose(by_dy, u * np.cos(x), rtol=1e-13)


@pytest.mark.mode_table(feature="numpy_function, vjp", mode="jacobians")
@pytest.mark.parametrize("is_traced", [False, True], ids=["eager", "traced"])
def test_jacobians(is_traced, rng):
    function = tf.function(linear) if is_traced else linear
    matrix, right = (tf.constant(a) for a in system(rng))
    with tf.GradientTape() as tape:
        tape.watch(right)
        y = function(matrix, right)
    np.testing.assert_allclose(tape.jacobian(y, right), np.linalg.inv(matrix), rtol=1e-11, atol=1e-14)


@pytest.mark.mode_table(feature="numpy_function, vjp", mode="map_fn")
@pytest.mark.parametrize("run", [tf.map_fn, tf.vectorized_map])
def test_members_of_a_batch(run, rng):
    """Each member has its own residuals."""
    x, dy = random_array(rng, [4, 3]), random_array(rng, [4, 3])
    function = cg.numpy_function(sine, SPEC, vjp=lambda c, dy: c * dy)

    def gradient(example):
        return tape_vjp(function, [example[0]], example[1])[1][0]

    options = {"fn_output_signature": tf.float64} if run is tf.map_fn else {}
    dx = run(gradient, (tf.constant(x), tf.constant(dy)), **options)
    np.testing.assert_allclose(dx, dy * np.cos(x), rtol=1e-13)


@pytest.mark.mode_table(feature="numpy_function, vjp", mode="while_loop")
@pytest.mark.parametrize("where", ["inside", "around"])
def test_in_a_loop(where, rng):
    """Each step has its own residuals."""
    x, dy = tf.constant(random_array(rng, [3])), tf.constant(random_array(rng, [3]))
    function = cg.numpy_function(sine, SPEC, vjp=lambda c, dy: c * dy)
    loop = tf.function(lambda x: tf.while_loop(lambda i, _: i < 4, lambda i, x: (i + 1, function(x)), (0, x))[1])
    value, expected = x.numpy(), dy.numpy()
    for _ in range(4):
        value, expected = np.sin(value), expected * np.cos(value)
    (dx,) = gradients("traced" if where == "inside" else "eager", loop, [x], dy)
    np.testing.assert_allclose(dx, expected, rtol=1e-12)


@pytest.mark.mode_table(feature="numpy_function, vjp", mode="cond")
@pytest.mark.parametrize("chosen", [True, False])
def test_in_a_conditional(chosen, rng):
    x, dy = random_array(rng, [3]), random_array(rng, [3])
    function = cg.numpy_function(sine, SPEC, vjp=lambda c, dy: c * dy)
    choose = tf.function(lambda x: tf.cond(tf.constant(chosen), lambda: function(x), lambda: 2 * x))
    _, (dx,) = eager(choose, [x], dy)
    np.testing.assert_allclose(dx, dy * (np.cos(x) if chosen else 2), rtol=1e-13)


WRAPPED = {
    "recompute_grad": lambda f: cg.recompute_grad(lambda x: tf.exp(f(x))),
    "override_gradients": lambda f: cg.override_gradients(
        lambda x: tf.exp(f(x)), {"Exp": lambda op, dy: dy * op.outputs[0]}
    ),
    "custom_gradient": lambda f: cg.custom_gradient(lambda x: (tf.exp(f(x)), lambda dy: dy * tf.exp(f(x)) * tf.cos(x))),
}


@pytest.mark.parametrize(("name", "is_traced"), pairs(WRAPPED, [False, True]))
@pytest.mark.parametrize("has_vjp", [False, True], ids=["gradients", "vjp"])
def test_inside_of_other_functions_of_the_library(name, has_vjp, is_traced, rng):
    x, dy = random_array(rng, [3]), random_array(rng, [3])
    calls = []

    def counted(x):
        calls.append(1)
        return sine(x)

    function = cg.numpy_function(counted, SPEC, vjp=lambda c, dy: c * dy) if has_vjp else cg.numpy_function(counted)
    _, (dx,) = (traced if is_traced else eager)(WRAPPED[name](function), [x], dy)
    np.testing.assert_allclose(dx, dy * np.exp(np.sin(x)) * np.cos(x), rtol=1e-13)
    if name == "recompute_grad":
        assert len(calls) == 1  # Its result is kept, because it can have side effects.


def test_a_hundred_thousand_inputs_and_outputs(gradient, rng):
    """Their Jacobian would take 80 GB."""
    x, dy = random_array(rng, [100_000]), random_array(rng, [100_000])
    function = cg.numpy_function(
        lambda x: (np.cumsum(np.sin(x)), np.cos(x)),
        tf.TensorSpec([100_000], tf.float64),
        vjp=lambda c, dy: c * np.cumsum(dy[::-1])[::-1],
    )
    (dx,) = gradient(function, [x], dy)
    np.testing.assert_allclose(dx, np.cos(x) * np.cumsum(dy[::-1])[::-1], rtol=1e-12)


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_vjp_and_jvp_get_the_arguments_without_a_gradient(mode):
    """They come by keyword, as in custom_vjp: Tensors as arrays, other values as they were passed."""
    x, dy = np.array([1.0, 2.0, 3.0]), np.array([1.0, 10.0, 100.0])

    def power(x, exponents, offset=1.0):
        result = x**exponents + offset
        exponents[:] = 0.0
        return result, x.copy()

    def backward(x, dy, exponents, offset):
        assert isinstance(exponents, np.ndarray)
        return dy * exponents * x ** (exponents - 1) * offset

    function = cg.numpy_function(power, vjp=backward, jvp=backward, nondiff_argnames=["exponents", "offset"])
    exponents = tf.constant([2.0, 3.0, 1.0], tf.float64)

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch([x, exponents])
            y = function(x, exponents, offset=2.0)
        return y, *tape.gradient(y, [x, exponents], tf.constant(dy), unconnected_gradients="zero")

    y, dx, by_exponents = RUNS[mode](run)(tf.constant(x))
    np.testing.assert_allclose(y, x ** exponents.numpy() + 2.0)
    np.testing.assert_allclose(dx, 2.0 * dy * exponents.numpy() * x ** (exponents.numpy() - 1))
    np.testing.assert_array_equal(by_exponents, np.zeros(3))
    point = tf.constant(x)
    with tf.autodiff.ForwardAccumulator(point, tf.constant(dy)) as accumulator:
        y = function(point, exponents, offset=2.0)
    np.testing.assert_allclose(accumulator.jvp(y), dx)


def test_a_vjp_of_tensors_gets_them_by_keyword_too():
    square = cg.numpy_function(
        lambda x, factor: (factor * x**2, None),
        vjp=tf.function(lambda args, dy, factor: 2.0 * factor * args[0] * dy),
        nondiff_argnames=["factor"],
    )
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = square(x, factor=3.0)
    np.testing.assert_allclose(tape.gradient(y, x, tf.constant([1.0, 10.0])), [6.0, 120.0])


def test_a_gradient_for_an_integer_is_an_error_that_says_so():
    for n in (2, tf.constant(2)):
        for second in (None, np.zeros(3)):
            power = cg.numpy_function(lambda x, n, second=second: (x**n, (n * x ** (n - 1), second)))
            message = "must return 1 gradient (one for each differentiable input: 'x'), got 2. Integers, bools and other values"
            with pytest.raises(ValueError, match=re.escape(message)):
                power(tf.constant([1.0, 2.0, 3.0]), n)
