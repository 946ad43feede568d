"""linear.cg and linear.gmres against NumPy. As linear_solve, test_implicit.py has them; the page of messages, their errors."""

import contextlib
import functools
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.mode_table import fills
from ..support.modes import MODES, RUNS, assert_all_close, derivative, run_in_a_fresh_process, tape_vjp, vjp
from ..support.tensors import pairs, random_array

SOLVERS = {"cg": cg.linear.cg, "gmres": cg.linear.gmres}
SYMMETRIC, ANY = (
    np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 5.0]]),
    np.diag([4.0, 3.0, 5.0]) + [[0, 1, 2]] * 3,
)
S = SYMMETRIC[:2, :2]
ONES, DY = np.ones(3), np.array([1.0, 10.0, 100.0])


def solve_by(solver, matrix, right, **options):
    return SOLVERS[solver](lambda u: tf.linalg.matvec(matrix, u), right, **{"tol": 1e-13} | options)


def dense(matrix, right):
    return tf.linalg.solve(matrix, right[:, None])[:, 0]


def nonlinear(x, solve=None):
    """A solution whose matrix depends on x, too."""
    return (solve or functools.partial(solve_by, "gmres"))(ANY + tf.linalg.diag(x), tf.sin(x))


def orders(solve, matrix, right):
    """The solution and its first and second derivatives, with respect to the matrix and the right-hand side."""
    sources, weights = [matrix, right], np.array([[1.0, 2.0, 3.0], [3.0, -1.0, 2.0], [2.0, 2.0, 9.0]])
    with tf.GradientTape() as outer:
        outer.watch(sources)
        u, first = vjp(lambda: solve(matrix, right), sources, tf.constant(DY))
        weighted = tf.reduce_sum(first[0] * weights) + tf.reduce_sum(first[1] ** 2)
    return u, *first, *outer.gradient(weighted, sources)


EIGEN = np.ones([3, 3]) + 3 * np.eye(3)
# The solver, systems, and options. In most, the iterations end before they see all of the matrix.
CASES = {
    "cg": ("cg", [(SYMMETRIC, DY), (EIGEN, ONES), (SYMMETRIC, 0 * ONES)], {}),
    "gmres": ("gmres", [(ANY, DY), (EIGEN, ONES), (ANY, 0 * ONES)], {"restart": 2}),
    "cg, preconditioned": ("cg", [(SYMMETRIC, DY)], {"M": lambda u: u / [4.0, 3.0, 5.0]}),
    "gmres, preconditioned": ("gmres", [(ANY, DY)], {"M": lambda u: tf.linalg.matvec(np.linalg.inv(ANY) + 0.01, u)}),
    "the solution as start": ("cg", [(np.diag([1.0, 2.0, 4.0]), ONES)], {"x0": np.array([1.0, 0.5, 0.25])}),
    "an absolute tolerance": ("gmres", [(SYMMETRIC, ONES)], {"tol": 0.0, "atol": 1e-12}),
}


def marked(solver, mode):
    return pytest.param(solver, mode, marks=[pytest.mark.core, pytest.mark.mode_table(feature=solver, mode=mode)])


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        marked("cg", "eager"),
        marked("cg", "jit"),
        marked("gmres", "traced"),
        ("gmres", "around"),
        *pairs([case for case in CASES if case not in SOLVERS], RUNS),
    ],
)
def test_the_exact_solution_is_differentiated(case, mode):
    """Not the iterations. "around": the tapes of both derivatives are outside of the tf.function."""
    solver, systems, options = CASES[case]
    solve = functools.partial(solve_by, solver, **options)
    if mode == "around":
        mode, solve = "eager", tf.function(solve)
    run = RUNS[mode](functools.partial(orders, solve))
    for system in systems:
        matrix, right = map(tf.constant, system)
        for found, expected in zip(run(matrix, right), orders(dense, matrix, right), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)


HERMITIAN, COMPLEX = np.array([[4.0, 1.0 - 2.0j], [1.0 + 2.0j, 3.0]]), np.array([[4.0, 1.0 - 1j], [1.5 + 2j, 5.0]])
# The solver, the matrix, the right-hand side, options and the tolerance of the result.
VALUES = {
    "restarts": ("gmres", np.tri(25, 25, 12) + 12 * np.eye(25), np.arange(25.0), {"restart": 7}),
    "more directions than unknowns": ("gmres", S, [1.0, 2.0], {"restart": 40}),
    "no positive diagonal": ("gmres", [[0.0, 0, 1], [1.0, 0, 0], [0.0, 1, 0]], [1.0, 0.0, 0.0], {}),
    "float16": ("gmres", S, np.float16([1, 2]), {}),
    "bfloat16": ("cg", S, np.array([1, 2], tf.bfloat16.as_numpy_dtype), {}),
    "complex": ("cg", HERMITIAN, [1.0 - 1j, 2j], {}),
    "complex, gmres": ("gmres", COMPLEX, [1.0 - 1j, 2j], {}),
    "the identity": ("gmres", 2 * np.eye(3), [1.0, 2.0, -3.0], {"tol": np.float32(1e-6)}),
    "no unknown": ("cg", np.zeros([0, 0]), np.zeros(0), {}),
}


XLA = [("no positive diagonal", "jit"), ("bfloat16", "jit")]


@pytest.mark.parametrize(("case", "mode"), [*pairs(VALUES, ["eager", "traced"]), *XLA])
def test_values_and_gradients(case, mode):
    """The products with the matrix have the dtype of the right-hand side. The gradient is the one for `right` upstream."""
    solver, matrix, right, options = VALUES[case]
    right = tf.constant(right)
    tolerance = {2: 3e-2, 4: 1e-4}.get(right.dtype.size, 1e-9)

    def run(right):
        return vjp(lambda: solve_by(solver, tf.cast(matrix, right.dtype), right, **options), right, right)

    for found, m in zip(RUNS[mode](run)(right), (np.array(matrix), np.conj(matrix).T), strict=True):
        assert found.dtype == right.dtype
        wide = tf.cast(right, tf.complex128 if right.dtype.is_complex else tf.float64)
        largest = np.max(np.abs(wide), initial=0)
        np.testing.assert_allclose(tf.cast(found, wide.dtype), np.linalg.solve(m, wide), tolerance, tolerance * largest)


def test_many_unknowns(rng):
    """Their matrix would take 80 GB."""
    diagonal = tf.constant(np.linspace(1.0, 3.0, 100_000))

    def tridiagonal(u):
        return diagonal * u + 0.2 * (tf.roll(u, 1, 0) + tf.roll(u, -1, 0))

    right = tf.constant(random_array(rng, [100_000]))
    for solve in (cg.linear.cg, functools.partial(cg.linear.gmres, restart=10)):
        u = solve(tridiagonal, right)
        assert tf.norm(tridiagonal(u) - right) <= 1.1e-5 * tf.norm(right)


def test_a_start_and_a_preconditioner_save_applications(rng):
    matrix = random_array(rng, [25, 25])
    matrix, right = matrix @ matrix.T + np.diag(np.logspace(2, 6, 25)), random_array(rng, [25])
    expected, inverse = np.linalg.solve(matrix, right), 1 / np.diag(matrix)

    def count(solver, matrix, right, **options):
        calls = []
        u = solver(lambda u: calls.append(1) or tf.linalg.matvec(matrix, u), tf.constant(right), tol=1e-10, **options)
        return u, len(calls)

    for solver in SOLVERS.values():
        counts = []
        for options in ({}, {"M": lambda u: inverse * u}, {"x0": tf.constant(expected)}):
            u, calls = count(solver, matrix, right, **options)
            np.testing.assert_allclose(u, expected, rtol=1e-6)
            counts.append(calls)
        assert counts[2] < counts[1] < counts[0]
    # One for each direction, of which two are all, and one for the residual.
    assert count(cg.linear.gmres, np.diag([2.0, 3.0]), np.array([2.0, 6.0]), restart=3)[1] == 2 + 1


def test_the_third_derivative_with_respect_to_what_the_matrix_reads():
    """The sum of the solution is 3 / p."""
    third = derivative(derivative(derivative(lambda p: cg.linear.cg(lambda u: p * u, tf.constant([1.0, 2.0])))))
    np.testing.assert_allclose(third(tf.constant(2.0)), -18 / 16, rtol=1e-5)


@pytest.mark.mode_table(feature="solver", mode="forward_mode_eager")
@pytest.mark.parametrize(
    ("solver", "wrap", "captures"),
    [
        *(("cg", "eager", False), ("gmres", "traced", False)),
        pytest.param("cg", "traced", True, marks=pytest.mark.slow),  # TensorFlow takes 20 seconds.
    ],
)
def test_forward_mode(solver, wrap, captures):
    """Also for a matrix that the tf.function captures."""
    matrix, right = tf.constant(SYMMETRIC if solver == "cg" else ANY), tf.constant(ONES)
    solve = functools.partial(solve_by, solver)
    run = RUNS[wrap](functools.partial(solve, matrix) if captures else solve)
    with tf.autodiff.ForwardAccumulator([matrix, right], [2 * matrix, tf.constant(DY)]) as accumulator:
        u = run(right) if captures else run(matrix, right)
    np.testing.assert_allclose(accumulator.jvp(u), np.linalg.solve(matrix, DY) - 2 * u, rtol=1e-9)


@pytest.mark.mode_table(feature="solver", mode="unknown_shape")
@pytest.mark.parametrize("solver", SOLVERS)
def test_shapes_known_at_run_time_only(solver):
    @tf.function(input_signature=[tf.TensorSpec(None, tf.float64)] * 2)
    def run(right, unused):
        def operator(u):
            return tf.linalg.matvec(S, u)[: tf.size(unused)]

        return vjp(lambda: SOLVERS[solver](operator, right, tol=1e-13), right, tf.constant([1.0, 10.0], tf.float64))

    right = tf.constant([1.0, 2.0], tf.float64)
    assert_all_close(run(right, right), [np.linalg.solve(S, right), np.linalg.solve(S, [1.0, 10.0])], rtol=1e-9)
    message = f"linear.{solver}: A must return the shape of b, [2], got [1]. Return the structure, shapes"
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        run(right, right[:1])


@fills("vectorized_map", "cg")
def test_vectorized_map():
    right, solve = np.array([[1.0, 2.0], [0.0, 0.0], [-3.0, 1.0]]), functools.partial(solve_by, "cg", S)

    @tf.function  # One trace: TensorFlow takes seconds to vectorize the derivatives.
    def mapped(right):
        return tf.vectorized_map(solve, right, fallback_to_while_loop=False)

    np.testing.assert_allclose(mapped(tf.constant(right)), np.linalg.solve(S, right.T).T, rtol=1e-9, atol=1e-12)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"linear\.cg did not converge"):
        mapped(tf.constant(right * [[1.0], [1.0], [np.nan]]))


@pytest.mark.mode_table(feature="gmres", mode="vectorized_map", outcome="unsupported")
def test_gmres_is_not_vectorized():
    """TensorFlow cannot vectorize a QR factorization. With a fallback, it takes a loop."""
    with pytest.raises(ValueError, match="No pfor vectorization defined for Qr"):
        tf.vectorized_map(functools.partial(solve_by, "gmres", S), np.ones([3, 2]), fallback_to_while_loop=False)


@pytest.mark.slow  # TensorFlow takes half a minute to vectorize the derivatives.
@pytest.mark.parametrize("solver", SOLVERS)
def test_gradients_around_a_map_with_the_matrix_in_a_variable(solver):
    right, variable = tf.constant([[1.0, 2.0], [0.0, 0.0], [-3.0, 1.0]], tf.float64), tf.Variable(S)
    upstream, solve = np.array([[1.0, -10.0], [2.0, 20.0], [3.0, 0.5]]), functools.partial(solve_by, solver, variable)
    u, (by_right, by_matrix) = vjp(lambda: tf.vectorized_map(solve, right), [right, variable], tf.constant(upstream))
    expected = np.linalg.solve(S, upstream.T).T
    np.testing.assert_allclose(by_right, expected, rtol=1e-9)
    np.testing.assert_allclose(by_matrix, -np.einsum("bi,bj->ij", expected, u), rtol=1e-9, atol=1e-12)


def assert_nan_or_error(mode, message, run):
    """An error in eager mode and in graphs; XLA drops checks, so there all numbers are nan."""
    error = pytest.raises(tf.errors.InvalidArgumentError, match=message)
    with contextlib.nullcontext() if mode == "jit" else error:
        assert np.all(np.isnan(run()))


UNSUITABLE = ": A must be symmetric (Hermitian) and positive definite, and so must M, but they are not."
DIVERGED = " did not converge: norm(b - A(x)) is "
UNSOLVED = {
    "indefinite": ("cg", [[1.0, 2.0], [2.0, 1.0]], {}, UNSUITABLE),
    "singular": ("cg", [[1.0, 1.0], [1.0, 1.0]], {}, UNSUITABLE),
    "nan": ("cg", [[np.nan, 1.0], [1.0, 3.0]], {}, DIVERGED + "nan and must be at most 3.16e-05"),
    "preconditioner": ("cg", S, {"M": lambda u: -u}, UNSUITABLE),
    "not symmetric": ("cg", [[4.0, 1.0], [0.5, 3.0]], {}, ""),
    "slow": ("cg", S, {"maxiter": 1}, DIVERGED + "0.94 and must be at"),
    "singular, gmres": ("gmres", [[1.0, 1.0], [1.0, 1.0]], {}, DIVERGED),
    "inf, gmres": ("gmres", [[np.inf, 1.0], [1.0, 3.0]], {}, DIVERGED + "nan"),
    "no progress": ("gmres", [[0.0, 1.0], [-1.0, 0.0]], {"restart": 1}, DIVERGED + "3.16"),
}


@functools.cache  # Systems without options share a trace.
def solution_and_gradient(mode, solver, **options):
    def run(matrix, right):
        return vjp(lambda: SOLVERS[solver](functools.partial(tf.linalg.matvec, matrix), right, **options), right)

    return RUNS[mode](run)


XLA = [(case, "jit") for case, (_, _, options, _) in UNSOLVED.items() if not options]


@pytest.mark.parametrize(("case", "mode"), [*pairs(UNSOLVED, ["eager", "traced"]), *XLA])
def test_a_wrong_solution_is_never_returned(case, mode):
    """The value or the gradient."""
    solver, matrix, options, message = UNSOLVED[case]
    run = functools.partial(solution_and_gradient(mode, solver, **options), tf.constant(matrix, tf.float32))
    message = re.escape(f"linear.{solver}{message}") if mode == "eager" else rf"linear\.{solver}"
    assert_nan_or_error(mode, message, functools.partial(run, tf.constant([1.0, 3.0])))


@pytest.mark.parametrize(("solver", "dtype"), pairs(SOLVERS, [tf.float32, tf.float64]))
def test_a_tolerance_below_rounding(solver, dtype):
    """More iterations would not help."""
    diagonal, right = tf.cast(np.linspace(1.0, 7.3, 30), dtype), tf.cast(np.linspace(0.1, 3.3, 30), dtype)
    advice = "raise tol or atol" + (", or compute in float64." if dtype == tf.float32 else ".")
    message = rf"linear\.{solver} did not converge.*Rounding allows no smaller residual: {advice}"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        SOLVERS[solver](lambda u: diagonal * u, right, tol=0.0)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.complex64])
def test_rounding_does_not_count_as_asymmetry(dtype, rng):
    """If the solver reaches a tolerance close to rounding, so does the gradient."""
    count, right = 0, tf.constant(random_array(rng, [20], dtype))
    for condition in np.logspace(0, 3, 5):
        q, _ = np.linalg.qr(random_array(rng, [20, 20], dtype))
        matrix = (q * np.logspace(0, np.log10(condition), 20)) @ q.conj().T
        matrix, tol = tf.constant((matrix + matrix.conj().T) / 2, dtype), float(np.finfo(q.dtype).eps * condition)
        with contextlib.suppress(tf.errors.InvalidArgumentError):
            solve_by("cg", matrix, right, tol=tol)
            count += 1
            dx = vjp(lambda matrix=matrix, tol=tol: solve_by("cg", matrix, right, tol=tol), right, right)[1]
            assert np.all(np.isfinite(dx))
    assert count > 2


@pytest.mark.parametrize(("tol", "mode"), pairs([1e-5, 1e-12], RUNS, quick=2))
def test_a_small_asymmetry_does_not_give_a_wrong_gradient(tol, mode):
    above, last = {1e-5: (5e-5, 1e-3), 1e-12: (1e-8, 1e-6)}[tol]
    matrix, right = np.array([[1.0, above], [0.0, last]]), tf.constant([1.0, 0.0], tf.float64)
    run = RUNS[mode](lambda right: vjp(lambda: solve_by("cg", matrix, right, tol=tol), right, right)[1])
    np.testing.assert_allclose(run(right), np.linalg.solve(matrix.T, right), rtol=1e-3)


@pytest.mark.parametrize(("solver", "mode"), pairs(SOLVERS, RUNS))
def test_a_solution_must_fit_in_16_bits(solver, mode):
    """Both as a value and as a gradient."""

    def solve(right):
        return SOLVERS[solver](lambda u: 0.01 * u, right)

    right = tf.constant([1.0, -3.0], tf.float16)
    message = (
        rf"linear\.{solver}: the solution.* must fit in float16\. Scale b, or compute in a dtype with a larger range"
    )
    for run in (lambda: solve(1000 * right), lambda: vjp(lambda: solve(right), right, 1000 * right)[1]):
        assert_nan_or_error(mode, message, RUNS[mode](run))


# The coefficients of u, u**3 and abs(u), a bias and a limit of functions that are not linear, or only on numbers of this
# size, and right-hand sides.
NOT_LINEAR = {
    "a bias": ([3.0, 0.0, 0.0, 0.01, np.inf], [0.1, 0.02]),
    "a bias, for a small b": ([3.0, 0.0, 0.0, 0.01, np.inf], [1e-30, 2e-30]),
    "a bias, for a zero b": ([3.0, 0.0, 0.0, 0.01, np.inf], [0.0, 0.0]),
    "a power": ([1.0, 1.0, 0.0, 0.0, np.inf], [0.1, 0.02]),
    "a power, for a large b": ([1.0, 1.0, 0.0, 0.0, np.inf], [2.0, 10.0]),
    "a power, for a huge b": ([1.0, 1.0, 0.0, 0.0, np.inf], [2e30, 1e30]),
    "an absolute value": ([2.0, 0.0, 1.0, 0.0, np.inf], [-3.0, 1.0]),
    "a limit": ([1.0, 0.0, 0.0, 0.0, 0.5], [0.1, 0.9]),
}


@pytest.mark.parametrize(("mode", "solver"), pairs(RUNS, SOLVERS))
def test_a_function_that_is_not_linear_is_an_error_unless_its_solution_is_found(mode, solver):
    """Each is an argument of one trace, as the systems below are."""

    def function(coefficients, u):
        linear, power, absolute, bias, limit = tf.unstack(coefficients)
        return tf.minimum(linear * u + power * u**3 + absolute * abs(u) + bias, limit)

    run = RUNS[mode](lambda coefficients, right: SOLVERS[solver](functools.partial(function, coefficients), right))
    for case, (coefficients, right) in NOT_LINEAR.items():
        try:
            u = run(tf.constant(coefficients), tf.constant(right))
        except tf.errors.InvalidArgumentError:
            continue
        error = np.linalg.norm(function(tf.constant(coefficients), u) - right)
        assert np.all(np.isnan(u)) or error <= 2e-5 * np.linalg.norm(right), case


# By which the matrix and the right-hand side are scaled.
SCALES = {
    "a small matrix": (1e-35, 1.0),
    "a large matrix": (1e35, 1.0),
    "a large solution": (1e-30, 1e7),
    "a large b": (1.0, 1e36),
    "a large matrix and b": (1e30, 1e37),
    "a small matrix and b": (1e-30, 1e-30),
    "a small b": (1.0, 1e-36),
    "a solution that underflows": (1e25, 1e-25),
}


@pytest.mark.parametrize(("mode", "solver"), pairs(["eager", "jit"], SOLVERS))
def test_the_scale_of_a_system_does_not_matter(mode, solver, rng):
    """Both for the value and the gradient."""
    matrix = random_array(rng, [30, 30])
    matrix, right = matrix @ matrix.T / 30 + np.eye(30), random_array(rng, [30])
    run = RUNS[mode](lambda matrix, b: vjp(lambda: solve_by(solver, matrix, b, tol=1e-5), b, b))
    for case, (by_matrix, by_right) in SCALES.items():
        expected = np.linalg.solve(matrix, right) * by_right / by_matrix
        atol = max(1e-3 * np.max(np.abs(expected)), 1e-37)
        for found in run(tf.constant(matrix * by_matrix, tf.float32), tf.constant(right * by_right, tf.float32)):
            np.testing.assert_allclose(found, expected, rtol=0, atol=atol, err_msg=case)


@pytest.mark.parametrize("mode", ["eager", "jit"])
def test_the_tangent_of_a_system_with_a_bias_that_was_solved(mode):
    matrix, b, t = np.array([[4.0, 1.0], [1.0, 3.0]]), tf.constant([1.0, 2.0], tf.float64), np.array([1.0, -3.0])
    solve = RUNS[mode](lambda b: cg.linear.gmres(lambda u: tf.linalg.matvec(tf.constant(matrix), u) + 1.0, b))
    with tf.autodiff.ForwardAccumulator(b, tf.constant(t)) as accumulator:
        x = solve(b)
    np.testing.assert_allclose(x, np.linalg.solve(matrix, b - 1.0), rtol=1e-4)
    np.testing.assert_allclose(accumulator.jvp(x), np.linalg.solve(matrix, t), rtol=1e-4)


def test_a_graph_of_tensorflow_1_does_not_give_the_gradient_of_a_wrong_solution():
    """The gradient is fetched without the value."""
    with tf.Graph().as_default():
        right = tf.constant([1.0, 2.0])
        u = cg.linear.cg(lambda u: tf.linalg.matvec(tf.constant(S, tf.float32), u), right, maxiter=1)
        (dx,) = tf.gradients(u, right)
        with tf.compat.v1.Session() as session:
            for fetched in (u, dx):
                with pytest.raises(tf.errors.InvalidArgumentError, match=r"linear\.cg did not converge"):
                    session.run(fetched)


@pytest.mark.mode_table(feature="cg", mode="reloaded")
@pytest.mark.mode_table(feature="gmres", mode="reloaded")
def test_a_saved_model_in_a_fresh_process(tmp_path):
    """It checks too, and has the second derivative."""
    model = tf.Module()
    model.v = tf.Variable(ANY @ ANY.T)
    functions = {solver: lambda x, solver=solver: solve_by(solver, model.v, x) for solver in SOLVERS}
    functions |= {"unsolved": lambda x: solve_by("gmres", np.ones([3, 3]), x), "nonlinear": nonlinear}
    for name, function in functions.items():
        setattr(model, name, tf.function(function, input_signature=[tf.TensorSpec([3], tf.float64)]))
    tasks = dict.fromkeys(functions, ([ONES, "v"], [DY])) | {"nonlinear": (ONES, DY, ["eager"])}
    found = run_in_a_fresh_process(model, tasks, tmp_path)
    w = np.linalg.solve(ANY @ ANY.T, DY)
    for solver in SOLVERS:
        (u,), gradients, _ = found[solver]
        assert_all_close([u, *gradients], [np.linalg.solve(ANY @ ANY.T, ONES), w, -np.outer(w, u)], rtol=1e-9)
    assert re.match(r"(?s)InvalidArgumentError: .*linear\.gmres did not converge", found["unsolved"])
    expected = MODES["eager"](functools.partial(nonlinear, solve=dense), ONES, DY)
    assert_all_close(found["nonlinear"]["eager"], expected, rtol=1e-9)


OPAQUE = {
    "numpy_function": lambda w, u: tf.ensure_shape(tf.numpy_function(np.matmul, [w, u], u.dtype), u.shape),
    "stop_gradient": lambda w, u: tf.stop_gradient(tf.linalg.matvec(w, u)),
    "stop_gradient of u": lambda w, u: tf.linalg.matvec(w, tf.stop_gradient(u)),
}


@pytest.mark.parametrize("case", OPAQUE)
def test_a_matrix_without_derivative_is_its_own_transpose(case):
    """In reverse mode, forward mode and second derivatives."""
    dy, weights, inverse = np.array([1.0, 10.0]), np.array([3.0, -1.0]), np.linalg.inv(S)

    def run(w, right, upstream):
        def solve(right):
            return cg.linear.cg(lambda u: OPAQUE[case](w, u), right, tol=1e-12)

        def of_first(upstream, w):
            first[:] = tape_vjp(lambda right, w: solve(right), [right, w], upstream)[1]
            return first[0]

        first = []
        _, second = tape_vjp(of_first, [upstream, w], tf.constant(weights))
        with tf.autodiff.ForwardAccumulator(right, tf.constant(weights)) as accumulator:
            solution = solve(right)
        return [first[0], second[0], accumulator.jvp(solution)], [first[1], second[1]]

    found, by_w = run(tf.constant(S), tf.constant([1.0, 2.0], tf.float64), tf.constant(dy))
    assert_all_close(found, [inverse @ dy, inverse @ weights, inverse @ weights], rtol=1e-4)
    if case == "stop_gradient of u":
        expected = np.outer(inverse @ dy, inverse @ [1.0, 2.0]), np.outer(inverse @ weights, inverse @ dy)
        assert_all_close(by_w, [-each for each in expected], rtol=1e-4)
    else:
        assert by_w == [None, None]
