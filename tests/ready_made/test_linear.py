"""linear.cg and linear.gmres against NumPy, alone and as linear_solve."""

import contextlib
import functools
import itertools
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS as MODES
from ..support.modes import derivative, vjp, vjp_in_a_fresh_process
from ..support.tensors import pairs, random_array

SOLVERS = {"cg": cg.linear.cg, "gmres": cg.linear.gmres}
TOLERANCE = {tf.float32: 1e-5, tf.float64: 1e-11, tf.complex64: 1e-5, tf.complex128: 1e-11}


def systems(rng, dtype, size=25):
    """A matrix that is not symmetric, one that is positive definite, and a right-hand side."""
    matrix = random_array(rng, [size, size], dtype) + 12 * np.eye(size, dtype=dtype.as_numpy_dtype)
    return matrix, matrix @ matrix.conj().T, random_array(rng, [size], dtype)


@pytest.mark.core
@pytest.mark.parametrize(("dtype", "mode"), pairs(TOLERANCE, MODES))
def test_gmres(dtype, mode, rng):
    """It restarts, and in eager mode has more directions than unknowns."""
    matrix, _, right = systems(rng, dtype)

    def solve(right):
        options = {"tol": TOLERANCE[dtype], "restart": 40 if mode == "eager" else 7}
        return cg.linear.gmres(lambda u: tf.linalg.matvec(matrix, u), right, **options)

    u = MODES[mode](solve)(tf.constant(right)).numpy()
    assert np.linalg.norm(matrix @ u - right) <= 20 * TOLERANCE[dtype] * np.linalg.norm(right)


@pytest.mark.core
@pytest.mark.parametrize(("mode", "dtype"), [("eager", tf.float32), ("traced", tf.float64), ("jit", tf.float32)])
def test_cg(mode, dtype, rng):
    _, matrix, right = systems(rng, dtype)

    def solve(right):
        return cg.linear.cg(lambda u: tf.linalg.matvec(matrix, u), right, tol=TOLERANCE[dtype])

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
    """A zero right-hand side, the identity (its space is complete after one step), and a single unknown."""
    np.testing.assert_array_equal(solver(lambda u: 3 * u, tf.zeros([4])), np.zeros(4))
    u = solver(lambda u: 2 * u, tf.constant([1.0, 2.0, -3.0]), tol=np.float32(1e-6))
    np.testing.assert_allclose(u, [0.5, 1.0, -1.5], rtol=1e-6)
    np.testing.assert_allclose(solver(lambda u: 4 * u, tf.constant(2.0)), 0.5, rtol=1e-6)


def test_a_matrix_without_positive_diagonal():
    """GMRES makes no progress in the first step."""
    matrix = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    u = cg.linear.gmres(lambda u: tf.linalg.matvec(matrix, u), tf.constant([1.0, 0.0, 0.0], tf.float64))
    np.testing.assert_allclose(u, [0.0, 0.0, 1.0], atol=1e-12)


def test_the_number_of_applications():
    """One for each direction, and one for the residual of each cycle."""
    calls = []

    def operator(u):
        calls.append(1)
        return tf.concat([2 * u[:1], 3 * u[1:]], 0)

    np.testing.assert_allclose(cg.linear.gmres(operator, tf.constant([2.0, 6.0]), restart=3), [1.0, 2.0], rtol=1e-6)
    assert len(calls) == 2 + 1  # Two directions are all.


@pytest.mark.parametrize(("solver", "mode"), [(cg.linear.cg, "eager"), (cg.linear.gmres, "traced")])
def test_structures(mode, solver):
    """The unknowns depend on each other."""

    def operator(u):
        return {"a": 4 * u["a"] + u["b"][0][0], "b": [3 * u["b"][0] + tf.reduce_sum(u["a"]) * tf.one_hot(0, 2)]}

    def solve(a, b):
        return solver(operator, {"a": a, "b": [b]}, tol=1e-6)

    a, b = tf.constant([[1.0], [2.0], [3.0]]), tf.constant([5.0, 6.0])
    u = MODES[mode](solve)(a, b)
    found = operator(u)
    assert u["a"].shape == [3, 1]
    np.testing.assert_allclose(found["a"], a, rtol=1e-4)
    np.testing.assert_allclose(found["b"][0], b, rtol=1e-4)


@pytest.mark.parametrize(("solver", "mode"), [(cg.linear.cg, "jit"), (cg.linear.gmres, "eager")])
def test_as_linear_solve_of_an_implicit_root(mode, solver, rng):
    """y with A y = x**3; the residual applies A without its matrix."""
    _, matrix, x = systems(rng, tf.float64, size=6)
    dy = random_array(rng, [6])
    root = cg.implicit_root(
        lambda y, x: tf.linalg.matvec(matrix, y) - x**3,
        lambda x: tf.linalg.matvec(np.linalg.inv(matrix), x**3),
        linear_solve=functools.partial(solver, tol=1e-12),
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
        assert tf.norm(tridiagonal(u) - right) <= 1.1e-5 * tf.norm(right)


def test_a_start_and_a_preconditioner_save_iterations(rng):
    _, matrix, right = systems(rng, tf.float64)
    matrix += np.diag(np.logspace(0, 6, 25))
    expected = np.linalg.solve(matrix, right)
    inverse = 1 / np.diag(matrix)
    for solver in SOLVERS.values():
        counts = []
        for options in ({}, {"M": lambda u: inverse * u}, {"x0": tf.constant(expected)}):
            calls = []

            def operator(u, calls=calls):
                calls.append(1)
                return tf.linalg.matvec(matrix, u)

            u = solver(operator, tf.constant(right), tol=1e-10, **options)
            np.testing.assert_allclose(u, expected, rtol=1e-6)
            counts.append(len(calls))
        assert counts[2] < counts[1] < counts[0]


def dense(matrix, right):
    return tf.linalg.solve(matrix, right[:, None])[:, 0]


ONES = np.ones(3)
FEW_ITERATIONS = {
    "an eigenvector": (np.array([[4.0, 1.0, 1.0], [1.0, 4.0, 1.0], [1.0, 1.0, 4.0]]), ONES, {}),
    "zero": (np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 5.0]]), 0 * ONES, {}),
    "the solution as start": (np.diag([1.0, 2.0, 4.0]), ONES, {"x0": np.array([1.0, 0.5, 0.25])}),
    "an absolute tolerance": (
        np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 5.0]]),
        ONES,
        {"tol": 0.0, "atol": 1e-12},
    ),
}


@pytest.mark.core
@pytest.mark.parametrize(("case", "mode"), pairs([*itertools.product(FEW_ITERATIONS, SOLVERS)], MODES))
def test_the_solution_is_differentiated_and_not_the_iterations(case, mode):
    """First and second derivatives, with respect to b and to what A reads. The iterations end before they see all of A."""
    case, solver = case
    matrix, right, options = FEW_ITERATIONS[case]
    weights = np.array([[1.0, 2.0, 3.0], [3.0, -1.0, 2.0], [2.0, 2.0, 9.0]])

    def orders(solve):
        def run(matrix, right):
            sources = [matrix, right]
            with tf.GradientTape() as outer:
                outer.watch(sources)
                u, first = vjp(lambda: solve(matrix, right), sources, tf.constant([1.0, 10.0, 100.0], tf.float64))
                weighted = tf.reduce_sum(first[0] * weights) + tf.reduce_sum(first[1] ** 2)
            return u, *first, *outer.gradient(weighted, sources)

        return run

    def iterate(matrix, right):
        return SOLVERS[solver](lambda u: tf.linalg.matvec(matrix, u), right, **{"tol": 1e-13} | options)

    found = MODES[mode](orders(iterate))(tf.constant(matrix), tf.constant(right))
    expected = orders(dense)(tf.constant(matrix), tf.constant(right))
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", ["eager", "traced", pytest.param("jit", marks=pytest.mark.slow)])
def test_the_third_derivative_with_respect_to_what_the_matrix_reads(mode):
    """The sum of the solution is 3 / p."""

    def third(p):
        return derivative(derivative(derivative(lambda p: cg.linear.cg(lambda u: p * u, tf.constant([1.0, 2.0])))))(p)

    np.testing.assert_allclose(MODES[mode](third)(tf.constant(2.0)), -18 / 16, rtol=1e-5)


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("solver", ["cg", "gmres"])
def test_complex_systems(solver, mode):
    matrix = np.array([[4.0, 1.0 - 2.0j], [1.0 + 2.0j, 3.0]]) + (0 if solver == "cg" else np.array([[0, 1j], [0.5, 2]]))
    right, dy = np.array([1.0 - 1j, 2.0j]), np.array([1.0 + 1j, 10.0 - 3j])

    def run(right):
        return vjp(
            lambda: SOLVERS[solver](lambda u: tf.linalg.matvec(matrix, u), right, tol=1e-12), right, tf.constant(dy)
        )

    u, dx = MODES[mode](run)(tf.constant(right))
    np.testing.assert_allclose(u, np.linalg.solve(matrix, right), rtol=1e-9)
    np.testing.assert_allclose(dx, np.linalg.solve(matrix.conj().T, dy), rtol=1e-9)


@pytest.mark.mode_table(feature="solver", mode="forward_mode_eager")
@pytest.mark.parametrize("solver", ["cg", "gmres"])
def test_forward_mode(solver):
    matrix = tf.constant([[4.0, 1.0], [1.0, 3.0]], tf.float64)
    right, tangent = (tf.constant(v, tf.float64) for v in ([1.0, 2.0], [1.0, -1.0]))
    with tf.autodiff.ForwardAccumulator([matrix, right], [2 * matrix, tangent]) as accumulator:
        u = SOLVERS[solver](lambda u: tf.linalg.matvec(matrix, u), right, tol=1e-13)
    expected = np.linalg.solve(matrix, tangent) - 2 * u
    np.testing.assert_allclose(accumulator.jvp(u), expected, rtol=1e-9)


@pytest.mark.parametrize("solver", ["cg", "gmres"])
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_small_and_large_numbers(size, solver):
    """Their squares are zero or infinite in float32."""
    right = size * tf.constant([1.0, 2.0])
    u = SOLVERS[solver](lambda u: tf.linalg.matvec([[4.0, 1.0], [1.0, 3.0]], u), right)
    np.testing.assert_allclose(u / size, [1 / 11, 7 / 11], rtol=1e-4)


@pytest.mark.mode_table(feature="solver", mode="unknown_shape")
@pytest.mark.parametrize("solver", ["cg", "gmres"])
def test_shapes_known_at_run_time_only(solver):
    matrix = np.array([[4.0, 1.0], [1.0, 3.0]])

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float64)])
    def run(right):
        return vjp(lambda: SOLVERS[solver](lambda u: tf.linalg.matvec(matrix, u), right, tol=1e-13), right)

    u, dx = run(tf.constant([1.0, 2.0], tf.float64))
    np.testing.assert_allclose(u, np.linalg.solve(matrix, [1.0, 2.0]), rtol=1e-9)
    np.testing.assert_allclose(dx, np.linalg.solve(matrix, [1.0, 1.0]), rtol=1e-9)


@pytest.mark.parametrize("solver", ["cg", "gmres"])
def test_no_unknowns(solver):
    assert SOLVERS[solver](lambda u: 2.0 * u, tf.zeros([0])).shape == [0]


@pytest.mark.parametrize(
    "solver",
    [
        pytest.param("cg", marks=pytest.mark.mode_table(feature="cg", mode="vectorized_map")),
        pytest.param(
            "gmres", marks=pytest.mark.mode_table(feature="gmres", mode="vectorized_map", outcome="unsupported")
        ),
    ],
)
def test_vectorized_map(solver):
    matrix, right = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([[1.0, 2.0], [0.0, 0.0], [-3.0, 1.0]])

    def solve(right):
        return SOLVERS[solver](lambda u: tf.linalg.matvec(matrix, u), right, tol=1e-12)

    options = {"fallback_to_while_loop": solver == "gmres"}
    if solver == "gmres":
        with pytest.raises(ValueError, match="No pfor vectorization defined for Qr"):
            tf.vectorized_map(solve, tf.constant(right), fallback_to_while_loop=False)
    u = tf.vectorized_map(solve, tf.constant(right), **options)
    np.testing.assert_allclose(u, np.linalg.solve(matrix, right.T).T, rtol=1e-9, atol=1e-12)
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"linear\.{solver} did not converge"):
        tf.vectorized_map(solve, tf.constant(right * [[1.0], [1.0], [np.nan]]), **options)


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_gradients_around_a_map_over_right_sides_with_a_matrix_in_a_variable(solver, mode):
    matrix, right = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 7.0]])
    upstream, variable = np.array([[1.0, -10.0], [2.0, 20.0], [3.0, 0.5]]), tf.Variable(matrix)

    def solve(right):
        return SOLVERS[solver](lambda u: tf.linalg.matvec(variable, u), right, tol=1e-12)

    @MODES[mode]
    def run(right):
        with tf.GradientTape() as tape:
            tape.watch(right)
            u = tf.vectorized_map(solve, right)
        return tape.gradient(u, [right, variable], output_gradients=tf.constant(upstream))

    by_right, by_matrix = run(tf.constant(right))
    expected = np.linalg.solve(matrix, upstream.T).T
    np.testing.assert_allclose(by_right, expected, rtol=1e-9)
    u = np.linalg.solve(matrix, right.T).T
    np.testing.assert_allclose(by_matrix, -np.einsum("bi,bj->ij", expected, u), rtol=1e-9)


@pytest.mark.mode_table(feature="solver", mode="mode")
@pytest.mark.parametrize(("mode", "solver"), pairs(MODES, SOLVERS))
def test_a_matrix_that_uses_a_tape(mode, solver):
    """A Hessian-vector product, also while other tapes record."""

    def hessian_product(v):
        point = tf.constant([1.0, 2.0], tf.float64)
        with tf.GradientTape() as outer:
            outer.watch(point)
            with tf.GradientTape() as inner:
                inner.watch(point)
                value = tf.reduce_sum(point**4) + point[0] * point[1]
            slope = inner.gradient(value, point)
        return outer.gradient(slope, point, v)

    right = tf.constant([1.0, 2.0], tf.float64)
    expected = np.linalg.solve([[12.0, 1.0], [1.0, 48.0]], [1.0, 1.0])
    run = MODES[mode](lambda right: vjp(lambda: SOLVERS[solver](hessian_product, right, tol=1e-12), right)[1])
    np.testing.assert_allclose(run(right), expected, rtol=1e-9)


UNSUITABLE = "A must be symmetric (Hermitian) and positive definite, and so must M, but they are not."
UNSOLVED = {
    "indefinite": ("cg", [[1.0, 2.0], [2.0, 1.0]], {}, f": {UNSUITABLE}"),
    "singular": ("cg", [[1.0, 1.0], [1.0, 1.0]], {}, f": {UNSUITABLE}"),
    "nan": (
        "cg",
        [[np.nan, 1.0], [1.0, 3.0]],
        {},
        " did not converge: norm(b - A(x)) is nan and must be at most 3.16e-05",
    ),
    "preconditioner": ("cg", [[4.0, 1.0], [1.0, 3.0]], {"M": lambda u: -u}, f": {UNSUITABLE}"),
    "not symmetric": ("cg", [[4.0, 1.0], [0.5, 3.0]], {}, ""),
    "slow": (
        "cg",
        [[4.0, 1.0], [1.0, 3.0]],
        {"maxiter": 1},
        " did not converge: norm(b - A(x)) is 0.94 and must be at",
    ),
    "singular, gmres": ("gmres", [[1.0, 1.0], [1.0, 1.0]], {}, " did not converge: norm(b - A(x)) is"),
    "inf, gmres": ("gmres", [[np.inf, 1.0], [1.0, 3.0]], {}, " did not converge: norm(b - A(x)) is nan"),
    "no progress": ("gmres", [[0.0, 1.0], [-1.0, 0.0]], {"restart": 1}, " did not converge: norm(b - A(x)) is 3.16"),
}


@pytest.mark.core
@pytest.mark.parametrize(("case", "mode"), pairs(UNSOLVED, MODES))
def test_a_wrong_solution_is_never_returned(case, mode):
    """An error in eager mode and in graphs; under XLA, value and gradient are nan."""
    solver, matrix, options, message = UNSOLVED[case]

    def run(right):
        return vjp(lambda: SOLVERS[solver](lambda u: tf.linalg.matvec(matrix, u), right, **options), right)

    message = re.escape(f"linear.{solver}{message}") if mode == "eager" else rf"linear\.{solver}"
    error = pytest.raises(tf.errors.InvalidArgumentError, match=message)
    with contextlib.nullcontext() if mode == "jit" else error:
        assert np.all(np.isnan(MODES[mode](run)(tf.constant([1.0, 3.0]))))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("above", "last", "options"), [(5e-5, 1e-3, {}), (1e-8, 1e-6, {"tol": 1e-12})])
def test_a_small_asymmetry_does_not_give_a_wrong_gradient(above, last, options, mode):
    matrix, right = np.array([[1.0, above], [0.0, last]]), tf.constant([1.0, 0.0], tf.float64)

    def run(right):
        return vjp(lambda: cg.linear.cg(lambda u: tf.linalg.matvec(matrix, u), right, **options), right, right)[1]

    np.testing.assert_allclose(MODES[mode](run)(right), np.linalg.solve(matrix.T, right), rtol=1e-3)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.complex64])
def test_rounding_does_not_count_as_asymmetry(dtype, rng):
    """If the solver reaches a tolerance close to rounding, so does the gradient."""
    real = dtype.as_numpy_dtype(0).real.dtype
    count = 0
    for condition in np.logspace(0, 3, 12):
        q, _ = np.linalg.qr(random_array(rng, [20, 20], dtype))
        matrix = (q * np.logspace(0, np.log10(condition), 20)) @ q.conj().T
        matrix = tf.constant((matrix + matrix.conj().T) / 2, dtype)
        right = tf.constant(random_array(rng, [20], dtype))

        operator = functools.partial(tf.linalg.matvec, matrix)
        solve = functools.partial(cg.linear.cg, operator, right, tol=float(np.finfo(real).eps * condition))
        try:
            solve()
        except tf.errors.InvalidArgumentError:
            continue
        count += 1
        assert np.all(np.isfinite(vjp(solve, right, right)[1]))
    assert count > 6


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("solver", ["cg", "gmres"])
def test_a_solution_must_fit_in_16_bits(solver, mode):
    """Both as a value and as a gradient."""

    def solve(right):
        return SOLVERS[solver](lambda u: 0.01 * u, right)

    right = tf.constant([1.0, -3.0], tf.float16)
    message = (
        rf"linear\.{solver}: the solution.* must fit in float16\. Scale b, or compute in a dtype with a larger range"
    )
    for run in (lambda: solve(1000 * right), lambda: vjp(lambda: solve(right), right, 1000 * right)[1]):
        error = pytest.raises(tf.errors.InvalidArgumentError, match=message)
        with contextlib.nullcontext() if mode == "jit" else error:
            assert np.all(np.isnan(MODES[mode](run)()))


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize(("solver", "dtype"), pairs(SOLVERS, [tf.float32, tf.float64]))
def test_a_tolerance_below_rounding(solver, dtype, mode):
    """More iterations would not help."""
    diagonal, right = tf.cast(np.linspace(1.0, 7.3, 30), dtype), tf.cast(np.linspace(0.1, 3.3, 30), dtype)
    advice = "raise tol or atol" + (", or compute in float64." if dtype == tf.float32 else ".")
    message = rf"linear\.{solver} did not converge.*Rounding allows no smaller residual: {advice}"
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
        MODES[mode](lambda right: SOLVERS[solver](lambda u: diagonal * u, right, tol=0.0))(right)


def test_a_graph_of_tensorflow_1_does_not_give_the_gradient_of_a_wrong_solution():
    """The gradient is fetched without the value."""
    with tf.Graph().as_default():
        right = tf.constant([1.0, 2.0])
        u = cg.linear.cg(lambda u: tf.linalg.matvec([[4.0, 1.0], [1.0, 3.0]], u), right, maxiter=1)
        (dx,) = tf.gradients(u, right)
        with tf.compat.v1.Session() as session:
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"linear\.cg did not converge"):
                session.run(u)
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"linear\.cg did not converge"):
                session.run(dx)


def test_a_loaded_model(tmp_path):
    """It checks too, and has the gradient."""

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([2, 2]), tf.TensorSpec([2])])
        def solve(self, matrix, right):
            return cg.linear.gmres(lambda u: tf.linalg.matvec(matrix, u), right, tol=1e-6)

    tf.saved_model.save(Model(), str(tmp_path))
    solve = tf.saved_model.load(str(tmp_path)).solve
    matrix = tf.constant([[4.0, 1.0], [-2.0, 3.0]])
    _, (by_matrix, by_right) = vjp(lambda: solve(matrix, VECTOR), [matrix, VECTOR], tf.constant([1.0, 10.0]))
    w = np.linalg.solve(matrix.numpy().T, [1.0, 10.0])
    np.testing.assert_allclose(by_right, w, rtol=1e-4)
    np.testing.assert_allclose(by_matrix, -np.outer(w, np.linalg.solve(matrix, VECTOR)), rtol=1e-4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"linear\.gmres did not converge"):
        solve(tf.ones([2, 2]), VECTOR)

    with tf.GradientTape() as outer:
        outer.watch(matrix)
        _, (first,) = vjp(lambda: solve(matrix, VECTOR), [VECTOR], tf.constant([1.0, 10.0]))
    second = outer.gradient(first, matrix, output_gradients=tf.constant([1.0, -3.0]))
    np.testing.assert_allclose(second, -np.outer(w, np.linalg.solve(matrix, [1.0, -3.0])), rtol=1e-4)


@pytest.mark.mode_table(feature="solver", mode="reloaded")
@pytest.mark.parametrize("solver", ["cg", "gmres"])
def test_a_saved_model_in_a_fresh_process(solver, tmp_path):
    matrix, right, dy = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0]), np.array([1.0, 10.0])
    model = tf.Module()
    model.v = tf.Variable(matrix)

    @tf.function(input_signature=[tf.TensorSpec([2], tf.float64)])
    def f(right):
        return SOLVERS[solver](lambda u: tf.linalg.matvec(model.v, u), right, tol=1e-13)

    model.f = f
    u, dx, dv, _ = vjp_in_a_fresh_process(model, [right], [dy], tmp_path)
    w = np.linalg.solve(matrix.T, dy)
    for found, expected in ((u, np.linalg.solve(matrix, right)), (dx, w), (dv, -np.outer(w, u))):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("api", ["implicit_root", "implicit_fixed_point", "implicit_minimum"])
def test_implicit_functions_name_themselves(api, mode):
    functions = {
        "implicit_root": lambda y, x: 4.0 * y - x,
        "implicit_fixed_point": lambda y, x: x - 3.0 * y,
        "implicit_minimum": lambda y, x: tf.reduce_sum(2.0 * y**2 - x * y),
    }

    def solve(x):
        return x / 4.0

    weak = functools.partial(cg.linear.gmres, M=lambda u: 0.0 * u)  # No step changes anything.
    function = getattr(cg, api)(functions[api], solve, linear_solve=weak)
    message = rf"{api}: the linear_solve for .*solve.*: linear\.gmres did not converge"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        MODES[mode](lambda x: vjp(lambda: function(x), x)[1])(VECTOR)


VECTOR = tf.constant([1.0, 2.0])


S = np.array([[4.0, 1.0], [1.0, 3.0]])
OPAQUE = {
    "numpy_function": lambda w, u: tf.ensure_shape(tf.numpy_function(np.matmul, [w, u], u.dtype), u.shape),
    "stop_gradient": lambda w, u: tf.stop_gradient(tf.linalg.matvec(w, u)),
    "stop_gradient of u": lambda w, u: tf.linalg.matvec(w, tf.stop_gradient(u)),
}


@pytest.mark.parametrize(
    ("case", "mode", "dtype"),
    [
        ("numpy_function", "eager", tf.float32),
        ("numpy_function", "traced", tf.float64),
        ("stop_gradient", "jit", tf.float64),
        ("stop_gradient of u", "eager", tf.float32),
        ("stop_gradient of u", "traced", tf.float64),
    ],
)
def test_a_matrix_without_derivative_is_its_own_transpose(case, mode, dtype):
    """In reverse mode, forward mode and second derivatives."""
    dy, inverse = np.array([1.0, 10.0]), np.linalg.inv(S)
    x, weights = inverse @ [1.0, 2.0], np.array([3.0, -1.0])

    def run(w, right):
        upstream = tf.constant(dy, dtype)
        with tf.GradientTape() as outer:
            outer.watch([upstream, w])
            _, first = vjp(lambda: cg.linear.cg(lambda u: OPAQUE[case](w, u), right, tol=1e-6), [right, w], upstream)
            weighted = tf.reduce_sum(first[0] * tf.constant(weights, dtype))
        by_upstream, by_w = outer.gradient(weighted, [upstream, w])
        with tf.autodiff.ForwardAccumulator(right, tf.constant(weights, dtype)) as accumulator:
            solution = cg.linear.cg(lambda u: OPAQUE[case](w, u), right, tol=1e-6)
        return first[0], by_upstream, accumulator.jvp(solution), first[1], by_w

    *found, by_w, second_by_w = MODES[mode](run)(tf.constant(S, dtype), tf.constant([1.0, 2.0], dtype))
    for f, expected in zip(found, [inverse @ dy, inverse @ weights, inverse @ weights], strict=True):
        np.testing.assert_allclose(f, expected, rtol=1e-4)
    if case == "stop_gradient of u":
        np.testing.assert_allclose(by_w, -np.outer(inverse @ dy, x), rtol=1e-4)
        np.testing.assert_allclose(second_by_w, -np.outer(inverse @ weights, inverse @ dy), rtol=1e-4)
    else:
        assert by_w is None
        assert second_by_w is None


def test_the_gradient_of_gmres_needs_the_transpose():
    """TensorFlow cannot find it for NumPy."""

    def run():
        return cg.linear.gmres(lambda u: tf.numpy_function(lambda u: 2 * u, [u], tf.float32), VECTOR)

    np.testing.assert_allclose(run(), [0.5, 1.0])
    message = (
        "linear.gmres: A must have a derivative, since a gradient applies its transpose, but TensorFlow finds none."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        vjp(run, VECTOR)
