"""from_numpy: values and gradients that NumPy and SciPy compute, against the vector-Jacobian product by hand."""

import json
import logging

import keras
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from .support.processes import run_python
from .support.regimes import REGIMES, eager, traced
from .support.sources import ROOT
from .support.tensors import random_array

# XLA compiles no Python: see test_from_numpy_errors.py.
WITHOUT_XLA = [name for name in REGIMES if not name.startswith("jit")]


@pytest.fixture(params=WITHOUT_XLA)
def regime(request):
    return REGIMES[request.param]


def erf(x):
    return scipy.special.erf(x), 2 / np.sqrt(np.pi) * np.exp(-(x**2))


def lennard_jones(positions, charge):
    """The energy of particles in [n, 3], and its gradients by their positions and by a charge."""
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


def test_an_elementwise_function_of_scipy(regime, rng):
    x, dy = random_array(rng, [4, 3]), random_array(rng, [4, 3])
    value, (dx,) = regime(cg.from_numpy(erf), [x], dy)
    np.testing.assert_allclose(value, scipy.special.erf(x), rtol=1e-14)
    np.testing.assert_allclose(dx, dy * erf(x)[1], rtol=1e-14)


def test_elementwise_inputs_broadcast(regime, rng):
    x, y, dy = random_array(rng, [4, 1]), random_array(rng, [3]), random_array(rng, [4, 3])

    def product(x, y):
        return x * np.exp(y), (np.broadcast_to(np.exp(y), (4, 3)), x * np.exp(y))

    value, (dx, d_y) = regime(cg.from_numpy(product), [x, y], dy)
    np.testing.assert_allclose(value, x * np.exp(y), rtol=1e-14)
    np.testing.assert_allclose(dx, np.sum(dy * np.exp(y), 1, keepdims=True), rtol=1e-13)
    np.testing.assert_allclose(d_y, np.sum(dy * x * np.exp(y), 0), rtol=1e-13)


@pytest.mark.parametrize("dimensions", [[3], [None]], ids=str)
def test_a_jacobian_from_an_initial_value_problem(regime, dimensions):
    rates, dy = np.array([0.5, 1.0, 2.0]), np.array([1.0, 10.0, 100.0])
    value, (dx,) = regime(cg.from_numpy(decay, tf.TensorSpec(dimensions, tf.float64)), [rates], dy)
    np.testing.assert_allclose(value, np.exp(-rates), rtol=1e-8)
    np.testing.assert_allclose(dx, -np.exp(-rates) * dy, rtol=1e-8)


def test_a_scalar_of_inputs_of_several_ranks(regime, rng):
    positions, charge, dy = random_array(rng, [5, 3]), np.array(0.7), np.array(3.0)
    value, gradients = regime(cg.from_numpy(lennard_jones, tf.TensorSpec([], tf.float64)), [positions, charge], dy)
    expected, expected_gradients = lennard_jones(positions, charge)
    np.testing.assert_allclose(value, expected, rtol=1e-14)
    for actual, by_hand in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(actual, 3.0 * by_hand, rtol=1e-13)


def matrix_outputs(a, b):
    """[B, 2, 4] from [B, 2, 3] and [B, 3, 4]; one number more from [B]."""
    by_a = np.einsum("ik,Bjl->Bilkj", np.eye(2), b)
    by_b = np.einsum("lm,Bij->Biljm", np.eye(4), a)
    return a @ b, [by_a, by_b]


def test_a_batch_is_one_call(regime, rng):
    a, b, dy = random_array(rng, [5, 2, 3]), random_array(rng, [5, 3, 4]), random_array(rng, [5, 2, 4])
    function = cg.from_numpy(matrix_outputs, tf.TensorSpec([2, 4], tf.float64), batched=True)
    value, (da, db) = regime(function, [a, b], dy)
    np.testing.assert_allclose(value, a @ b, rtol=1e-14)
    np.testing.assert_allclose(da, dy @ np.swapaxes(b, 1, 2), rtol=1e-13)
    np.testing.assert_allclose(db, np.swapaxes(a, 1, 2) @ dy, rtol=1e-13)


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("run", [eager, traced])
def test_a_batch_of_inputs_of_several_ranks(run, size, rng):
    a, b, dy = random_array(rng, [size, 2, 3]), random_array(rng, [size]), random_array(rng, [size])

    def scaled_sum(a, b):
        total = np.sum(a, (1, 2))
        return total * b, (np.ones_like(a) * b[:, None, None], total)

    value, (da, db) = run(cg.from_numpy(scaled_sum, tf.TensorSpec([], tf.float64), batched=True), [a, b], dy)
    np.testing.assert_allclose(value, a.sum((1, 2)) * b)
    np.testing.assert_allclose(da, (dy * b)[:, None, None] * np.ones_like(a))
    np.testing.assert_allclose(db, dy * a.sum((1, 2)))


def test_one_example_at_a_time_with_map_fn(regime, rng):
    rates, dy = np.exp(random_array(rng, [4, 2])), random_array(rng, [4, 2])
    one = cg.from_numpy(decay, tf.TensorSpec([2], tf.float64))
    value, (dx,) = regime(lambda x: tf.map_fn(one, x), [rates], dy)
    np.testing.assert_allclose(value, np.exp(-rates), rtol=1e-8)
    np.testing.assert_allclose(dx, -np.exp(-rates) * dy, rtol=1e-8)


def test_in_a_while_loop(rng):
    x, dy = random_array(rng, [3]), random_array(rng, [3])
    function = cg.from_numpy(erf)

    def loop(x):
        return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, function(y)), (0, x))[1]

    inner = scipy.special.erf(x)
    for run in (eager, traced, REGIMES["tf1_session"]):
        value, (dx,) = run(loop, [x], dy)
        np.testing.assert_allclose(value, scipy.special.erf(inner), rtol=1e-13)
        np.testing.assert_allclose(dx, dy * erf(inner)[1] * erf(x)[1], rtol=1e-13)


class Counted:
    """erf, which counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return erf(x)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_value_and_gradient_are_one_call(traced):
    counted = Counted()
    function = cg.from_numpy(counted)
    x, dy = tf.constant([0.5, 1.0]), tf.constant([1.0, 10.0])

    def forward(x):
        return function(x)

    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x, output_gradients=dy)

    if traced:
        forward, both = tf.function(forward), tf.function(both)
    forward(x)
    assert counted.calls == 1
    np.testing.assert_allclose(both(x), dy * erf(x.numpy())[1], rtol=1e-6)
    assert counted.calls == 2
    both(x)
    assert counted.calls == 3


def test_a_graph_merges_and_drops_no_call():
    """A simulator may draw random numbers."""
    rng, drawn = np.random.default_rng(0), []

    def noisy(x):
        drawn.append(rng.normal(size=x.shape))
        return x + drawn[-1], np.ones_like(x)

    function = cg.from_numpy(noisy)

    @tf.function
    def twice(x):
        function(x)  # Nobody reads it.
        return function(x), function(x)

    first, second = twice(tf.zeros([3], tf.float64))
    assert len(drawn) == 3
    np.testing.assert_array_equal(first, drawn[1])
    np.testing.assert_array_equal(second, drawn[2])


@pytest.mark.parametrize("package", [keras, tf_keras], ids=["keras3", "tf_keras"])
def test_a_layer_in_fit_calls_once_for_each_batch(package, caplog):
    counted = Counted()
    function = cg.from_numpy(counted)

    class Erf(package.layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(shape=(shape[-1],), initializer="ones", name="w")

        def call(self, x):
            return function(x * tf.convert_to_tensor(self.w))

    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 3)).astype(np.float32)
    target = scipy.special.erf(0.5 * x)
    model = package.Sequential([package.layers.Input((3,)), Erf()])
    built = counted.calls
    model.compile(optimizer=package.optimizers.SGD(0.5), loss="mse", jit_compile=False)
    with caplog.at_level(logging.WARNING, "tensorflow"):
        model.fit(x, target, epochs=2, batch_size=4, shuffle=False, verbose=0)
    assert counted.calls - built == 6
    assert not caplog.records
    w = np.ones(3)
    for start in [0, 4, 8] * 2:
        batch, expected = x[start : start + 4].astype(np.float64), target[start : start + 4]
        value, derivative = erf(batch * w)
        w = w - 0.5 * np.sum(2 * (value - expected) / value.size * derivative * batch, 0)
    np.testing.assert_allclose(model.get_weights()[0], w, rtol=1e-5)


@pytest.mark.parametrize("run", [eager, traced])
def test_the_function_may_write_into_its_arguments_and_keep_its_results(run):
    """Neither a Tensor nor an earlier result changes."""
    buffer = np.zeros(200)

    def square(x):
        assert x.flags.writeable
        buffer[:] = x**2
        slope = 2 * x
        x[:] = -1.0
        return buffer, slope

    function = cg.from_numpy(square)
    x = np.arange(200.0)

    def twice(x):
        first = function(x)
        with tf.control_dependencies([first]):
            second = function(x + 1.0)
        return tf.stack([first, second, x**2])

    value, (dx,) = run(twice, [x], np.ones([3, 200]))
    np.testing.assert_array_equal(value, [x**2, (x + 1) ** 2, x**2])
    np.testing.assert_allclose(dx, 6 * x + 2)


@pytest.mark.parametrize(
    "scalar", [0.5, np.float32(0.5), np.array(0.5), tf.constant(0.5)], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_the_function_gets_arrays_also_for_scalars(scalar, traced):
    def check(x):
        assert type(x) is np.ndarray
        assert x.shape == ()
        return x**2, 2 * x

    function = cg.from_numpy(check, tf.TensorSpec([], tf.float64))
    assert (tf.function(lambda: function(scalar)) if traced else lambda: function(scalar))().numpy() == 0.25


@pytest.mark.parametrize("result", [np.float16, np.int8, np.bool_, np.float64, "list"], ids=str)
def test_results_of_any_kind_are_cast(dtype, result):
    x = np.array([1.0, 0.0, 1.0])

    def function(_):
        return (x.tolist(), (2 * x).tolist()) if result == "list" else (x.astype(result), x.astype(result))

    z = tf.constant(x, dtype)
    for run in (lambda f: f(), lambda f: tf.function(f)()):
        with tf.GradientTape() as tape:
            tape.watch(z)
            y = run(lambda: cg.from_numpy(function)(z))
        dz = tape.gradient(y, z, output_gradients=tf.constant([1, 10, 100], dtype))
        assert y.dtype == dz.dtype == dtype
        factor = 2 if result == "list" else 1
        np.testing.assert_array_equal(tf.cast(y, tf.complex64), x)
        np.testing.assert_array_equal(tf.cast(dz, tf.complex64), factor * x * [1, 10, 100])


@pytest.mark.parametrize("run", [eager, traced])
def test_the_output_may_have_another_dtype_than_the_inputs(run, rng):
    x = random_array(rng, [3]).astype(np.float32)
    dy = random_array(rng, [3])
    value, (dx,) = run(
        cg.from_numpy(lambda x: (np.sin(x.astype(float)), np.diag(np.cos(x))), tf.TensorSpec([3], tf.float64)), [x], dy
    )
    np.testing.assert_allclose(value, np.sin(x.astype(float)), rtol=1e-14)
    assert dx.dtype == np.float32
    np.testing.assert_allclose(dx, dy * np.cos(x), rtol=1e-6)


@pytest.mark.parametrize("run", [eager, traced])
def test_a_complex_function(run, rng):
    """The Faddeeva function, w' = -2 z w + 2i / sqrt(pi)."""
    z, dy = random_array(rng, [4], tf.complex128), random_array(rng, [4], tf.complex128)

    def faddeeva(z):
        w = scipy.special.wofz(z)
        return w, -2 * z * w + 2j / np.sqrt(np.pi)

    value, (dz,) = run(cg.from_numpy(faddeeva), [z], dy)
    np.testing.assert_allclose(value, scipy.special.wofz(z), rtol=1e-13)
    np.testing.assert_allclose(dz, dy * np.conj(faddeeva(z)[1]), rtol=1e-12)


@pytest.mark.parametrize("run", [eager, traced])
def test_real_values_of_complex_inputs_and_complex_values_of_real_inputs(run, rng):
    z, x = random_array(rng, [3], tf.complex128), random_array(rng, [3])
    dy = random_array(rng, [3])

    def real(z, x):
        return np.abs(z) * x, [np.diag(np.conj(z) / np.abs(z) * x), np.diag(np.abs(z))]

    value, (dz, dx) = run(cg.from_numpy(real, tf.TensorSpec([3], tf.float64)), [z, x], dy)
    stock, (stock_dz, stock_dx) = run(lambda z, x: tf.abs(z) * x, [z, x], dy)
    for actual, expected in zip((value, dz, dx), (stock, stock_dz, stock_dx), strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, rtol=1e-13)

    dz = random_array(rng, [3], tf.complex128)
    phase = cg.from_numpy(lambda x: (np.exp(1j * x), np.diag(1j * np.exp(1j * x))), tf.TensorSpec([3], tf.complex128))
    _, (dx,) = run(phase, [x], dz)
    np.testing.assert_allclose(dx, np.real(dz * np.conj(1j * np.exp(1j * x))), rtol=1e-13)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_what_has_no_gradient_has_no_entry(traced):
    """Integers, bools, strings, Python objects, and what nondiff_argnames names."""
    seen = {}

    def function(x, n, flag, text, fixed, mode="a", *, scale, callback):
        seen.update(n=n, flag=flag, text=text, fixed=fixed, mode=mode, callback=callback)
        return callback(x) * scale, [scale * np.ones_like(x), callback(x)]

    wrapped = cg.from_numpy(function, nondiff_argnames=["fixed"])
    x, scale, dy = tf.constant([1.0, 2.0]), tf.constant(3.0), tf.constant([1.0, 10.0])

    def run(x, scale):
        with tf.GradientTape() as tape:
            tape.watch([x, scale])
            y = wrapped(
                x,
                tf.constant([7]),
                tf.constant(True),
                tf.constant(["a", "long one"]),
                tf.constant(4.0),
                callback=np.copy,
                scale=scale,
            )
        return tape.gradient(y, [x, scale], output_gradients=dy)

    dx, d_scale = (tf.function(run) if traced else run)(x, scale)
    np.testing.assert_array_equal(dx, 3 * dy)
    assert float(d_scale) == 21.0
    assert (seen["mode"], seen["callback"]) == ("a", np.copy)
    assert {name: (type(seen[name]), seen[name].dtype.kind) for name in ("n", "flag", "text", "fixed")} == {
        name: (np.ndarray, kind) for name, kind in zip(("n", "flag", "text", "fixed"), "ibOf", strict=True)
    }
    assert seen["text"].tolist() == [b"a", b"long one"]


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_variables_and_structures_as_arguments(traced):
    v = tf.Variable([2.0, 3.0])

    def function(tree, *rest):
        (last,) = rest
        return tree["x"] * tree["v"] + last, [tree["v"], tree["x"], np.ones(2)]

    wrapped = cg.from_numpy(function)

    def run():
        with tf.GradientTape() as tape:
            y = wrapped({"v": v, "x": tf.constant([5.0, 7.0])}, np.float32([1.0, 1.0]))
        return y, tape.gradient(y, v, output_gradients=tf.constant([1.0, 10.0]))

    y, dv = (tf.function(run) if traced else run)()
    np.testing.assert_array_equal(y, [11.0, 22.0])
    # In the order of tf.nest: the keys are sorted.
    np.testing.assert_array_equal(dv, [2.0, 30.0])


def test_a_method(rng):
    class Simulator:
        scale = 3.0

        @cg.from_numpy
        def scaled(self, x):
            return self.scale * x, self.scale * np.ones_like(x)

    x, dy = random_array(rng, [3]), random_array(rng, [3])
    _, (dx,) = eager(Simulator().scaled, [x], dy)
    np.testing.assert_array_equal(dx, 3 * dy)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_there_is_no_second_derivative(traced):
    x = tf.constant([0.5, 1.0])

    def run(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = cg.from_numpy(erf)(x)
            dx = inner.gradient(y, x)
        assert outer.gradient(dx, x) is None
        return dx

    np.testing.assert_allclose((tf.function(run) if traced else run)(x), erf(x.numpy())[1], rtol=1e-6)


def test_tangents(rng):
    x, t = random_array(rng, [3]), random_array(rng, [3])

    def jvp(x, t):
        with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
            y = cg.from_numpy(erf)(x)
        return accumulator.jvp(y)

    for run in (jvp, tf.function(jvp)):
        np.testing.assert_allclose(run(tf.constant(x), tf.constant(t)), t * erf(x)[1], rtol=1e-13)


def test_jacobians(rng):
    x = random_array(rng, [3])
    function = cg.from_numpy(decay, tf.TensorSpec([3], tf.float64))
    with tf.GradientTape() as tape:
        z = tf.constant(x)
        tape.watch(z)
        y = function(z)
    np.testing.assert_allclose(tape.jacobian(y, z, experimental_use_pfor=True), decay(x)[1], rtol=1e-12)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Of Keras.
def test_a_keras_file_holds_no_graph(tmp_path):
    """What runs in training can be stored: the weights in the file, the Python function in the code."""

    class Erf(keras.layers.Layer):
        def call(self, x):
            return cg.from_numpy(erf)(x)

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2), Erf()])
    x = np.array([[0.5, 1.0]], np.float32)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", custom_objects={"Erf": Erf})
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


LEAKS = """
import gc, json, weakref
import numpy as np
import tensorflow as tf
import tf_cg_ops as cg

def run():
    big = tf.Variable([1.0, 2.0])
    f = cg.from_numpy(lambda x: (x, np.ones_like(x)))
    traced = tf.function(lambda x: f(x * big))
    traced(tf.ones([2]))
    graph = traced.get_concrete_function(tf.ones([2])).graph
    return weakref.ref(graph), weakref.ref(big)

references = run()
gc.collect()
print(json.dumps([reference() is None for reference in references]))
"""


def test_a_traced_function_is_freed(tmp_path):
    """Only the Python function stays, as with tf.numpy_function."""
    result = run_python(LEAKS, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    assert json.loads(result.stdout.splitlines()[-1]) == [True, True]
