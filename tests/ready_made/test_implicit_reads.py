"""What an implicit function or a linear solver reads: Tensors in several places, closures, variables, containers."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, tape_vjp
from ..support.processes import run_python
from ..support.sources import ROOT

X, DY = np.array([0.5, 2.0]), np.array([3.0, 7.0])
S = np.array([[4.0, 1.0], [1.0, 3.0]])
SOLVE = {"cg": functools.partial(cg.linear.cg, tol=1e-13), "gmres": functools.partial(cg.linear.gmres, tol=1e-13)}

# The same function a * b**2, as a root, a fixed point and a minimum, with every kind of linear system.
KINDS = {
    "root": lambda value: cg.implicit_root(lambda y, a, b: y - value(a, b), value),
    "batch": lambda value: cg.implicit_root(lambda y, a, b: y - value(a, b), value, batched=True),
    "matrix-free": lambda value: cg.implicit_root(
        lambda y, a, b: 2.0 * y - 2.0 * value(a, b), value, linear_solve=SOLVE["gmres"]
    ),
    "fixed point": lambda value: cg.implicit_fixed_point(lambda y, a, b: 0.5 * y + 0.5 * value(a, b), value),
    "minimum": lambda value: cg.implicit_minimum(
        lambda y, a, b: tf.reduce_sum(y**2 / 2.0 - value(a, b) * y), value, linear_solve=SOLVE["cg"]
    ),
}


def product(a, b):
    return a * b**2


def nested(a, b):
    return a[0] * b["k"][0] ** 2


def closed_over(kind, x):
    """One factor is a Tensor that the user's functions close over."""
    return KINDS[kind](lambda a, b: x * b**2)(tf.zeros_like(x), x)


def both(kind, x):
    """The residual closes over the Tensor that is its argument."""
    return KINDS[kind](lambda a, b: tf.sqrt(a * x) * b**2)(x, x)


PLACES = {
    "positional": lambda kind, x: KINDS[kind](product)(x, x),
    "by keyword": lambda kind, x: KINDS[kind](product)(a=x, b=x),
    "nested": lambda kind, x: KINDS[kind](nested)([x], {"k": (x, x)}),
    "closed over": closed_over,
    "argument and closed over": both,
    "solver of b": lambda kind, x: cg.linear.cg(lambda u: u / x**2, x, tol=1e-14),
    "solver of a structure": lambda kind, x: cg.linear.gmres(lambda u: [u[0] / x**2, u[1]], [x, x], tol=1e-14)[0],
}


def orders(function, x, dy):
    """x**3 has the first derivative 3 x**2 and the second 6 x."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        dx = tape.gradient(y, x, output_gradients=dy)
    return y, dx, outer.gradient(dx, x, output_gradients=dy)


RUNS_AND_AROUND = {
    **{name: lambda f, x, dy, run=run: run(functools.partial(orders, f))(x, dy) for name, run in RUNS.items()},
    "around": lambda f, x, dy: orders(tf.function(f), x, dy),
}


@pytest.mark.parametrize(
    ("place", "kind", "mode"),
    [
        (place, kind, mode)
        for i, (place, mode) in enumerate((place, mode) for place in PLACES for mode in RUNS_AND_AROUND)
        for kind in ([*KINDS][i % 5 :: 5] if "solver" not in place else ["-"])
    ],
)
def test_each_use_of_a_tensor_counts_once(place, kind, mode):
    """First and second derivatives."""
    found = RUNS_AND_AROUND[mode](lambda x: PLACES[place](kind, x), tf.constant(X), tf.constant(DY))
    for got, expected in zip(found, [X**3, 3 * X**2 * DY, 6 * X * DY**2], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_one_tensor_in_a_functional_model():
    inputs = keras.Input([2], dtype="float64")
    model = keras.Model(inputs, KINDS["root"](product)(inputs, inputs))
    _, (dx,) = tape_vjp(model, [tf.constant(X[None])], tf.constant(DY[None]))
    np.testing.assert_allclose(dx[0], 3 * X**2 * DY)


READERS = {
    **{
        name: (lambda v, x, kind=kind: kind(lambda a, b: a * v * b)(x, tf.ones_like(x))) for name, kind in KINDS.items()
    },
    "cg": lambda v, x: cg.linear.cg(lambda u: u / v, x, tol=1e-14),
    "gmres": lambda v, x: cg.linear.gmres(lambda u: u / v, x, tol=1e-14),
}


@pytest.mark.parametrize(("reader", "mode"), [(reader, mode) for reader in READERS for mode in RUNS])
def test_the_gradient_belongs_to_the_value_that_a_variable_had(reader, mode):
    """x v, where v changes between the value and the gradient: first and second derivatives."""
    v = tf.Variable([3.0, 4.0], dtype=tf.float64)

    def run(x, dy):
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                y = READERS[reader](v, x)
            v.assign_add([1.0, 1.0])
            dv = tape.gradient(y, v, output_gradients=dy)
            v.assign_add([1.0, 1.0])
            dx = tape.gradient(y, x, output_gradients=dy)
        v.assign_add([1.0, 1.0])
        return y, dx, dv, outer.gradient(dx, v, output_gradients=dy), outer.gradient(dv, x, output_gradients=dy)

    # XLA compiles with the assignments outside, as two optimizers make them.
    found = RUNS[mode](run)(tf.constant(X), tf.constant(DY))
    expected = X * [3.0, 4.0], DY * [3.0, 4.0], DY * X, DY**2, DY**2
    for got, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-9)


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_containers_and_python_state_can_change_after_the_call(mode):
    state = {"power": 3.0}
    function = cg.implicit_root(
        lambda y, p: y - p["a"] ** state["power"] * p["b"][0], lambda p: p["a"] ** state["power"] * p["b"][0]
    )

    @RUNS[mode]
    def run(x, dy):
        state["power"] = 3.0
        arguments = {"a": x, "b": [x]}
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(arguments)
            arguments["a"], arguments["c"], state["power"] = 7.0 * x, x, 5.0
            arguments["b"].append(x)
            dx = tape.gradient(y, x, output_gradients=dy)
        state["power"] = 7.0
        return dx, outer.gradient(dx, x, output_gradients=dy)

    dx, second = run(tf.constant(X), tf.constant(DY))
    np.testing.assert_allclose(dx, 4 * X**3 * DY)
    np.testing.assert_allclose(second, 12 * X**2 * DY**2)


@pytest.mark.parametrize("mode", RUNS)
def test_a_solver_with_a_loop_over_tensors_is_converted_by_autograph(mode):
    """As the step of `scan` is. In eager mode it runs as Python."""

    def halve(y, x):
        return 0.5 * y + 0.5 * x**2

    @cg.implicit_fixed_point(halve)
    def solve(x):
        y = x
        for _ in tf.range(60):
            if tf.reduce_sum(y) > -1.0:
                y = halve(y, x)
        return y

    def run(x, dy):
        return tape_vjp(solve, [x], dy)

    value, (dx,) = RUNS[mode](run)(tf.constant(X), tf.constant(DY))
    np.testing.assert_allclose(value, X**2)
    np.testing.assert_allclose(dx, 2 * X * DY)


WEAK = """
import numpy as np
import tensorflow as tf
import tf_cg_ops as cg

tf.experimental.numpy.experimental_enable_numpy_behavior(dtype_conversion_mode="all")
x = tf.constant([4.0, 9.0])
assert not isinstance(x, tf.Tensor)
for function in [
    cg.implicit_root(lambda y, x: y * y - x * x, lambda x: (x * x) ** 0.5),
    cg.implicit_fixed_point(lambda y, x: (y + x) / 2.0, lambda x: 1.0 * x),
    cg.implicit_minimum(lambda y, x: tf.reduce_sum((y - x) ** 2), lambda x: 1.0 * x),
    lambda x: 2.0 * cg.linear.cg(lambda u: 2.0 * u, x),
    lambda x: 2.0 * cg.linear.gmres(lambda u: 2.0 * u, x),
]:
    for run in (function, tf.function(function)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = run(x)
        np.testing.assert_allclose(y, x, rtol=1e-5)
        np.testing.assert_allclose(tape.gradient(y, x), [1.0, 1.0], rtol=1e-5)
"""


def test_weak_tensors_are_tensors(tmp_path):
    """The weak Tensors of NumPy behavior with conversion of dtypes, which a program turns on at its beginning."""
    run_python(WEAK, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
