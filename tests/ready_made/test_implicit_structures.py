"""Implicit functions with several unknowns and other results, fixed points and minima, against formulas."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import MODES, VJP_MODES, assert_all_close, traced, vjp
from ..support.tensors import pairs, random_array

X, DY = np.array([0.7, 1.3]), np.array([2.0, -3.0])


def powers_residual(y, x):
    """The residual of the square root and the fourth root. It returns a tuple where the root has a list."""
    return {"second": y["second"] ** 2 - x, "fourth": (y["fourth"][0] ** 2 - y["second"],)}


def powers(x):
    return {"second": tf.sqrt(x), "fourth": [x**0.25]}


def powers_of_batches(x):
    """The same with unknowns of several ranks: a matrix and a vector for each example."""
    return {"second": tf.sqrt(x)[:, None, None], "fourth": [x**0.25]}


def powers_of_batches_residual(y, x):
    return {
        "second": y["second"] ** 2 - x[:, None, None],
        "fourth": [y["fourth"][0] ** 2 - y["second"][:, 0, 0]],
    }


SYSTEMS = {
    "one system": (powers_residual, powers, {}),
    "a batch": (powers_of_batches_residual, powers_of_batches, {"batched": True}),
}


@pytest.mark.parametrize(("system", "name"), pairs(SYSTEMS, MODES, quick=2))
def test_a_structure_of_unknowns(system, name):
    residual, solve, options = SYSTEMS[system]
    solve = cg.implicit_root(residual, solve, **options)

    def function(x):
        found = solve(x)
        return tf.reshape(found["second"], tf.shape(x)) * 3.0 + found["fourth"][0]

    value, dx, second = MODES[name](function, X, DY)
    np.testing.assert_allclose(value, 3 * X**0.5 + X**0.25)
    first = 1.5 * X**-0.5 + 0.25 * X**-0.75
    np.testing.assert_allclose(dx, DY * first)
    np.testing.assert_allclose(second, DY * DY * (-0.75 * X**-1.5 - 0.1875 * X**-1.75))


def test_a_linear_solver_gets_and_returns_the_structure():
    """Two fixed-point steps are exact, because the system is triangular."""
    seen = []

    def linear_solve(vjp, dy):
        seen.append((sorted(dy), [tensor.shape.as_list() for tensor in tf.nest.flatten(dy)]))
        s, f = powers(tf.constant(X))["second"], powers(tf.constant(X))["fourth"][0]
        u_fourth = dy["fourth"][0] / (2.0 * f)
        u = {"second": (dy["second"] + u_fourth) / (2.0 * s), "fourth": [u_fourth]}
        tf.nest.map_structure(lambda a, b: tf.debugging.assert_near(a, b), vjp(u), dy)
        return u

    solve = cg.implicit_root(powers_residual, powers, linear_solve=linear_solve)
    _, (dx,) = traced(lambda x: solve(x)["second"] * 3.0 + solve(x)["fourth"][0], [X], DY)
    np.testing.assert_allclose(dx, DY * (1.5 * X**-0.5 + 0.25 * X**-0.75))
    assert seen[0] == (["fourth", "second"], [[2], [2]])


def test_unknown_sizes():
    solve = cg.implicit_root(powers_of_batches_residual, powers_of_batches, batched=True)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float64)] * 2)
    def run(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = solve(x)
            y = found["second"][:, 0, 0] * 3.0 + found["fourth"][0]
        return tape.gradient(y, x, output_gradients=dy)

    for size in (0, 1, 4):
        x, dy = np.linspace(0.5, 2.0, size), np.linspace(-1.0, 3.0, size)
        np.testing.assert_allclose(run(x, dy), dy * (1.5 * x**-0.5 + 0.25 * x**-0.75))


@pytest.mark.core
@pytest.mark.parametrize("name", ["eager", "jit_unknown_dims"])
def test_other_results_have_no_gradient(name):
    def solve(x):
        y = tf.sqrt(x)
        return y, {"steps": tf.constant(7), "residual": y**2 - x, "text": "done"}

    solve = cg.implicit_root(lambda y, x: y**2 - x, solve, has_aux=True)

    def function(x):
        y, aux = solve(x)
        assert aux["text"] == "done"
        return y * tf.cast(aux["steps"], y.dtype) + 5.0 * aux["residual"]

    value, (dx,) = VJP_MODES[name](function, [X], DY)
    np.testing.assert_allclose(value, 7 * np.sqrt(X), atol=1e-14)
    np.testing.assert_allclose(dx, DY * 3.5 / np.sqrt(X))


def coupled_map(y, matrix, b):
    return tf.tanh(tf.linalg.matvec(matrix, y) + b)


def coupled_fixed_point(matrix, b):
    y = tf.zeros_like(b)
    for _ in range(200):
        y = coupled_map(y, matrix, b)
    return y


@pytest.mark.core
@pytest.mark.parametrize("name", ["eager", "jit_unknown_dims"])
def test_a_fixed_point(name, rng):
    matrix, b, dy = 0.1 * random_array(rng, [3, 3]), random_array(rng, [3]), random_array(rng, [3])
    solve = cg.implicit_fixed_point(coupled_map, coupled_fixed_point)
    y, (dmatrix, db) = VJP_MODES[name](solve, [matrix, b], dy)
    np.testing.assert_allclose(y, np.tanh(matrix @ y + b), rtol=1e-13)
    slope = 1 - y**2  # The derivative of tanh.
    u = np.linalg.solve((np.eye(3) - slope[:, None] * matrix).T, dy)
    np.testing.assert_allclose(db, slope * u, rtol=1e-10)
    np.testing.assert_allclose(dmatrix, np.outer(slope * u, y), rtol=1e-10)


def ridge(w, a, b, strength):
    return tf.reduce_sum((tf.linalg.matvec(a, w) - b) ** 2) / 2.0 + strength * tf.reduce_sum(w**2) / 2.0


def fit_ridge(a, b, strength):
    matrix = tf.linalg.matmul(a, a, transpose_a=True) + strength * tf.eye(2, dtype=a.dtype)
    return tf.linalg.solve(matrix, tf.linalg.matvec(a, b, transpose_a=True)[:, None])[:, 0]


@pytest.mark.core
@pytest.mark.parametrize("name", ["eager", "jit_unknown_dims"])
def test_a_minimum(name, rng):
    a, b, dw = random_array(rng, [4, 2]), random_array(rng, [4]), random_array(rng, [2])
    strength = np.array(0.5)
    w, gradients = VJP_MODES[name](cg.implicit_minimum(ridge, fit_ridge), [a, b, strength], dw)
    # TensorFlow differentiates the closed form.
    _, expected = VJP_MODES["eager"](fit_ridge, [a, b, strength], dw)
    np.testing.assert_allclose(w, np.linalg.solve(a.T @ a + 0.5 * np.eye(2), a.T @ b), rtol=1e-10)
    assert_all_close(gradients, expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["eager", "around_traced", "jit"])
def test_derivatives_of_minima_of_a_batch(name):
    """The minimum of y**4 / 4 - x * y is the cube root of x."""

    def objective(y, x):
        return y["y"] ** 4 / 4.0 - x * y["y"]

    solve = cg.implicit_minimum(objective, lambda x: {"y": x ** (1 / 3)}, batched=True)
    value, dx, second = MODES[name](lambda x: solve(x)["y"], X, DY)
    np.testing.assert_allclose(value, X ** (1 / 3))
    np.testing.assert_allclose(dx, DY * X ** (-2 / 3) / 3)
    np.testing.assert_allclose(second, -2 / 9 * DY * DY * X ** (-5 / 3))


@pytest.mark.parametrize("decorate", [cg.implicit_fixed_point, cg.implicit_minimum])
def test_variables_have_gradients_and_it_works_as_a_decorator(decorate):
    weight = tf.Variable(2.0, dtype=tf.float64)
    # The fixed point of y = x * w / y and the minimum of y**3 / 3 - x * w * y: both are sqrt(x * w).
    functions = {
        cg.implicit_fixed_point: lambda y, x: (y + x * weight / y) / 2.0,
        cg.implicit_minimum: lambda y, x: tf.reduce_sum(y**3 / 3.0 - x * weight * y),
    }

    @decorate(functions[decorate])
    def solve(x):
        return tf.sqrt(x * weight)

    for run in (solve, tf.function(solve)):
        x = tf.constant(X)
        _, (dx, dw) = vjp(functools.partial(run, x), [x, weight], tf.constant(DY))
        np.testing.assert_allclose(dx, DY * np.sqrt(2.0 / X) / 2)
        np.testing.assert_allclose(dw, np.sum(DY * np.sqrt(X / 2.0) / 2))
