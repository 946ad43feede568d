"""custom_jvp: tangents come from the rule, gradients from its transpose."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, VJP_MODES, eager, gradients, traced
from ..support.tensors import random_array

pytestmark = pytest.mark.core


def jvp(function, args, tangents):
    with tf.autodiff.ForwardAccumulator(args, tangents) as accumulator:
        y = function(*args)
    return tf.nest.map_structure(accumulator.jvp, y)


@cg.custom_jvp
def product(matrix, vector):
    return tf.linalg.matvec(matrix, vector)


@product.defjvp
def product_jvp(primals, tangents):
    """Ten times the part of the matrix, a hundred times the part of the vector."""
    (matrix, vector), (by_matrix, by_vector) = primals, tangents
    dy = 10 * tf.linalg.matvec(by_matrix, vector) + 100 * tf.linalg.matvec(matrix, by_vector)
    return product(matrix, vector), dy


@pytest.mark.parametrize("name", VJP_MODES)
def test_the_gradient_is_the_transpose_of_the_rule(name, rng):
    matrix, vector, dy = random_array(rng, [2, 3]), random_array(rng, [3]), random_array(rng, [2])
    value, (by_matrix, by_vector) = VJP_MODES[name](product, [matrix, vector], dy)
    np.testing.assert_allclose(value, matrix @ vector, rtol=1e-13)
    np.testing.assert_allclose(by_matrix, 10 * np.outer(dy, vector), rtol=1e-13)
    np.testing.assert_allclose(by_vector, 100 * matrix.T @ dy, rtol=1e-13)


@pytest.mark.parametrize("mode", RUNS)
def test_the_tangent_comes_from_the_rule(mode, rng):
    matrix, vector, by_matrix, by_vector = (tf.constant(random_array(rng, s)) for s in ([2, 3], [3], [2, 3], [3]))
    run = RUNS[mode](lambda *args: jvp(product, args[:2], args[2:]))
    expected = 10 * by_matrix.numpy() @ vector.numpy() + 100 * matrix.numpy() @ by_vector.numpy()
    np.testing.assert_allclose(run(matrix, vector, by_matrix, by_vector), expected, rtol=1e-13)
    # With a tangent for one argument, the other gets zeros.
    only = RUNS[mode](lambda v, t: jvp(lambda v: product(matrix, v), [v], [t]))(vector, by_vector)
    np.testing.assert_allclose(only, 100 * matrix.numpy() @ by_vector.numpy(), rtol=1e-13)


def test_a_complex_rule(rng):
    """The transpose conjugates, as TensorFlow's gradients do."""
    square = cg.custom_jvp(lambda z: z**2)
    square.defjvp(lambda primals, tangents: (primals[0] ** 2, 2 * primals[0] * tangents[0]))
    z, dy = random_array(rng, [3], tf.complex128), random_array(rng, [3], tf.complex128)
    for run in (eager, traced):
        _, (dz,) = run(square, [z], dy)
        np.testing.assert_allclose(dz, run(tf.square, [z], dy)[1][0], rtol=1e-13)


@cg.custom_jvp(nondiff_argnames=["scale"])
def structured(inputs, *rest, scale=2.0, power):
    return {"sum": scale * inputs["a"] + rest[0], "which": tf.argmax(rest[0]), "all": [inputs["b"][0] ** power]}


@structured.defjvp
def structured_jvp(primals, tangents, scale):
    inputs, first, power = primals
    by_inputs, by_first, by_power = tangents
    assert by_inputs["b"][1] is None
    assert by_power is None
    assert isinstance(scale, float)
    assert power == 2
    dy = {"sum": 5 * scale * by_inputs["a"] + 7 * by_first, "which": None, "all": [inputs["a"] * by_inputs["b"][0]]}
    return structured(inputs, first, scale=scale, power=power), dy


@pytest.mark.parametrize("mode", RUNS)
def test_structures_keywords_integers_and_constants(mode, rng):
    a, b, c, t = (tf.constant(random_array(rng, [3])) for _ in range(4))

    def call(a, b, c):
        value = structured({"a": a, "b": [b, tf.constant(4)]}, c, scale=3.0, power=2)
        assert value["which"].dtype == tf.int64
        return [value["sum"], value["all"][0]]

    found = gradients(mode, call, [a, b, c], [t, 2 * t])
    np.testing.assert_allclose(found, [15 * t, 2 * t * a, 7 * t], rtol=1e-13)
    tangents = RUNS[mode](lambda: jvp(call, [a, b, c], [t, t, t]))()
    np.testing.assert_allclose(tangents, [22 * t, a * t], rtol=1e-13)


@cg.custom_jvp
def sine_times(x, y):
    return tf.sin(x) * y


@sine_times.defjvp
def sine_times_jvp(primals, tangents):
    """Seven times the part of y, so that the gradient is the rule's."""
    (x, y), (tx, ty) = primals, tangents
    return sine_times(x, y), tf.cos(x) * tx * y + 7.0 * tf.sin(x) * ty


CONSTANTS = {
    "array": np.array([3.0, -4.0, 5.0]),
    "number of NumPy": np.float64(3.0),
    "number": 3.0,
    "zeros": np.zeros([3]),
}


@pytest.mark.parametrize("mode", RUNS)
@pytest.mark.parametrize("constant", CONSTANTS)
def test_the_tangent_of_an_array_or_a_number_is_zero(constant, mode, rng):
    x, dy, t = (tf.constant(random_array(rng, [3])) for _ in range(3))
    y = CONSTANTS[constant]
    expected = np.cos(x) * y
    (dx,) = gradients(mode, lambda x: sine_times(x, y), [x], dy)
    np.testing.assert_allclose(dx, expected * dy, rtol=1e-13)
    np.testing.assert_allclose(
        RUNS[mode](lambda: jvp(lambda x: sine_times(x, y), [x], [t]))(), expected * t, rtol=1e-13
    )
    (dy_,) = gradients(mode, lambda z: sine_times(CONSTANTS["array"], z), [x], dy)
    np.testing.assert_allclose(dy_, 7 * np.sin(CONSTANTS["array"]) * dy, rtol=1e-13)


def test_only_floats_and_complex_numbers_have_a_zero_tangent(rng):
    seen = []

    @cg.custom_jvp
    def function(x, *constants):
        return 2.0 * x

    @function.defjvp
    def rule(primals, tangents):
        seen.append(tangents[1:])
        return function(*primals), 2.0 * tangents[0]

    constants = 1.5, 2j, np.float32(3.0), np.ones([2], np.complex64), 1, True, "text", None, np.arange(3)
    gradients("eager", lambda x: function(x, *constants), [tf.constant(random_array(rng, [3]))], None)
    number, imaginary, single, array, *others = seen[0]
    assert (number, imaginary) == (0.0, 0j)
    assert (single.dtype, single.shape, float(single)) == (tf.float32, [], 0.0)
    assert (array.dtype, array.shape, array.numpy().tolist()) == (tf.complex64, [2], [0j, 0j])
    assert others == [None] * 5


WEIGHT = tf.Variable(3.0, dtype=tf.float64)


@cg.custom_jvp
def weighted(x):
    return WEIGHT * x


@weighted.defjvp
def weighted_jvp(primals, tangents, variables=(), variable_tangents=()):
    """Ten times the part of x, a hundred times the part of the variable."""
    dy = 10 * variables[0] * tangents[0] + 100 * primals[0] * variable_tangents[0]
    return weighted(*primals), dy


@pytest.mark.parametrize("mode", RUNS)
def test_variables(mode, rng):
    x, dy, t = (tf.constant(random_array(rng, [3])) for _ in range(3))

    dx, by_weight = gradients(mode, lambda x, _: weighted(x), [x, WEIGHT], dy)
    np.testing.assert_allclose(dx, 30 * dy, rtol=1e-13)
    np.testing.assert_allclose(by_weight, np.sum(100 * x * dy), rtol=1e-13)
    tangent = RUNS[mode](lambda: jvp(lambda x, _: weighted(x), [x, WEIGHT], [t, tf.constant(2.0, tf.float64)]))()
    np.testing.assert_allclose(tangent, 30 * t + 200 * x, rtol=1e-13)


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_a_gather_keeps_its_gradient_sliced(mode):
    rows = cg.custom_jvp(lambda table: tf.gather(table, [2, 0]))
    rows.defjvp(lambda primals, tangents: (tf.gather(primals[0], [2, 0]), 5 * tf.gather(tangents[0], [2, 0])))
    table, dy = tf.ones([4, 2]), tf.constant([[1.0, 2.0], [10.0, 20.0]])

    (dx,) = gradients(mode, rows, [table], dy)
    assert isinstance(dx, tf.IndexedSlices)
    expected = [[50.0, 100.0], [0.0, 0.0], [5.0, 10.0], [0.0, 0.0]]
    np.testing.assert_array_equal(tf.convert_to_tensor(dx), expected)


@pytest.mark.parametrize("mode", RUNS)
def test_mixed_second_derivatives(mode, rng):
    """Forward over reverse and reverse over forward: the operations of the rule are differentiated."""
    x, dy, t = (tf.constant(random_array(rng, [3])) for _ in range(3))
    function = cg.custom_jvp(tf.sin)
    function.defjvp(lambda primals, tangents: (tf.sin(primals[0]), primals[0] ** 3 * tangents[0]))

    def vjp(function, x):
        return gradients("eager", function, [x], dy)[0]

    over_reverse = RUNS[mode](lambda: jvp(lambda x: vjp(function, x), [x], [t]))()
    over_forward = RUNS[mode](lambda: vjp(lambda x: jvp(function, [x], [t]), x))()
    np.testing.assert_allclose([over_reverse, over_forward], [3 * x**2 * dy * t] * 2, rtol=1e-12)


def test_the_rule_runs_only_for_a_derivative():
    calls = []
    function = cg.custom_jvp(tf.sin)
    function.defjvp(lambda primals, tangents: calls.append(1) or (primals[0], tangents[0]))
    x = tf.constant([1.0])
    function(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    assert not calls
    tape.gradient(y, x)
    assert len(calls) == 1
    jvp(function, [x], [x])
    assert len(calls) == 2


def test_a_rule_without_a_tangent_for_the_output():
    function = cg.custom_jvp(lambda x: (tf.sin(x), tf.cos(x)))
    function.defjvp(lambda primals, tangents: (function(*primals), (None, 3 * tangents[0])))
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        first, second = function(x)
    np.testing.assert_array_equal(tape.gradient(first, x), [0.0, 0.0])
    np.testing.assert_array_equal(tape.gradient(second, x), [3.0, 3.0])


X = tf.constant([1.0, 2.0])


def gradient(function):
    return gradients("eager", function, [X], None)
