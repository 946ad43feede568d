"""Where implicit functions raise an error, and where they do not. The messages are in tests/messages."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, vjp
from ..support.processes import run_python
from ..support.sources import ROOT
from ..support.tensors import pairs

X, DY = np.array([1.0, 2.0, 3.0]), np.array([1.0, 10.0, 100.0])


def gradient_of(function, run="eager"):
    def gradient(x):
        return vjp(lambda: function(x), x, tf.constant(DY))[1]

    return RUNS[run](gradient)(tf.constant(X))


def twice(x):
    return 2.0 * x


@pytest.mark.parametrize(("decorate", "run"), [(tf.function, "eager"), (lambda f: f, "jit")])
def test_a_fixed_point_need_not_depend_on_each_unknown(decorate, run):
    """As in the Gauss-Seidel method: a = b / 2 + x and b = a / 4 + x have the solution a = 12/7 x, b = 10/7 x."""

    @decorate
    def step(y, x):
        a = 0.5 * y[1] + x
        return [a, 0.25 * a + x]

    solved = cg.implicit_fixed_point(step, lambda x: [12 / 7 * x, 10 / 7 * x])
    np.testing.assert_allclose(gradient_of(lambda x: 2.0 * solved(x)[0] + solved(x)[1], run), 34 / 7 * DY)
    np.testing.assert_allclose(gradient_of(cg.implicit_fixed_point(lambda y, x: 2.0 * x, twice), run), 2 * DY)


@pytest.mark.parametrize("run", RUNS)
def test_an_argument_without_a_derivative_has_no_gradient(run):
    function = cg.implicit_root(lambda y, x, z: y - x + tf.stop_gradient(z), lambda x, z: x - z)

    @RUNS[run]
    def gradients(x, z):
        return vjp(lambda: function(x, z), [x, z], tf.constant(DY))[1]

    dx, dz = gradients(tf.constant(X), tf.constant(X))
    np.testing.assert_allclose(dx, DY)
    assert dz is None


def kepler_by_steps(x, steps=60):
    y = x
    for _ in range(steps):
        y = x + 0.3 * tf.sin(y)
    return y


@pytest.mark.parametrize(
    ("number", "dtype", "run"), [(x, t, run) for x in (0.5, 0.2) for t in (tf.float16, tf.float64) for run in RUNS]
)
def test_a_solver_may_be_off_by_a_few_percent_everywhere(number, dtype, run):
    """A solver of y = 1 / x."""
    x = tf.constant([number], dtype)
    for error in (0.0, 0.02, 0.05, -0.05, 0.3, -0.2):
        inverse = cg.implicit_root(lambda y, x: y * x - 1.0, lambda x, e=error: (1.0 + e) / x)
        gradient = RUNS[run](lambda x, inverse=inverse: vjp(lambda: inverse(x), x)[1])
        refused = pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="must be zero at the y")
        with refused if abs(error) > 0.1 and run != "jit" else contextlib.nullcontext():
            np.testing.assert_allclose(gradient(x), [-(1 + error) / number**2], rtol=1e-2)


@pytest.mark.parametrize(("dtype", "scale"), pairs([tf.float16, tf.bfloat16, tf.float32, tf.float64], [0.0, 1.0, 1e3]))
def test_the_check_of_a_solution_allows_for_rounding(dtype, scale):
    """Unknowns that are zero except for their last digits, and differences of large numbers."""
    x = tf.cast([scale, 2 * scale, -scale], dtype)
    function = cg.implicit_root(lambda y, x: (y + x) - x, lambda x: 1e-4 + tf.zeros_like(x))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    np.testing.assert_allclose(tf.cast(tape.gradient(y, x), tf.float64), np.zeros(3))


def swapped(x, y):
    """The arguments in the wrong order."""
    return y**3 + y - x


def steps_of_a_solver(x):
    return kepler_by_steps(x)


steps_of_a_solver.__qualname__ = "kepler_by_steps"


@pytest.mark.parametrize(("run", "order"), [("eager", 2), ("traced", 1), ("jit", 2)])
def test_a_watched_variable_that_is_not_trainable_has_a_gradient(order, run):
    """y = x / (v w), so dv = -dy x / (v**2 w), and the same once more with respect to v."""
    v, w = (
        tf.Variable([1.0, 2.0, 4.0], trainable=False, dtype=tf.float64),
        tf.Variable([2.0, 3.0, 5.0], dtype=tf.float64),
    )
    function = cg.implicit_root(lambda y, x: y * v * w - x, lambda x: x / (v * w))

    @RUNS[run]
    def gradients(x):
        with tf.GradientTape() as outer:
            outer.watch(v)
            _, found = vjp(lambda: function(x), [x, v, w], tf.constant(DY))
        return [*found, outer.gradient(found[1], v)] if order == 2 else found

    x, a, b = X, v.numpy(), w.numpy()
    expected = [DY / (a * b), -DY * x / (a**2 * b), -DY * x / (a * b**2), 2 * DY * x / (a**3 * b)]
    for found, number in zip(gradients(tf.constant(X)), expected, strict=False):
        np.testing.assert_allclose(found, number, rtol=1e-12)


@pytest.mark.parametrize("run", RUNS)
def test_a_variable_in_several_places_has_one_gradient_for_each_use(run):
    """y**2 = a b w, where a, b and w are the same variable."""
    w = tf.Variable([4.0, 5.0, 6.0], dtype=tf.float64)
    function = cg.implicit_root(lambda y, a, b: y**2 - a * b * w, lambda a, b: tf.sqrt(a * b * w))

    @RUNS[run]
    def gradient():
        return vjp(lambda: function(w, w), w, tf.constant(DY))[1]

    np.testing.assert_allclose(gradient(), DY * 1.5 * np.sqrt(w.numpy()), rtol=1e-12)


RELOAD = """
import sys
import numpy as np
import tensorflow as tf
import tf_cg_ops

model = tf.saved_model.load(sys.argv[1])
x, dy = tf.constant([1.0, 2.0, 3.0], tf.float64), tf.constant([1.0, 10.0, 100.0], tf.float64)
with tf.GradientTape() as tape:
    tape.watch([x, model.v])
    y = model.right(x)
dx, dv = tape.gradient(y, [x, model.v], output_gradients=dy)
np.testing.assert_allclose(dx, dy / 2.0)
np.testing.assert_allclose(dv, -tf.reduce_sum(dy * x) / 4.0)
for function, kind in [(model.lost, RuntimeError), (model.unsolved, tf.errors.InvalidArgumentError)]:
    try:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        tape.gradient(y, x, output_gradients=dy)
    except kind as error:
        print(str(error).replace(chr(92), ""))
"""


def test_a_reloaded_model_has_the_errors_and_the_gradient_of_the_watched_variable(tmp_path):
    model = tf.Module()
    model.v = tf.Variable(2.0, trainable=False, dtype=tf.float64)
    functions = {
        "right": cg.implicit_root(lambda y, x: y * model.v - x, lambda x: x / model.v),
        "lost": cg.implicit_root(lambda y, x: tf.round(y) - x, twice),
        "unsolved": cg.implicit_root(lambda x, y: swapped(x, y), steps_of_a_solver),
    }
    for name, function in functions.items():
        setattr(model, name, tf.function(function, input_signature=[tf.TensorSpec([3], tf.float64)]))
    tf.saved_model.save(model, tmp_path / "model")
    printed = run_python(RELOAD, tmp_path / "model", cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)}).stdout
    assert "implicit_root: the residual '<lambda>' of 'twice' must have a derivative with respect to y" in printed
    assert "implicit_root: the residual '<lambda>' of 'kepler_by_steps' must be zero at the y that" in printed
