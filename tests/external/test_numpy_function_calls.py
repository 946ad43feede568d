"""How numpy_function calls its functions: how often, also for batches; with which arguments; how long it keeps them."""

import gc
import threading

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

import tf_cg_ops as cg

from ..support.functions import erf
from ..support.mode_table import fills
from ..support.modes import RUNS, eager, tape_vjp, traced
from ..support.observed import new_objects_alone
from ..support.tensors import pairs

VECTOR = tf.TensorSpec([3], tf.float64)


class Sine:
    """Functions of the sine that keep the shapes they are called with. Each works for any leading dimensions."""

    def __init__(self):
        self.shapes = {"f": [], "vjp": [], "jvp": []}

    def pair(self, x):
        self.shapes["f"].append(x.shape)
        return np.sin(x), np.cos(x)

    def jacobian(self, x):
        self.shapes["f"].append(x.shape)
        return np.sin(x), np.cos(x)[..., None] * np.eye(3)

    def vjp(self, residuals, dy):
        self.shapes["vjp"].append(dy.shape)
        return residuals * dy

    def jvp(self, residuals, t):
        self.shapes["jvp"].append(t.shape)
        return residuals * t

    def take_calls(self, kind):
        shapes, self.shapes[kind] = self.shapes[kind], []
        return shapes


def of_one(batched, function):
    """For an example without a batch."""
    return (lambda x: function(x[tf.newaxis])[0]) if batched else function


# Functions of an example, which a call computes for a batch or not, and whether it has a vjp.
BATCHED = {
    "elementwise": lambda s, b: (cg.numpy_function(s.pair, batched=b), False),
    "Jacobian": lambda s, b: (of_one(b, cg.numpy_function(s.jacobian, VECTOR, batched=b)), False),
    "vjp": lambda s, b: (of_one(b, cg.numpy_function(s.pair, VECTOR, vjp=s.vjp, jvp=s.jvp, batched=b)), True),
    "elementwise vjp": lambda s, b: (cg.numpy_function(s.pair, vjp=s.vjp, jvp=s.jvp, batched=b), True),
}


def gradient_of(function):
    return lambda pair: tape_vjp(function, [pair[0]], pair[1])[1][0]


def tangents_of(function, x, t):
    with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
        y = function(x)
    return accumulator.jvp(y)


def vectorized(function, elements):
    return tf.vectorized_map(function, elements, fallback_to_while_loop=False)


def some(f, x, dy):
    """Those whose first element is positive."""
    one = lambda p: tf.cond(p[0][0] > 0, lambda: gradient_of(f)(p), lambda: p[1])  # noqa: E731
    return tf.vectorized_map(one, (x, dy))


# What to compute of a function from x and dy in [4, 3], the result, and the leading dimension of each call.
IN_VECTORIZED_MAP = {
    "value": (lambda f, x, dy: vectorized(f, x), lambda x, dy: np.sin(x), [4]),
    "tape inside": (lambda f, x, dy: vectorized(gradient_of(f), (x, dy)), lambda x, dy: dy * np.cos(x), [4]),
    "tape outside": (
        lambda f, x, dy: gradient_of(lambda x: vectorized(f, x))((x, dy)),
        lambda x, dy: dy * np.cos(x),
        [4],
    ),
    "forward mode": (
        lambda f, x, dy: vectorized(lambda pair: tangents_of(f, *pair), (x, dy)),
        lambda x, dy: dy * np.cos(x),
        [4],
    ),
    "two of them": (
        lambda f, x, dy: vectorized(lambda x: vectorized(gradient_of(f), (tf.stack([x, x]), dy[:2])), x),
        lambda x, dy: dy[:2] * np.cos(x)[:, None],
        [8],
    ),
    "every dy for every x": (
        lambda f, x, dy: vectorized(lambda dy: vectorized(lambda x: gradient_of(f)((x, dy)), x), dy),
        lambda x, dy: dy[:, None] * np.cos(x),
        [16],
    ),
    "some": (some, lambda x, dy: np.where(x[:, :1] > 0, dy * np.cos(x), dy), [3]),
}


@pytest.mark.parametrize(("where", "name"), pairs(IN_VECTORIZED_MAP, BATCHED, quick=2))
def test_vectorized_map_calls_a_batched_function_once(where, name):
    sine = Sine()
    function, has_vjp = BATCHED[name](sine, True)
    compute, expected, sizes = IN_VECTORIZED_MAP[where]
    x, dy = np.arange(12.0).reshape(4, 3) / 5 - 0.1, 1.0 + np.arange(12.0).reshape(4, 3) ** 2
    compiled = tf.function(lambda x, dy: compute(function, x, dy))
    for _ in range(2):
        result = compiled(tf.constant(x), tf.constant(dy))
        np.testing.assert_allclose(result, expected(x, dy), rtol=1e-13)
        assert [shape[0] for shape in sine.take_calls("f")] == sizes
        derivatives = sine.take_calls("vjp") + sine.take_calls("jvp")
        assert [shape[0] for shape in derivatives] == (sizes if has_vjp and where != "value" else [])


@pytest.mark.parametrize("shared", ["x", "factor", "none"])
def test_what_is_the_same_for_all_examples_of_a_batch(shared):
    """An input that has no gradient has no batch: if it differs, each example is a call of its own."""
    calls = []

    def scaled(x, factor):
        calls.append(x.shape)
        return factor * x, factor * np.ones_like(x)

    function = cg.numpy_function(scaled, batched=True, nondiff_argnames=["factor"])
    x, factor, dy = np.arange(6.0).reshape(2, 3), np.array([3.0, 5.0]), np.array([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])
    of = {
        "x": lambda f, dy: tape_vjp(lambda x: function(x, f), [tf.constant(x[0])], dy)[1][0],
        "factor": lambda x, dy: tape_vjp(lambda x: function(x, factor[0]), [x], dy)[1][0],
        "none": lambda f, dy: tape_vjp(lambda x: function(x, f), [x[0] * f], dy)[1][0],
    }[shared]
    first = x if shared == "factor" else factor
    result = tf.function(lambda: vectorized(lambda pair: of(*pair), (tf.constant(first), tf.constant(dy))))()
    np.testing.assert_allclose(result, dy * (factor[0] if shared == "factor" else factor[:, None]))
    assert calls == ([(2, 3)] if shared == "factor" else [(3,), (3,)])


@fills("map_fn", "numpy_function", "numpy_function, vjp")
@pytest.mark.parametrize(("name", "run"), pairs(BATCHED, ["map_fn", "vectorized_map"]))
def test_other_functions_are_called_once_for_each_example(name, run):
    """And all in tf.map_fn, whose body TensorFlow runs for one element at a time."""
    sine = Sine()
    function, has_vjp = BATCHED[name](sine, run == "map_fn")
    x, dy = np.arange(12.0).reshape(4, 3), np.arange(1.0, 13.0).reshape(4, 3)
    map_over = vectorized
    if run == "map_fn":
        map_over = lambda f, x: tf.map_fn(f, x, fn_output_signature=tf.float64)  # noqa: E731
    result = tf.function(lambda: map_over(gradient_of(function), (tf.constant(x), tf.constant(dy))))()
    np.testing.assert_allclose(result, dy * np.cos(x), rtol=1e-13)
    # TensorFlow also runs the example that it vectorizes.
    assert len(sine.shapes["f"]) == (4 if run == "map_fn" else 5)
    assert len(sine.shapes["vjp"]) == 4 * has_vjp


def test_other_python_code_is_still_called_in_a_loop():
    calls, x = [], tf.ones([2, 3])

    def example(x):
        return tf.ensure_shape(tf.numpy_function(lambda x: calls.append(x.shape) or 2 * x, [x], x.dtype), [3])

    np.testing.assert_array_equal(tf.function(lambda: tf.vectorized_map(example, x))(), 2 * x)
    assert calls == [(3,)] * 3  # TensorFlow also runs the example that it traced.
    with pytest.raises(ValueError, match="No pfor vectorization defined for PyFunc"):
        tf.function(lambda: vectorized(example, x))()


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


def test_a_layer_in_fit_calls_once_for_each_batch(library):
    calls = []

    class Erf(library.layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(shape=(shape[-1],), initializer="ones", name="w")

        def call(self, x):
            return cg.numpy_function(lambda x: calls.append(1) or erf(x))(x * tf.convert_to_tensor(self.w))

    x = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    target = scipy.special.erf(0.5 * x)
    model = library.Sequential([library.layers.Input((3,)), Erf()])
    built = len(calls)
    model.compile(optimizer=library.optimizers.SGD(0.5), loss="mse", jit_compile=False)
    model.fit(x, target, epochs=2, batch_size=4, shuffle=False, verbose=0)
    assert len(calls) - built == 6
    w = np.ones(3)
    for start in [0, 4, 8] * 2:
        batch, expected = x[start : start + 4].astype(np.float64), target[start : start + 4]
        value, derivative = erf(batch * w)
        w = w - 0.5 * np.sum(2 * (value - expected) / value.size * derivative * batch, 0)
    np.testing.assert_allclose(model.get_weights()[0], w, rtol=1e-5)


@pytest.mark.parametrize("run", [eager, traced])
def test_the_function_can_overwrite_its_arguments_and_keep_its_results(run):
    """Then no Tensor and no earlier result changes."""
    buffer, slope = np.zeros(200), np.zeros(200)

    def square(x):
        assert x.flags.writeable
        buffer[:], slope[:] = x**2, 2 * x
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
@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_the_function_gets_arrays_also_for_scalars(scalar, mode):
    def check(x):
        assert type(x) is np.ndarray
        assert x.shape == ()
        return x**2, 2 * x

    function = cg.numpy_function(check, tf.TensorSpec([], tf.float64))
    assert RUNS[mode](lambda: function(scalar))().numpy() == 0.25


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


@pytest.mark.parametrize("structured", [False, True], ids=["flat", "structured"])
def test_variables_and_structures_as_arguments(structured, gradient):
    """The gradients are flat, in the order of tf.nest, which sorts the keys, or in the structure of the arguments."""

    @cg.numpy_function
    def function(tree, *rest):
        (last,) = rest
        by_x, by_v = tree["v"], tree["x"]
        flat = [by_v, by_x, np.ones(2)]
        return tree["x"] * tree["v"] + last, ({"x": by_x, "v": by_v}, np.ones(2)) if structured else flat

    v, x, dy = tf.Variable([2.0, 3.0]), np.float32([5.0, 7.0]), tf.constant([1.0, 10.0])
    dx, dv = gradient(lambda x, v: function({"v": v, "x": x}, np.float32([1.0, 1.0])), [x, v], dy)
    np.testing.assert_array_equal(dx, [2.0, 30.0])
    np.testing.assert_array_equal(dv, [5.0, 70.0])


def test_needed_tells_what_a_tape_watches(gradient):
    seen, dy = [], np.array([1.0, 2.0, 4.0])

    def vjp(residuals, dy, needed):
        seen.append(needed)
        return None, residuals * dy

    function = cg.numpy_function(lambda x, y: (x * y, x), VECTOR, vjp=vjp)
    (by_y,) = gradient(lambda y: function(2 * np.ones(3), y), [np.zeros(3)], tf.constant(dy))
    np.testing.assert_array_equal(by_y, 2 * dy)
    assert seen == [(False, True)]


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
    tangents = tangents_of(lambda x: function(x, exponents, offset=2.0), tf.constant(x), tf.constant(dy))
    np.testing.assert_allclose(tangents, dx)
    of_tensors = tf.function(lambda args, dy, factor: factor * args[0] * dy)
    square = cg.numpy_function(lambda x, factor: (x**2, None), vjp=of_tensors, nondiff_argnames=["factor"])
    np.testing.assert_allclose(tape_vjp(lambda x: square(x, factor=3.0), [tf.constant(x)], dy)[1][0], 3.0 * x * dy)


def test_a_function_that_was_traced_in_a_thread_outlives_the_thread():
    """Each thread has its own outermost graph, and that keeps the Python function alive."""
    with new_objects_alone():
        function = tf.function(
            lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, cg.numpy_function(erf)(x)), (0, x))
        )
        x = tf.constant([0.5, 1.0])
        thread = threading.Thread(target=lambda: function(x))
        thread.start()
        thread.join()
        gc.collect()
    np.testing.assert_allclose(function(x)[1], scipy.special.erf(scipy.special.erf(x)), rtol=1e-6)
