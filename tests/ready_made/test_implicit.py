"""Implicit functions against their closed forms, which TensorFlow differentiates. The page of messages has their errors."""

import contextlib
import functools
import logging
import re

import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

import tf_cg_ops as cg

from ..support import modes
from ..support.modes import MODES, RUNS, VJP_MODES, assert_all_close, assert_orders, derivative, tape_vjp
from ..support.processes import run_python
from ..support.sources import ROOT
from ..support.tensors import pairs, random_array

A = np.array([[3.0, 1.0, 0.5], [-0.5, 2.0, 0.25], [0.0, 0.75, 2.5]])
X, DY = np.array([0.5, 1.0, -2.0]), np.array([1.0, 10.0, 100.0])
PAIR = tf.constant([0.5, 2.0], tf.float64), tf.constant([3.0, 7.0], tf.float64)
ALL_MODES = {**MODES, **modes.GRAPH_MODES}


def coupled_residual(y, x):
    return tf.linalg.matvec(tf.constant(A), y) + y**3 - x


@cg.implicit_root(coupled_residual)
def coupled(x):
    """A y + y**3 = x, by Newton's method."""

    def body(i, y):
        jacobian = A + tf.linalg.diag(3 * y**2)
        return i + 1, y - tf.linalg.solve(jacobian, coupled_residual(y, x)[..., None])[..., 0]

    return tf.while_loop(lambda i, _: i < 8, body, (0, tf.zeros_like(x)), maximum_iterations=8)[1]


def by_scipy(x):
    return scipy.optimize.root(lambda y: A @ y + y**3 - x, 0 * x, tol=1e-14).x


def coupled_by_hand():
    y = by_scipy(X)
    jacobian = A + np.diag(3 * y**2)
    dx, v = np.linalg.solve(jacobian.T, DY), np.linalg.solve(jacobian, DY)
    return y, dx, np.linalg.solve(jacobian.T, -6 * y * dx * v)


def cubic_residual(y, x):
    return y**3 + y - x


def cubic_root(x):
    """The real root of y**3 + y = x."""
    root_of_3 = tf.constant(3**0.5, x.dtype)
    return 2 / root_of_3 * tf.sinh(tf.asinh(1.5 * root_of_3 * x) / 3)


def itself(x):
    """A solver that solves nothing."""
    return 1.0 * x


cubic = cg.implicit_root(cubic_residual, cubic_root, batched=True)
BY_HAND = {"coupled": coupled_by_hand, "batched": lambda: MODES["eager"](cubic_root, X, DY)}
FUNCTIONS = {"coupled": coupled, "batched": cubic}


@pytest.mark.mode_table(feature="implicit_root", mode="mode")
@pytest.mark.parametrize(
    ("case", "mode"),
    [
        *(pytest.param("coupled", mode, marks=pytest.mark.core) for mode in ("eager", "traced", "jit")),
        *(("coupled", mode) for mode in ALL_MODES if mode not in (*RUNS, "forward_mode")),
        *(("batched", mode) for mode in ("eager", "jit", "forward_mode")),
    ],
)
def test_first_and_second_order(case, mode):
    part = slice(1 if mode == "forward_mode" else None)  # It calls the function for each element.
    found = ALL_MODES[mode](FUNCTIONS[case], X[part], DY[part])
    assert_orders(found, [numbers[part] for numbers in BY_HAND[case]()])


@pytest.mark.mode_table(feature="implicit_root", mode="reloaded")
def test_a_saved_model_in_a_fresh_process(tmp_path):
    """It has second derivatives, and errors."""
    model = tf.Module()
    model.v = tf.Variable(2.0, dtype=tf.float64, trainable=False)
    functions = {
        **FUNCTIONS,
        "scaled": cg.implicit_root(lambda y, x: cubic_residual(y, x * model.v), lambda x: cubic_root(x * model.v)),
        "lost": cg.implicit_root(lambda y, x: tf.round(y) - x, itself),
        "unsolved": cg.implicit_root(cubic_residual, itself),
    }
    for name, function in functions.items():
        setattr(model, name, tf.function(function, input_signature=[tf.TensorSpec([3], tf.float64)]))
    tasks = dict.fromkeys(functions, (X, DY, ["eager"])) | {"batched": (X, DY, ["jit"]), "scaled": ([X / 2, "v"], [DY])}
    found = modes.run_in_a_fresh_process(model, tasks, tmp_path)
    for name, mode in (("coupled", "eager"), ("batched", "jit")):
        assert_orders(found[name][mode], BY_HAND[name]())
    expected, slope, _ = BY_HAND["batched"]()
    (y,), (dx, dv), _ = found["scaled"]
    assert_all_close([y, dx, dv], [expected, 2 * slope, np.sum(slope * X / 2)], rtol=1e-12)
    assert re.match("RuntimeError: .* must have a derivative with respect to y", found["lost"])
    assert re.match("(?s)InvalidArgumentError: .* must be zero at the y that", found["unsolved"])


def test_the_third_and_fourth_order():
    x = tf.constant(X)
    third = lambda function: derivative(derivative(derivative(function)))  # noqa: E731
    found = RUNS["traced"](third(cg.implicit_root(cubic_residual, cubic_root)))(x)
    np.testing.assert_allclose(found, third(cubic_root)(x), rtol=1e-10)
    np.testing.assert_allclose(derivative(third(cubic))(x), derivative(third(cubic_root))(x), rtol=1e-9)


def richardson(vjp, dy, steps=400):
    """Richardson's iteration. Second derivatives differentiate it."""
    return tf.while_loop(
        lambda i, _: i < steps, lambda i, u: (i + 1, u + (dy - vjp(u)) / 12), (0, dy / 12), maximum_iterations=steps
    )[1]


def composed(outer, inner):
    return lambda *args, **kwargs: outer(inner(*args, **kwargs))


def root(inner, **options):
    """The root of y**3 + y = inner(...)."""

    def residual(y, *args, **kwargs):
        return cubic_residual(y, inner(*args, **kwargs))

    return cg.implicit_root(residual, composed(cubic_root, inner), **options)


def fixed_point(inner):
    """The step moves a pair like Gauss and Seidel's method: the second element needs only the first."""

    def step(y, *args, **kwargs):
        new = y[0] - cubic_residual(y[0], inner(*args, **kwargs)) / 10
        return [new, new]

    solve = cg.implicit_fixed_point(step, composed(lambda x: [cubic_root(x)] * 2, inner))
    return composed(lambda y: 0.25 * y[0] + 0.75 * y[1], solve)


def minimum(inner, **options):
    def objective(y, *args, **kwargs):
        terms = y["y"] ** 4 / 4 + y["y"] ** 2 / 2 - inner(*args, **kwargs) * y["y"]
        return terms if options.get("batched") else tf.reduce_sum(terms)

    solve = cg.implicit_minimum(objective, composed(lambda x: {"y": cubic_root(x)}, inner), **options)
    return composed(lambda y: y["y"], solve)


def structure(inner, **options):
    """Unknowns of several ranks. The residual returns a tuple where the solver returns a list."""

    def residual(y, *args, **kwargs):
        a, b = y["a"][..., 0, 0], y["b"][0]
        first = cubic_residual(a, inner(*args, **kwargs))
        return {"b": (b - a**2,), "a": tf.reshape(first, tf.shape(y["a"]))}

    def solve(*args, **kwargs):
        y = cubic_root(inner(*args, **kwargs))
        return {"a": y[..., None, None], "b": [y**2]}, {"text": "done", "steps": tf.constant(7)}

    def value(answer):
        y, aux = answer
        assert aux["text"] == "done"
        return y["b"][0] / y["a"][..., 0, 0] * tf.cast(aux["steps"] / 7, y["b"][0].dtype)

    return composed(value, cg.implicit_root(residual, solve, has_aux=True, **options))


GMRES = functools.partial(cg.linear.gmres, tol=1e-13)
CG = functools.partial(cg.linear.cg, tol=1e-13)


def linear(solver, inner):
    """A diagonal matrix that is read in the same ways."""
    ones = tf.ones([2], tf.float64)
    return lambda *args, **kwargs: cubic_root(solver(lambda u: u / inner(*args, **kwargs), ones, tol=1e-14))


KINDS = {
    "root": root,
    "batch": functools.partial(root, batched=True),
    "gmres": functools.partial(root, linear_solve=GMRES),
    "own solver": functools.partial(root, linear_solve=richardson),
    "fixed point": fixed_point,
    "minimum": functools.partial(minimum, linear_solve=CG),
    "minima": functools.partial(minimum, batched=True),
    "structure": structure,
    "structures": functools.partial(structure, batched=True),
    "linear.cg": functools.partial(linear, cg.linear.cg),
    "linear.gmres": functools.partial(linear, cg.linear.gmres),
}


def exact(inner):
    return composed(cubic_root, inner)


W = tf.Variable([4.0, 5.0], dtype=tf.float64)
CONSTANT = tf.Variable([4.0, 5.0], dtype=tf.float64, trainable=False)


def nested(tree, *, power):
    return tree["a"] * tree["b"][0] ** power


def ragged(x):
    return tf.RaggedTensor.from_row_lengths(x, [2])


called = tf.function(lambda x: tf.math.l2_normalize(tf.tanh(x), -1))


def with_control_flow(x):
    y = tf.cond(tf.reduce_sum(x) > -100.0, lambda: called(x), lambda: x)
    y = tf.switch_case(tf.constant(1), [lambda: x, lambda: y * x, lambda: x**3])
    body = lambda i, y: (i + 1, called(y) * x)  # noqa: E731
    return tf.while_loop(lambda *_: True, body, (0, y), maximum_iterations=2)[1]


# How the function of a Tensor x and the two variables above gets and reads them; `make` is one of the kinds, or `exact`.
PLACES = {
    "positional": lambda make, x: make(lambda a, b: a * b**2)(x, x),
    "by keyword and nested": lambda make, x: make(nested)({"a": x, "b": (x, x)}, power=2),
    "closed over": lambda make, x: make(lambda: x**3)(),
    "argument and closed over": lambda make, x: make(lambda a: a * x)(x),
    "one depends on the other": lambda make, x: make(lambda a, b: a * b)(x, x**2),
    "composite": lambda make, x: make(lambda a, n: a.values ** tf.cast(n, x.dtype))(ragged(x), tf.constant(3)),
    "variable": lambda make, x: make(lambda a: a * W * CONSTANT)(x),
    "variable as an argument, too": lambda make, x: make(lambda a, b: a * b["w"] * W)(x, {"w": W}),
    "no derivative": lambda make, x: make(lambda a, b: a + tf.stop_gradient(b))(x**2, CONSTANT * 1.0),
    "control flow": lambda make, x: make(with_control_flow)(x),
    "control flow, closed over": lambda make, x: make(lambda: with_control_flow(x))(),
    "a tape": lambda make, x: make(derivative(lambda a: a**4))(x),
}


def second_orders(function, change, x, dy):
    """The value, its gradients, and second derivatives. After the call, the variables change."""
    sources = [x, W, CONSTANT]
    for variable in (W, CONSTANT):
        variable.assign([4.0, 5.0])
    with tf.GradientTape() as outer:
        outer.watch(sources)
        with tf.GradientTape() as tape:
            tape.watch(sources)
            value = function(x)
        for variable in (W, CONSTANT):
            variable.assign_add(change)
        first = tape.gradient(value, sources, dy)
        weighted = tf.add_n([tf.reduce_sum(dy * dx**2) for dx in first if dx is not None])
    W.assign_add(change)
    return value, *first, *outer.gradient(weighted, sources)


ALL_KINDS = [("positional", kind, ("eager", "traced")[i % 2]) for i, kind in enumerate(KINDS)]
ALL_PLACES = [(place, [*KINDS][i % 9], ("eager", "traced", "around")[i % 3]) for i, place in enumerate(PLACES)]
UNDER_XLA = [("positional", "batch", "jit"), ("positional", "structure", "jit")]
UNDER_XLA += [pytest.param("control flow", "root", "jit", marks=pytest.mark.slow)]
MORE = [("control flow", "minimum", "eager"), ("a tape", "linear.cg", "eager"), ("a tape", "linear.gmres", "eager")]


@pytest.mark.parametrize(("place", "kind", "mode"), ALL_KINDS + ALL_PLACES[1:] + UNDER_XLA + MORE)
def test_gradients_of_all_that_the_equations_read(place, kind, mode):
    """First and second derivatives, for the variables as they were at the call.

    "around": the tapes of both are outside of the tf.function.
    """
    function = functools.partial(PLACES[place], KINDS[kind])
    function, run = (tf.function(function), RUNS["eager"]) if mode == "around" else (function, RUNS[mode])
    found = run(functools.partial(second_orders, function, [1.0, -1.0]))(*PAIR)
    exactly = second_orders(functools.partial(PLACES[place], exact), [0.0, 0.0], *PAIR)
    for got, expected in zip(found, exactly, strict=True):
        if expected is None:  # TensorFlow has zeros for some Tensors outside of a tf.function.
            assert got is None or (mode == "around" and not np.any(got))
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-8)


def test_powers_of_what_is_zero_at_the_solution():
    """TensorFlow's third derivative of a power by `**` is nan there."""

    def objective(y, x):
        return tf.reduce_sum((y - x**2) ** 2 + (y - x**2) ** 3 + (y - x**2) ** 4.0)

    assert_orders(MODES["traced"](cg.implicit_minimum(objective, tf.square), X, DY), [X**2, 2 * X * DY, 2 * DY**2])


def matvec_solve(a, b):
    a = tf.reshape(a, [4, 4]) if a.shape.rank is None else a  # TensorFlow's solver needs a known rank.
    return tf.linalg.solve(a, tf.reshape(b, [4, 1]))[:, 0]


def random(*shapes, dtype=tf.float64):
    """Arrays of these shapes; square matrices are far from singular."""
    rng = np.random.default_rng(5)
    arrays = [random_array(rng, shape, dtype) for shape in shapes]
    return [a + 4 * np.eye(a.shape[-1]) if a.ndim > 1 and a.shape[-1] == a.shape[-2] else a for a in arrays]


SYSTEM = cg.implicit_root(lambda y, a, b: tf.linalg.matvec(a, y) - b, matvec_solve)
SYSTEMS = cg.implicit_root(lambda y, a, c: a @ y - c, tf.linalg.solve, batched=True)
CUBIC = cg.implicit_root(cubic_residual, cubic_root)
ONE, BATCH = structure(tf.identity), structure(tf.identity, batched=True)
UNKNOWN, JIT = "unknown_shape", "jit_unknown_shape"
# The implicit function, its closed form, the arguments, and modes.
MATRICES = {
    "a system": (SYSTEM, matvec_solve, random([4, 4], [4]), ["unknown_rank"]),
    "a complex system": (SYSTEM, matvec_solve, random([4, 4], [4], dtype=tf.complex128), ["eager"]),
    "systems for matrices": (SYSTEMS, tf.linalg.solve, random([5, 2, 2], [5, 2, 3]), ["eager", JIT]),
    "no systems": (SYSTEMS, tf.linalg.solve, random([0, 2, 2], [0, 2, 3]), [UNKNOWN]),
    "structures": (BATCH, cubic_root, random([4]), [UNKNOWN]),
    "no structures": (BATCH, cubic_root, random([0]), [UNKNOWN]),
    "a scalar": (CUBIC, cubic_root, random([]), ["eager"]),
    "a matrix": (CUBIC, cubic_root, random([2, 3]), ["eager"]),
    "no unknown": (CUBIC, cubic_root, random([0]), ["traced"]),
    "aux": (ONE, cubic_root, random([3]), ["tf1"]),
}


@pytest.mark.parametrize(("case", "mode"), [(case, mode) for case, row in MATRICES.items() for mode in row[3]])
def test_arguments_and_unknowns_of_every_shape(case, mode):
    function, closed, args, _ = MATRICES[case]
    dy = random_array(np.random.default_rng(7), closed(*map(tf.constant, args)).shape, tf.as_dtype(args[0].dtype))
    value, gradients = VJP_MODES[mode](function, args, dy)
    expected, expected_gradients = VJP_MODES["eager"](closed, args, dy)
    assert_all_close([value, *gradients], [expected, *expected_gradients], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("kind", "mode"), [("root", "eager"), ("minimum", "traced")])
def test_forward_mode_of_equations_with_a_tape(kind, mode):
    def jvp(make, x, t):
        with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
            y = PLACES["a tape"](make, x)
        return accumulator.jvp(y)

    np.testing.assert_allclose(RUNS[mode](functools.partial(jvp, KINDS[kind]))(*PAIR), jvp(exact, *PAIR), rtol=1e-9)


def test_a_linear_solver_gets_and_returns_the_structure():
    seen = []

    def linear_solve(vjp, dy):
        seen.append((sorted(dy), [tensor.shape.as_list() for tensor in tf.nest.flatten(dy)]))
        return GMRES(vjp, dy)

    function = structure(tf.identity, linear_solve=linear_solve)
    np.testing.assert_allclose(derivative(function)(tf.constant(X)), derivative(cubic_root)(tf.constant(X)), rtol=1e-9)
    assert seen == [(["a", "b"], [[3, 1, 1], [3]])]


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_containers_and_python_state_can_change_after_the_call(mode):
    state = {}
    function = root(lambda p: p["a"] ** state["power"] * p["b"][0])

    def run(function, x, dy):
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

    expected = run(lambda p: cubic_root(p["a"] ** 4), *PAIR)
    assert_all_close(RUNS[mode](functools.partial(run, function))(*PAIR), expected, rtol=1e-9)


@pytest.mark.core
@pytest.mark.parametrize("mode", RUNS)
def test_a_solver_with_a_loop_over_tensors_is_converted_by_autograph(mode):
    """As the step of `scan` is; so is `linear_solve`. In eager mode they run as Python."""

    def halve(y, x):
        return 0.5 * y + 0.5 * x**2

    def linear_solve(vjp, dy):
        u = dy
        for _ in tf.range(60):
            if tf.reduce_sum(u) < 1e9:
                u += dy - vjp(u)  # The product is u / 2.
        return u

    @cg.implicit_fixed_point(halve, linear_solve=linear_solve)
    def solve(x):
        y = x
        for _ in tf.range(60):
            if tf.reduce_sum(y) > -1.0:
                y = halve(y, x)
        return y

    value, (dx,) = RUNS[mode](lambda x, dy: tape_vjp(solve, [x], dy))(tf.constant(X), tf.constant(DY))
    np.testing.assert_allclose(value, X**2)
    np.testing.assert_allclose(dx, 2 * X * DY)


@pytest.mark.parametrize("mode", ["eager", "around_traced", "tf1"])
def test_a_solver_of_scipy_runs_once(mode):
    """In eager mode, it may return an array."""
    calls = []

    def counted(x):
        calls.append(1)
        return by_scipy(np.array(x))

    def solve(x):
        return counted(x) if tf.executing_eagerly() else tf.ensure_shape(tf.numpy_function(counted, [x], x.dtype), [3])

    assert_orders(MODES[mode](cg.implicit_root(coupled_residual, solve), X, DY), coupled_by_hand())
    assert len(calls) == 1


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_a_residual_of_numpy(mode):
    """In a graph the value and the derivatives share one call of NumPy; in eager mode they need two."""
    calls = []

    @functools.partial(cg.numpy_function, output_signature=tf.TensorSpec([3], tf.float64))
    def residual(y, x):
        calls.append(1)
        return A @ y + y**3 - x, [A + np.diag(3 * y**2), -np.eye(3)]

    value, (dx,) = VJP_MODES[mode](cg.implicit_root(residual, lambda x: tf.constant(by_scipy(X))), [X], DY)
    assert_all_close((value, dx), coupled_by_hand()[:2], rtol=1e-12)
    assert len(calls) == (2 if mode == "eager" else 1)


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_nothing_differentiable(mode, caplog):
    """A variable that only the solver reads has no gradient."""
    two = tf.Variable(2.0)
    function = cg.implicit_root(lambda y, n: y - tf.cast(n, y.dtype), lambda n: 1.0 * two)

    def run():
        with tf.GradientTape() as tape:
            value = function(tf.constant(2))
        return value, tape.gradient(value, two)

    with caplog.at_level(logging.WARNING, "tensorflow"):
        assert RUNS[mode](run)() == (2.0, None)
    assert not caplog.records


def test_the_system_of_a_symmetric_contraction_is_positive_definite():
    """So `linear.cg` solves it. The fixed point is the one of y = S y + x, whose derivative is the inverse of I - S."""
    symmetric = np.array([[0.5, -0.3, 0.0], [-0.3, -0.6, 0.1], [0.0, 0.1, 0.2]])
    inverse, dy = np.linalg.inv(np.eye(3) - symmetric), np.array([1.0, -10.0, 100.0])

    def step(y, x):
        return tf.linalg.matvec(symmetric, y) + x

    solve = cg.implicit_fixed_point(step, lambda x: tf.linalg.matvec(inverse, x), linear_solve=CG)
    _, (dx,) = tape_vjp(solve, [tf.constant([1.0, 2.0, 3.0], tf.float64)], tf.constant(dy))
    np.testing.assert_allclose(dx, inverse @ dy, rtol=1e-9)


def test_a_singular_jacobian_is_left_to_the_linear_solver():
    function = cg.implicit_root(lambda y, x: y**2 - x, tf.sqrt)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not invertible"):
        derivative(function)(tf.constant([0.0, 1.0]))


@pytest.mark.parametrize(("mode", "options"), [("eager", {"check_solution": False}), ("jit", {})])
def test_a_y_that_does_not_solve_the_equations_is_no_error_if_nothing_checks_it(mode, options):
    """XLA drops assertions. The page of messages has the error."""
    function = cg.implicit_root(cubic_residual, itself, **options)
    np.testing.assert_allclose(RUNS[mode](derivative(function))(tf.constant(X)), 1 / (3 * X**2 + 1))


@pytest.mark.parametrize(
    ("number", "dtype", "mode"), [(0.5, tf.float16, "eager"), (0.2, tf.float64, "eager"), (0.2, tf.float16, "traced")]
)
def test_a_solver_may_be_off_by_a_few_percent_everywhere(number, dtype, mode):
    """A solver of y = 1 / x."""
    x = tf.constant([number], dtype)
    for error in (0.0, 0.02, 0.05, -0.05, 0.3, -0.2):
        inverse = cg.implicit_root(lambda y, x: y * x - 1.0, lambda x, e=error: (1.0 + e) / x)
        refused = pytest.raises(tf.errors.InvalidArgumentError, match="must be zero at the y")
        with refused if abs(error) > 0.1 else contextlib.nullcontext():
            np.testing.assert_allclose(RUNS[mode](derivative(inverse))(x), [-(1 + error) / number**2], rtol=1e-2)


@pytest.mark.parametrize(("dtype", "scale"), pairs([tf.float16, tf.bfloat16, tf.float32, tf.float64], [0.0, 1.0, 1e3]))
def test_the_check_of_a_solution_allows_for_rounding(dtype, scale):
    """Unknowns that are zero except for their last digits, and differences of large numbers."""
    x = tf.cast([scale, 2 * scale, -scale], dtype)
    function = cg.implicit_root(lambda y, x: (y + x) - x, lambda x: 1e-4 + tf.zeros_like(x))
    np.testing.assert_allclose(tf.cast(derivative(function)(x), tf.float64), np.zeros(3))


WEAK = """
import numpy as np
import tensorflow as tf
import tf_cg_ops as cg

tf.experimental.numpy.experimental_enable_numpy_behavior(dtype_conversion_mode="all")
x = tf.constant([4.0, 9.0])
assert not isinstance(x, tf.Tensor)
for i, function in enumerate([
    cg.implicit_root(lambda y, x: y * y - x * x, lambda x: (x * x) ** 0.5),
    cg.implicit_fixed_point(lambda y, x: (y + x) / 2.0, lambda x: 1.0 * x),
    cg.implicit_minimum(lambda y, x: tf.reduce_sum((y - x) ** 2), lambda x: 1.0 * x),
    lambda x: 2.0 * cg.linear.cg(lambda u: 2.0 * u, x),
    lambda x: 2.0 * cg.linear.gmres(lambda u: 2.0 * u, x),
    lambda x: cg.scan(lambda carry, x: (carry * 0.5 + x, carry), 0.0 * x, tf.stack([x, 0.5 * x]))[0],
    lambda x: cg.while_loop(lambda y: True, lambda y: (y * 1.0,), (x,), maximum_iterations=3)[0],
]):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x) if i % 2 else tf.function(function)(x)
    np.testing.assert_allclose(y, x, rtol=1e-5)
    np.testing.assert_allclose(tape.gradient(y, x), [1.0, 1.0], rtol=1e-5)
"""


def test_weak_tensors_are_tensors(tmp_path):
    """The weak Tensors of NumPy behavior with conversion of dtypes, which a program turns on at its beginning."""
    run_python(WEAK, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
