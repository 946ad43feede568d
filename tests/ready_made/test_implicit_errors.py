"""Implicit functions without a derivative or a solution raise an error; they never give a wrong gradient."""

import contextlib
import re

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


def pair(x):
    return [2.0 * x, 2.0 * x]


def leaves_tensorflow(y, x):
    return 0.5 * (y.numpy() if tf.executing_eagerly() else tf.stop_gradient(y)) + x


# The API, the user's function, the solver, and the name of the unknown without a derivative.
WITHOUT_DERIVATIVE = {
    "NumPy": (cg.implicit_fixed_point, leaves_tensorflow, twice, "y"),
    "stop_gradient": (cg.implicit_fixed_point, lambda y, x: 0.5 * tf.stop_gradient(y) + x, twice, "y"),
    "round": (cg.implicit_fixed_point, lambda y, x: 0.5 * tf.round(y) + x, twice, "y"),
    "one of several": (
        cg.implicit_fixed_point,
        lambda y, x: [0.5 * tf.stop_gradient(y[0]) + x, 0.5 * y[1] + x],
        pair,
        "y[0]",
    ),
    "one in a dictionary": (
        cg.implicit_root,
        lambda y, x: {"a": y["a"] - x, "b": y["a"] - x},
        lambda x: {"a": x, "b": x},
        "y['b']",
    ),
    "integers": (cg.implicit_root, lambda y, x: tf.cast(tf.cast(y, tf.int32), x.dtype) - x, tf.identity, "y"),
    "no y": (cg.implicit_root, lambda y, x: x - x, twice, "y"),
    "a linear objective": (cg.implicit_minimum, lambda y, x: tf.reduce_sum(y * x), twice, "y"),
}
NOUNS = {
    cg.implicit_root: ("residual", "derivative"),
    cg.implicit_fixed_point: ("function", "derivative"),
    cg.implicit_minimum: ("objective", "second derivative"),
}


@pytest.mark.parametrize(("case", "run"), pairs(WITHOUT_DERIVATIVE, RUNS))
def test_no_derivative_with_respect_to_the_unknowns_is_an_error(case, run):
    api, function, solve, name = WITHOUT_DERIVATIVE[case]
    noun, derivative = NOUNS[api]
    message = (
        f"{api.__name__}: the {noun} '{function.__name__}' of '{getattr(solve, '__name__', '')}' must have a {derivative} "
        f"with respect to {name}, but TensorFlow finds none. Use {name}, and only TensorFlow operations that have a "
        "derivative; call NumPy through tf_cg_ops.numpy_function."
    )
    solved = api(function, solve)
    with pytest.raises(ValueError, match=re.escape(message)):
        gradient_of(lambda x: tf.nest.flatten(solved(x))[0], run)


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


def kepler(y, x):
    return y - 0.3 * tf.sin(y) - x


def kepler_by_steps(x, steps=60):
    y = x
    for _ in range(steps):
        y = x + 0.3 * tf.sin(y)
    return y


def swapped(x, y):
    """The arguments in the wrong order."""
    return y**3 + y - x


def two_steps(x):
    """The iteration y = x / y goes back and forth between 1 and x."""
    y = tf.ones_like(x)
    for _ in range(20):
        y = x / y
    return y


def distance(x, y):
    return tf.reduce_sum((y - 3.0 * x) ** 2)


NOT_SOLVED = {
    "swapped arguments": (
        cg.implicit_root,
        swapped,
        kepler_by_steps,
        "must be zero at the y that {} returns, got numbers up to",
        "2",
    ),
    "a map that does not contract": (
        cg.implicit_fixed_point,
        lambda y, x: x / y,
        two_steps,
        "must return the y that {} returns, got numbers that differ from it by up to",
        "2",
    ),
    "a minimum": (
        cg.implicit_minimum,
        distance,
        twice,
        "must have a gradient of zero at the y that {} returns, got numbers up to",
        "90",
    ),
}


@pytest.mark.parametrize(("case", "run"), [(case, run) for case in NOT_SOLVED for run in RUNS])
def test_a_y_that_does_not_solve_the_equations_is_an_error(case, run):
    """In eager mode and in graphs. XLA drops assertions."""
    api, function, solve, law, largest = NOT_SOLVED[case]
    gradient_of(api(function, solve, check_solution=False), run)
    if run == "jit":
        gradient_of(api(function, solve), run)
        return
    with pytest.raises(ValueError if run == "eager" else tf.errors.InvalidArgumentError) as error:
        gradient_of(api(function, solve), run)
    text = str(error.value).replace(r"\'", "'")  # TensorFlow escapes quotes in the text of an assertion.
    noun, name = NOUNS[api][0], f"'{solve.__name__}'"
    expected = f"{api.__name__}: the {noun} '{function.__name__}' of {name} {law.format(name)}"
    assert expected in text
    assert largest in text.partition(expected)[2]
    assert f"Check that the {noun} takes y first and that the solver converges, or pass check_solution=False." in text


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


@pytest.mark.parametrize("run", ["eager", "traced"])
def test_exceptions_of_the_residual_arrive_unchanged(run):
    def residual(y, x):
        raise ValueError("my own")

    with pytest.raises(ValueError, match="my own"):
        gradient_of(cg.implicit_root(residual, twice), run)


@pytest.mark.parametrize(("dtype", "scale"), pairs([tf.float16, tf.bfloat16, tf.float32, tf.float64], [0.0, 1.0, 1e3]))
def test_the_check_of_a_solution_allows_for_rounding(dtype, scale):
    """Unknowns that are zero except for their last digits, and differences of large numbers."""
    x = tf.cast([scale, 2 * scale, -scale], dtype)
    function = cg.implicit_root(lambda y, x: (y + x) - x, lambda x: 1e-4 + tf.zeros_like(x))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    np.testing.assert_allclose(tf.cast(tape.gradient(y, x), tf.float64), np.zeros(3))


def test_the_switch_for_the_check_is_a_bool():
    message = "implicit_root: check_solution must be True or False, got 1. Pass a Python bool."
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        cg.implicit_root(kepler, kepler_by_steps, check_solution=1)


def test_residual_and_solver_exchanged():
    message = (
        "implicit_root: the residual must come first and the solver second, got 'kepler_by_steps' and 'kepler'. Write "
        "implicit_root(kepler, kepler_by_steps)."
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        gradient_of(cg.implicit_root(steps_of_a_solver, kepler))


def steps_of_a_solver(x):
    return kepler_by_steps(x)


steps_of_a_solver.__qualname__ = "kepler_by_steps"


def test_a_residual_with_other_parameters():
    message = (
        "implicit_root: the residual 'twice' of 'kepler_by_steps' must take y and then the arguments of "
        "'kepler_by_steps', got twice(x)."
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        gradient_of(cg.implicit_root(twice, kepler_by_steps))


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
