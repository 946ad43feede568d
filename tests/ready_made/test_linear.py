"""linear.cg and linear.gmres against NumPy, alone and as linear_solve."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS as MODES
from ..support.modes import vjp
from ..support.tensors import pairs, random_array

TOLERANCE = {tf.float32: 1e-5, tf.float64: 1e-11, tf.complex64: 1e-5, tf.complex128: 1e-11}


def systems(rng, dtype, size=25):
    """A matrix that is not symmetric, one that is positive definite, and a right-hand side."""
    matrix = random_array(rng, [size, size], dtype) + 12 * np.eye(size, dtype=dtype.as_numpy_dtype)
    return matrix, matrix @ matrix.conj().T, random_array(rng, [size], dtype)


@pytest.mark.core
@pytest.mark.parametrize(("dtype", "mode"), pairs(TOLERANCE, MODES))
def test_gmres(dtype, mode, rng):
    """With restarts, and in eager mode with more directions than unknowns."""
    matrix, _, right = systems(rng, dtype)

    def solve(right):
        options = {"tolerance": TOLERANCE[dtype], "restart": 40 if mode == "eager" else 7}
        return cg.linear.gmres(lambda u: tf.linalg.matvec(matrix, u), right, **options)

    u = MODES[mode](solve)(tf.constant(right)).numpy()
    assert np.linalg.norm(matrix @ u - right) <= 20 * TOLERANCE[dtype] * np.linalg.norm(right)


@pytest.mark.core
@pytest.mark.parametrize(("mode", "dtype"), [("eager", tf.float32), ("traced", tf.float64), ("jit", tf.float32)])
def test_cg(mode, dtype, rng):
    _, matrix, right = systems(rng, dtype)

    def solve(right):
        return cg.linear.cg(lambda u: tf.linalg.matvec(matrix, u), right, tolerance=TOLERANCE[dtype])

    u = MODES[mode](solve)(tf.constant(right)).numpy()
    assert np.linalg.norm(matrix @ u - right) <= 20 * TOLERANCE[dtype] * np.linalg.norm(right)


@pytest.mark.parametrize("mode", ["eager", "jit"])
@pytest.mark.parametrize(("solver", "dtype"), [(cg.linear.cg, tf.bfloat16), (cg.linear.gmres, tf.float16)])
def test_16_bits(dtype, solver, mode):
    matrix, right = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 5.0]]), np.array([1.0, 2.0, -3.0])

    def operator(u):
        assert u.dtype == dtype
        return tf.linalg.matvec(tf.cast(matrix, dtype), u)

    u = MODES[mode](lambda right: solver(operator, right))(tf.cast(right, dtype))
    assert u.dtype == dtype
    np.testing.assert_allclose(tf.cast(u, tf.float64), np.linalg.solve(matrix, right), atol=2e-2)


@pytest.mark.parametrize("solver", [cg.linear.cg, cg.linear.gmres])
def test_special_systems(solver):
    """Zero on the right, the identity, whose space is complete after one step, and a single unknown."""
    np.testing.assert_array_equal(solver(lambda u: 3 * u, tf.zeros([4])), np.zeros(4))
    u = solver(lambda u: 2 * u, tf.constant([1.0, 2.0, -3.0]), tolerance=np.float32(1e-6))
    np.testing.assert_allclose(u, [0.5, 1.0, -1.5], rtol=1e-6)
    np.testing.assert_allclose(solver(lambda u: 4 * u, tf.constant(2.0)), 0.5, rtol=1e-6)


def test_a_matrix_without_positive_diagonal():
    """GMRES makes no progress in the first step."""
    matrix = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    u = cg.linear.gmres(lambda u: tf.linalg.matvec(matrix, u), tf.constant([1.0, 0.0, 0.0], tf.float64))
    np.testing.assert_allclose(u, [0.0, 0.0, 1.0], atol=1e-12)


def test_the_number_of_applications():
    """One for each direction, one for the residual of each cycle."""
    calls = []

    def operator(u):
        calls.append(1)
        return tf.concat([2 * u[:1], 3 * u[1:]], 0)

    np.testing.assert_allclose(cg.linear.gmres(operator, tf.constant([2.0, 6.0]), restart=3), [1.0, 2.0], rtol=1e-6)
    assert len(calls) == 3 + 1


@pytest.mark.parametrize(("solver", "mode"), [(cg.linear.cg, "eager"), (cg.linear.gmres, "traced")])
def test_structures(mode, solver):
    """Of unknowns that depend on each other."""

    def operator(u):
        return {"a": 4 * u["a"] + u["b"][0][0], "b": [3 * u["b"][0] + tf.reduce_sum(u["a"]) * tf.one_hot(0, 2)]}

    def solve(a, b):
        return solver(operator, {"a": a, "b": [b]}, tolerance=1e-6)

    a, b = tf.constant([[1.0], [2.0], [3.0]]), tf.constant([5.0, 6.0])
    u = MODES[mode](solve)(a, b)
    found = operator(u)
    assert u["a"].shape == [3, 1]
    np.testing.assert_allclose(found["a"], a, rtol=1e-4)
    np.testing.assert_allclose(found["b"][0], b, rtol=1e-4)


@pytest.mark.parametrize(("solver", "mode"), [(cg.linear.cg, "jit"), (cg.linear.gmres, "eager")])
def test_as_linear_solve_of_an_implicit_root(mode, solver, rng):
    """y with A y = x**3, for a matrix that the residual applies but never makes."""
    _, matrix, x = systems(rng, tf.float64, size=6)
    dy = random_array(rng, [6])
    root = cg.implicit_root(
        lambda y, x: tf.linalg.matvec(matrix, y) - x**3,
        lambda x: tf.linalg.matvec(np.linalg.inv(matrix), x**3),
        linear_solve=functools.partial(solver, tolerance=1e-12),
    )

    def gradient(x):
        return vjp(lambda: root(x), x, tf.constant(dy))[1]

    expected = 3 * x**2 * np.linalg.solve(matrix.T, dy)
    np.testing.assert_allclose(MODES[mode](gradient)(tf.constant(x)), expected, rtol=1e-8)


def test_a_million_unknowns(rng):
    """Their matrix would take 8 TB."""
    size = 1_000_000
    diagonal = tf.constant(np.linspace(1.0, 3.0, size))

    def tridiagonal(u):
        return diagonal * u + 0.2 * (tf.roll(u, 1, 0) + tf.roll(u, -1, 0))

    right = tf.constant(random_array(rng, [size]))
    for solve in (cg.linear.cg, functools.partial(cg.linear.gmres, restart=10)):
        u = tf.function(lambda right, solve=solve: solve(tridiagonal, right))(right)
        assert tf.norm(tridiagonal(u) - right) <= 2e-6 * tf.norm(right)


VECTOR = tf.constant([1.0, 2.0])
ERRORS = {
    "operator": (
        lambda solver: solver(tf.eye(2), VECTOR),
        TypeError,
        "operator is not a function; expected a function that applies the matrix, got an EagerTensor. Pass for a matrix: "
        "lambda u: tf.linalg.matvec(matrix, u)",
    ),
    "integers": (
        lambda solver: solver(lambda u: u, [1, 2]),
        TypeError,
        "right is no vector of numbers; expected Tensors of one floating-point or complex dtype, got int32. Cast them with "
        "tf.cast.",
    ),
    "None": (
        lambda solver: solver(lambda u: u, None),
        TypeError,
        "right must be a Tensor, or a structure of Tensors, of floating-point or complex numbers, got None.",
    ),
    "tolerance as a bool": (
        lambda solver: solver(lambda u: u, VECTOR, tolerance=False),
        ValueError,
        "tolerance is out of range; expected a number from 0 to 1, relative to the right-hand side, got False. Leave it "
        "out for 1e-6.",
    ),
    "two_dtypes": (
        lambda solver: solver(lambda u: u, [VECTOR, tf.constant(1.0, tf.float64)]),
        TypeError,
        "right is no vector of numbers; expected Tensors of one floating-point or complex dtype, got float32, float64. Cast "
        "them with tf.cast.",
    ),
    "structure": (
        lambda solver: solver(lambda u: u[0], [VECTOR, VECTOR]),
        ValueError,
        "the operator returned another structure than right; expected that of right, got an EagerTensor. Return what has the "
        "structure and shapes of its argument.",
    ),
    "shape": (
        lambda solver: solver(lambda u: u[:1], VECTOR),
        ValueError,
        "the operator returned a wrong dtype or shape; expected float32 of shape (2,), got float32 of shape (1,). Return what "
        "has the structure and shapes of its argument.",
    ),
    "tolerance": (
        lambda solver: solver(lambda u: u, VECTOR, tolerance=-1.0),
        ValueError,
        "tolerance is out of range; expected a number from 0 to 1, relative to the right-hand side, got -1.0. Leave it out "
        "for 1e-6.",
    ),
}


@pytest.mark.parametrize(("case", "name"), pairs(ERRORS, ["cg", "gmres"]))
def test_wrong_uses(case, name):
    run, kind, message = ERRORS[case]
    with pytest.raises(kind, match=f"^{re.escape(f'linear.{name}: {message}')}$"):
        run(getattr(cg.linear, name))


def test_wrong_options_of_one():
    with pytest.raises(
        ValueError, match=re.escape("linear.gmres: restart is out of range; expected an int of at least 1, got 0")
    ):
        cg.linear.gmres(lambda u: u, VECTOR, restart=0)
    with pytest.raises(
        ValueError, match=re.escape("linear.cg: max_iterations is out of range; expected an int of at least 1")
    ):
        cg.linear.cg(lambda u: u, VECTOR, max_iterations=1.5)
    with pytest.raises(TypeError, match=re.escape("linear.cg: right is complex; expected a real system")):
        cg.linear.cg(lambda u: u, tf.constant([1j]))
