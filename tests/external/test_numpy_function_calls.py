"""How numpy_function calls the function: how often, with which arguments, in Keras, and how long it keeps it."""

import gc
import logging
import threading

import keras
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from ..support.functions import erf
from ..support.modes import eager, traced
from ..support.processes import run_python
from ..support.sources import ROOT


class Counted:
    """erf, which counts its calls."""

    def __init__(self):
        self.calls = 0

    def erf(self, x):
        self.calls += 1
        return erf(x)


def test_value_and_gradient_are_one_call(gradient):
    """For a method, too."""
    counted = Counted()
    function = cg.numpy_function(counted.erf)
    x, dy = tf.constant([0.5, 1.0]), tf.constant([1.0, 10.0])
    function(x)
    assert counted.calls == 1
    for number in (2, 3):
        (dx,) = gradient(function, [x], dy)
        np.testing.assert_allclose(dx, dy * erf(x.numpy())[1], rtol=1e-6)
        assert counted.calls == number


def test_a_graph_merges_and_drops_no_call():
    """A simulator can draw random numbers."""
    rng, drawn = np.random.default_rng(0), []

    def noisy(x):
        drawn.append(rng.normal(size=x.shape))
        return x + drawn[-1], np.ones_like(x)

    function = cg.numpy_function(noisy)

    @tf.function
    def twice(x):
        function(x)  # The value is not used.
        return function(x), function(x)

    first, second = twice(tf.zeros([3], tf.float64))
    assert len(drawn) == 3
    np.testing.assert_array_equal(first, drawn[1])
    np.testing.assert_array_equal(second, drawn[2])


@pytest.mark.parametrize("package", [keras, tf_keras], ids=["keras3", "tf_keras"])
def test_a_layer_in_fit_calls_once_for_each_batch(package, caplog):
    counted = Counted()
    function = cg.numpy_function(counted.erf)

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
    # TensorFlow counts the traces of all models in a process together.
    assert not [record for record in caplog.records if "triggered tf.function retracing" not in record.getMessage()]
    w = np.ones(3)
    for start in [0, 4, 8] * 2:
        batch, expected = x[start : start + 4].astype(np.float64), target[start : start + 4]
        value, derivative = erf(batch * w)
        w = w - 0.5 * np.sum(2 * (value - expected) / value.size * derivative * batch, 0)
    np.testing.assert_allclose(model.get_weights()[0], w, rtol=1e-5)


@pytest.mark.parametrize("run", [eager, traced])
def test_the_function_can_overwrite_its_arguments_and_keep_its_results(run):
    """Then no Tensor and no earlier result changes."""
    buffer = np.zeros(200)

    def square(x):
        assert x.flags.writeable
        buffer[:] = x**2
        slope = 2 * x
        x[:] = -1.0
        return buffer, slope

    function = cg.numpy_function(square)
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

    function = cg.numpy_function(check, tf.TensorSpec([], tf.float64))
    assert (tf.function(lambda: function(scalar)) if traced else lambda: function(scalar))().numpy() == 0.25


def test_arguments_without_a_gradient_have_no_entry(gradient):
    """Integers, bools, strings, Python objects, and the arguments in nondiff_argnames."""
    seen = {}

    def function(x, n, flag, text, fixed, mode="a", *, scale, callback):
        seen.update(n=n, flag=flag, text=text, fixed=fixed, mode=mode, callback=callback)
        return callback(x) * scale, [scale * np.ones_like(x), callback(x)]

    wrapped = cg.numpy_function(function, nondiff_argnames=["fixed"])
    x, scale, dy = tf.constant([1.0, 2.0]), tf.constant(3.0), tf.constant([1.0, 10.0])

    others = [tf.constant([7]), tf.constant(True), tf.constant(["a", "long one"]), tf.constant(4.0)]
    dx, d_scale = gradient(lambda x, scale: wrapped(x, *others, callback=np.copy, scale=scale), [x, scale], dy)
    np.testing.assert_array_equal(dx, 3 * dy)
    assert float(d_scale) == 21.0
    assert (seen["mode"], seen["callback"]) == ("a", np.copy)
    arrays = [seen[name] for name in ("n", "flag", "text", "fixed")]
    assert [(type(array), array.dtype.kind) for array in arrays] == [(np.ndarray, kind) for kind in "ibOf"]
    assert seen["text"].tolist() == [b"a", b"long one"]


def test_variables_and_structures_as_arguments(gradient):
    v = tf.Variable([2.0, 3.0])

    @cg.numpy_function
    def function(tree, *rest):
        (last,) = rest
        return tree["x"] * tree["v"] + last, [tree["v"], tree["x"], np.ones(2)]

    x, dy = np.float32([5.0, 7.0]), tf.constant([1.0, 10.0])
    dx, dv = gradient(lambda x, v: function({"v": v, "x": x}, np.float32([1.0, 1.0])), [x, v], dy)
    # In the order of tf.nest: the keys are sorted.
    np.testing.assert_array_equal(dx, [5.0, 70.0])
    np.testing.assert_array_equal(dv, [2.0, 30.0])


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Of Keras.
def test_a_keras_file_has_no_graph(tmp_path):
    """A training run can be stored: the weights in the file, the Python function in the code."""

    class Erf(keras.layers.Layer):
        def call(self, x):
            return cg.numpy_function(erf)(x)

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2), Erf()])
    x = np.array([[0.5, 1.0]], np.float32)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", custom_objects={"Erf": Erf})
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


def test_a_function_that_was_traced_in_a_thread_outlives_the_thread():
    """Each thread has its own outermost graph, and that keeps the Python function alive."""
    function = tf.function(
        lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, cg.numpy_function(erf)(x)), (0, x))
    )
    x = tf.constant([0.5, 1.0])
    thread = threading.Thread(target=lambda: function(x))
    thread.start()
    thread.join()
    gc.collect()
    np.testing.assert_allclose(function(x)[1], scipy.special.erf(scipy.special.erf(x)), rtol=1e-6)


LEAKS = """
import gc, weakref
import numpy as np
import tensorflow as tf
import tf_cg_ops as cg

def run(**options):
    big = tf.Variable([1.0, 2.0])
    f = cg.numpy_function(lambda x: (x, np.ones_like(x)), **options)
    traced = tf.function(lambda x: f(x * big))
    with tf.GradientTape() as tape:
        y = traced(tf.ones([2]))
    tape.gradient(y, big)
    graph = traced.get_concrete_function(tf.ones([2])).graph
    return [weakref.ref(graph), weakref.ref(big)]

references = run() + run(vjp=lambda residuals, dy: residuals * dy)
gc.collect()
print([reference() is None for reference in references])
"""


def test_a_traced_function_is_freed(tmp_path):
    """Only the Python function is kept, as with tf.numpy_function."""
    result = run_python(LEAKS, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    assert result.stdout.splitlines()[-1] == "[True, True, True, True]"
