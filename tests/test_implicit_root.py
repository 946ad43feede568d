"""implicit_root: derivatives of roots against the implicit function theorem in float64 NumPy."""

import functools
import json
import logging
import re

import keras
import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

import tf_cg_ops as cg

from .support.graph_modes import GRAPH_MODES
from .support.modes import MODES, assert_orders, derivative, eager_orders
from .support.processes import run_python
from .support.regimes import REGIMES, eager, traced
from .support.sources import ROOT
from .support.tensors import random_array

A = np.array([[3.0, 1.0, 0.5], [-0.5, 2.0, 0.25], [0.0, 0.75, 2.5]])
X, DY = np.array([0.5, 1.0, -2.0]), np.array([1.0, 10.0, 100.0])


def newton(residual, jacobian, start, steps=30):
    def body(i, y):
        return i + 1, y - tf.linalg.solve(jacobian(y), residual(y)[..., None])[..., 0]

    return tf.while_loop(lambda i, _: i < steps, body, (0, start), maximum_iterations=steps)[1]


def coupled_residual(y, x):
    return tf.linalg.matvec(tf.constant(A), y) + y**3 - x


@cg.implicit_root(coupled_residual)
def coupled(x):
    """A y + y**3 = x."""
    return newton(lambda y: coupled_residual(y, x), lambda y: A + tf.linalg.diag(3 * y**2), tf.zeros_like(x))


def coupled_by_hand():
    y = scipy.optimize.root(lambda y: A @ y + y**3 - X, np.zeros(3), tol=1e-14).x
    jacobian = A + np.diag(3 * y**2)
    dx, v = np.linalg.solve(jacobian.T, DY), np.linalg.solve(jacobian, DY)
    return y, dx, np.linalg.solve(jacobian.T, -6 * y * dx * v)


def cubic_residual(y, x):
    return y**3 + y - x


def cubic_newton(x):
    """One unknown for each example."""

    def body(i, y):
        return i + 1, y - cubic_residual(y, x) / (3 * y**2 + 1)

    return tf.while_loop(lambda i, _: i < 40, body, (0, x), maximum_iterations=40)[1]


cubic = cg.implicit_root(cubic_residual, cubic_newton, batched=True)


def cubic_by_hand():
    y = cubic_root(X)
    slope = 3 * y**2 + 1
    return y, DY / slope, -6 * y * DY**2 / slope**3


def cubic_root(x):
    """Cardano's formula."""
    root = np.sqrt(x**2 / 4 + 1 / 27)
    return np.cbrt(x / 2 + root) + np.cbrt(x / 2 - root)


CASES = {"coupled": (coupled, coupled_by_hand), "batched": (cubic, cubic_by_hand)}
ALL_MODES = {**MODES, **GRAPH_MODES}


BATCHED_MODES = ["eager", "traced", "unknown_shape", "jit", "while_loop", "while_loop_under_xla", "forward_mode"]


@pytest.mark.parametrize(
    ("case", "mode"), [("coupled", mode) for mode in ALL_MODES] + [("batched", mode) for mode in BATCHED_MODES]
)
def test_first_and_second_order(case, mode):
    function, by_hand = CASES[case]
    assert_orders(ALL_MODES[mode](function, X, DY), by_hand())


RELOAD = """
import json, sys
import numpy as np
import tensorflow as tf
import tf_cg_ops
from tests.support.modes import eager_orders, jit_orders

model = tf.saved_model.load(sys.argv[1])
x, dy = (np.array(json.loads(text)) for text in sys.argv[2:4])
found = {}
for name in sys.argv[4:]:
    function = getattr(model, name)
    found[name] = [[t.tolist() for t in run(function, x, dy)] for run in (eager_orders, jit_orders)]
print(json.dumps(found))
"""


def test_first_and_second_order_after_a_reload_in_a_fresh_process(tmp_path):
    model = tf.Module()
    for name, (function, _) in CASES.items():
        setattr(model, name, tf.function(function, input_signature=[tf.TensorSpec([3], tf.float64)]))
    tf.saved_model.save(model, tmp_path / "model")
    arguments = [json.dumps(X.tolist()), json.dumps(DY.tolist()), *CASES]
    result = run_python(RELOAD, tmp_path / "model", *arguments, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    found = json.loads(result.stdout.splitlines()[-1])
    for name, (_, by_hand) in CASES.items():
        for orders in found[name]:
            assert_orders(orders, by_hand())


def orders_of_cubic():
    """The first four derivatives of the root by x, from 1 = y' (3 y**2 + 1) differentiated again."""
    y = cubic_root(X)
    s = 3 * y**2 + 1
    y1 = 1 / s
    y2 = -6 * y * y1**2 / s
    y3 = -(6 * y1**3 + 18 * y * y1 * y2) / s
    y4 = -(36 * y1**2 * y2 + 18 * y * y2**2 + 24 * y * y1 * y3) / s
    return y1, y2, y3, y4


def third(function):
    return derivative(derivative(derivative(function)))


RUNS = {"eager": lambda f: f, "traced": tf.function, "jit": tf.function(jit_compile=True)}


@pytest.mark.parametrize("run", RUNS)
def test_the_third_order(run):
    function = cg.implicit_root(cubic_residual, cubic_newton)
    np.testing.assert_allclose(RUNS[run](third(function))(tf.constant(X)), orders_of_cubic()[2], rtol=1e-11)


def test_the_fourth_order_in_eager_mode_and_its_message_in_a_graph():
    fourth = derivative(third(cubic))
    np.testing.assert_allclose(fourth(tf.constant(X)), orders_of_cubic()[3], rtol=1e-10)
    message = (
        "implicit_root: a derivative of 'cubic_newton' of too high an order was asked for; expected orders up to 3 in a "
        "graph, got a higher one. Compute it in eager mode."
    )
    with pytest.raises(RuntimeError, match=re.escape(message)):
        tf.function(fourth)(tf.constant(X))


@pytest.mark.parametrize("name", ["eager", "traced_unknown_rank", "jit", "tf1_session"])
def test_a_linear_system_by_its_matrix_and_its_right_hand_side(name, rng):
    """u = A^-T dy; db = u, dA = -u y^T."""
    a, b, dy = random_array(rng, [4, 4]) + 4 * np.eye(4), random_array(rng, [4]), random_array(rng, [4])
    solution = cg.implicit_root(
        lambda y, a, b: tf.linalg.matvec(a, y) - b, lambda a, b: tf.linalg.solve(a, b[:, None])[:, 0]
    )
    # TensorFlow's own solver wants to know the rank.
    value, (da, db) = REGIMES[name](
        lambda a, b: solution(tf.reshape(a, [4, 4]), tf.reshape(b, [4])) if b.shape.rank is None else solution(a, b),
        [a, b],
        dy,
    )
    u, y = np.linalg.solve(a.T, dy), np.linalg.solve(a, b)
    np.testing.assert_allclose(value, y, rtol=1e-10)
    np.testing.assert_allclose(db, u, rtol=1e-10)
    np.testing.assert_allclose(da, -np.outer(u, y), rtol=1e-10)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("eager", 0),
        ("eager", 5),
        ("jit", 5),
        ("traced_unknown_dims", 0),
        ("traced_unknown_dims", 5),
        ("jit_unknown_dims", 5),
    ],
)
def test_a_batch_of_linear_systems_for_matrices(name, size, rng):
    """Y of [B, 2, 3] with A Y = C in each example."""
    a = random_array(rng, [size, 2, 2]) + 4 * np.eye(2)
    c, dy = random_array(rng, [size, 2, 3]), random_array(rng, [size, 2, 3])
    solution = cg.implicit_root(lambda y, a, c: a @ y - c, tf.linalg.solve, batched=True)
    value, (da, dc) = REGIMES[name](lambda a, c: solution(a, c), [a, c], dy)
    u = np.linalg.solve(np.swapaxes(a, 1, 2), dy)
    np.testing.assert_allclose(value, np.linalg.solve(a, c), rtol=1e-12)
    np.testing.assert_allclose(dc, u, rtol=1e-10)
    np.testing.assert_allclose(da, -u @ np.swapaxes(np.linalg.solve(a, c), 1, 2), rtol=1e-10)


@pytest.mark.parametrize("run", [eager, traced])
def test_a_complex_system(run, rng):
    """A y + y**2 = b, with (dr/dy)^H in the place of the transpose."""
    a = random_array(rng, [3, 3], tf.complex128) + 6 * np.eye(3)
    b, dy = random_array(rng, [3], tf.complex128), random_array(rng, [3], tf.complex128)

    def residual(y, a, b):
        return tf.linalg.matvec(a, y) + y**2 - b

    def solve(a, b):
        return newton(lambda y: residual(y, a, b), lambda y: a + tf.linalg.diag(2 * y), tf.zeros_like(b))

    value, (da, db) = run(cg.implicit_root(residual, solve), [a, b], dy)
    np.testing.assert_allclose(a @ value + value**2, b, rtol=1e-12)
    u = np.linalg.solve((a + np.diag(2 * value)).conj().T, dy)
    np.testing.assert_allclose(db, u, rtol=1e-11)
    np.testing.assert_allclose(da, -np.outer(u, value.conj()), rtol=1e-11)


RIDGE_INPUTS = np.random.default_rng(3).normal(size=(7, 3))


def ridge_gradient(w, penalty, targets):
    """Of the loss that the weights minimise, by a tape."""
    with tf.GradientTape() as tape:
        tape.watch(w)
        misfit = tf.linalg.matvec(tf.constant(RIDGE_INPUTS), w) - targets
        loss = tf.reduce_sum(misfit**2) / 2 + penalty * tf.reduce_sum(w**2) / 2
    return tape.gradient(loss, w)


def ridge(penalty, targets):
    matrix = RIDGE_INPUTS.T @ RIDGE_INPUTS + penalty * tf.eye(3, dtype=tf.float64)
    return tf.linalg.solve(matrix, tf.linalg.matvec(RIDGE_INPUTS, targets, transpose_a=True)[:, None])[:, 0]


@pytest.mark.parametrize("run", [eager, traced, REGIMES["jit"]])
def test_the_argument_of_a_minimum(run, rng):
    """Ridge regression: w = (X^T X + p)^-1 X^T t, so that dw/dp = -(X^T X + p)^-1 w."""
    targets, dy = random_array(rng, [7]), random_array(rng, [3])
    value, (dp, dt) = run(cg.implicit_root(ridge_gradient, ridge), [np.array(0.7), targets], dy)
    matrix = RIDGE_INPUTS.T @ RIDGE_INPUTS + 0.7 * np.eye(3)
    w = np.linalg.solve(matrix, RIDGE_INPUTS.T @ targets)
    u = np.linalg.solve(matrix, dy)
    np.testing.assert_allclose(value, w, rtol=1e-12)
    np.testing.assert_allclose(dp, -u @ w, rtol=1e-11)
    np.testing.assert_allclose(dt, RIDGE_INPUTS @ u, rtol=1e-11)


def scipy_root(x):
    """SciPy's solver, in eager mode and in a graph."""
    y = tf.numpy_function(lambda x: scipy.optimize.root(lambda y: A @ y + y**3 - x, 0 * x, tol=1e-14).x, [x], x.dtype)
    return tf.ensure_shape(y, x.shape)


@pytest.mark.parametrize("mode", ["eager", "traced", "around_traced", "tf1"])
def test_a_solver_of_scipy(mode):
    assert_orders(MODES[mode](cg.implicit_root(coupled_residual, scipy_root), X, DY), coupled_by_hand())


def test_a_solver_that_returns_an_array():
    function = cg.implicit_root(coupled_residual, lambda x: scipy_root(x).numpy())
    assert_orders(eager_orders(function, X, DY), coupled_by_hand())


def test_a_solver_with_a_tape_of_its_own():
    """Newton's method with the Jacobian from a tape."""

    @cg.implicit_root(coupled_residual)
    def solve(x):
        y = tf.zeros_like(x)
        for _ in range(12):
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(y)
                r = coupled_residual(y, x)
            y -= tf.linalg.solve(tape.jacobian(r, y, experimental_use_pfor=False), r[:, None])[:, 0]
        return y

    for mode in ("eager", "traced"):
        assert_orders(MODES[mode](solve, X, DY), coupled_by_hand())


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_the_solver_runs_once(traced):
    calls = []

    def solve(x):
        calls.append(1)
        return scipy_root(x)

    def counted(x):
        return tf.numpy_function(lambda x: solve(tf.constant(x)).numpy(), [x], x.dtype)

    function = cg.implicit_root(coupled_residual, lambda x: tf.ensure_shape(counted(x), [3]))

    def run(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = function(x)
            dx = inner.gradient(y, x, output_gradients=DY)
        return y, dx, outer.gradient(dx, x, output_gradients=DY)

    assert_orders((tf.function(run) if traced else run)(tf.constant(X)), coupled_by_hand())
    assert len(calls) == 1


def richardson(vjp, dy, steps=200):
    """Richardson's iteration."""
    return tf.while_loop(
        lambda i, _: i < steps, lambda i, u: (i + 1, u + (dy - vjp(u)) / 12), (0, dy / 12), maximum_iterations=steps
    )[1]


@pytest.mark.parametrize("mode", ["eager", "jit", "unknown_shape"])
def test_an_iterative_linear_solver(mode):
    """Its iterations are differentiated for the second order."""
    function = cg.implicit_root(coupled_residual, lambda x: coupled(tf.ensure_shape(x, [3])), linear_solve=richardson)
    for actual, expected in zip(MODES[mode](function, X, DY), coupled_by_hand(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-8)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_variables_structures_and_keywords(traced):
    """y**3 + a y = b x, with a Variable that only the residual reads, one as an argument, and a ragged x."""
    a, b = tf.Variable(X**2, dtype=tf.float64), tf.Variable(DY)
    read_by_the_solver = tf.Variable(tf.ones([], tf.float64))

    def residual(y, tree, mode, *, power):
        assert mode == "cubic"
        assert not isinstance(tree["b"], tf.Variable)
        return y**power + a * y - tree["b"] * tree["x"].values

    def solve(tree, mode, *, power):
        assert isinstance(tree["b"], tf.Variable)

        def body(y):
            x = tree["x"].values
            return y - (y**power + a * y - tree["b"] * x) / (3 * y**2 + a)

        y = tree["x"].values * read_by_the_solver
        for _ in range(60):
            y = body(y)
        return y

    function = cg.implicit_root(residual, solve, batched=True)
    x, dy = tf.constant([0.5, 1.0, -2.0], tf.float64), tf.constant([1.0, 10.0, -7.0], tf.float64)

    def run(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                tree = {"x": tf.RaggedTensor.from_row_lengths(x, [1, 2]), "b": b}
                y = function(tree, mode="cubic", power=3)
            found = inner.gradient(y, [x, a, b, read_by_the_solver], output_gradients=dy)
        return y, found[:3], outer.gradient(found[0], [x, a, b], output_gradients=dy), found[3]

    y, found, second, nothing = (tf.function(run) if traced else run)(x)
    assert nothing is None
    y, a_, b_, x_, dy = y.numpy(), a.numpy(), b.numpy(), x.numpy(), dy.numpy()
    np.testing.assert_allclose(y**3 + a_ * y, b_ * x_, rtol=1e-12)
    s = 3 * y**2 + a_
    for actual, expected in zip(found, (dy * b_ / s, -dy * y / s, dy * x_ / s), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-11)
    # dx = dy b / s; ds = 6 y dy + da.
    by_x = -6 * y * b_ / s * dy**2 * b_ / s**2
    by_a = (6 * y**2 / s - 1) * dy**2 * b_ / s**2
    by_b = dy**2 / s - 6 * y * x_ / s * dy**2 * b_ / s**2
    for actual, expected in zip(second, (by_x, by_a, by_b), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-10)


@pytest.mark.parametrize("run", [eager, traced])
def test_arguments_that_depend_on_each_other(run):
    """Each has its partial derivative, once."""
    function = cg.implicit_root(lambda y, a, b: y**3 + y - a * b, lambda a, b: cubic_newton(a * b))
    value, (dx,) = run(lambda x: function(x, x**2), [X], DY)
    np.testing.assert_allclose(dx, DY * 3 * X**2 / (3 * value**2 + 1), rtol=1e-11)


@pytest.mark.parametrize("run", [eager, traced, REGIMES["jit"]])
@pytest.mark.parametrize("shape", [(), (1,), (2, 2), (0,)], ids=str)
def test_a_root_of_any_shape(run, shape, rng):
    x, dy = random_array(rng, shape), random_array(rng, shape)
    value, (dx,) = run(cg.implicit_root(cubic_residual, cubic_newton), [x], dy)
    np.testing.assert_allclose(value, cubic_root(x), rtol=1e-11)
    np.testing.assert_allclose(dx, dy / (3 * value**2 + 1), rtol=1e-11)


def test_a_deep_equilibrium_layer_in_fit_and_after_export(tmp_path, rng):
    """y = tanh(y W + x), against gradient descent by hand."""

    class Equilibrium(keras.layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(shape=(shape[-1], shape[-1]), initializer="zeros", name="w")

        def step(self, y, x):
            return tf.tanh(y @ tf.convert_to_tensor(self.w) + x)

        def call(self, x):
            def solve(x):
                return tf.while_loop(
                    lambda i, _: i < 40, lambda i, y: (i + 1, self.step(y, x)), (0, x), maximum_iterations=40
                )[1]

            return cg.implicit_root(lambda y, x: self.step(y, x) - y, solve, batched=True)(x)

    x = rng.normal(size=(4, 2)).astype(np.float32)
    target = 0.3 * rng.normal(size=(4, 2)).astype(np.float32)
    model = keras.Sequential([keras.layers.Input((2,)), Equilibrium()])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", jit_compile=True)
    model.fit(x, target, epochs=3, batch_size=4, shuffle=False, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], equilibrium_weights(x, target, 0.1, 3), rtol=1e-4)
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    np.testing.assert_allclose(loaded.serve(x), model.predict(x, verbose=0), rtol=1e-5)


def equilibrium_weights(x, target, learning_rate, steps):
    """Gradient descent by hand: for y = tanh(z), dz = (1 - y**2) (dy + dz W^T), dW = y^T dz."""
    w = np.zeros((2, 2))
    for _ in range(steps):
        y = np.tanh(x.astype(float))
        for _ in range(200):
            y = np.tanh(y @ w + x)
        dy = 2 * (y - target) / y.size
        dz = np.zeros_like(y)
        for row, slope in enumerate(1 - y**2):
            dz[row] = np.linalg.solve(np.eye(2) - np.diag(slope) @ w, slope * dy[row])
        w = w - learning_rate * y.T @ dz
    return w


@pytest.mark.parametrize("run", [eager, traced])
def test_a_residual_of_numpy(run):
    """In a graph, too, the black box is called once for the value and once for the gradient."""
    calls = []

    @functools.partial(cg.from_numpy, output=tf.TensorSpec([3], tf.float64))
    def residual(y, x):
        calls.append(1)
        return A @ y + y**3 - x, [A + np.diag(3 * y**2), -np.eye(3)]

    value, (dx,) = run(cg.implicit_root(residual, scipy_root), [X], DY)
    for actual, expected in zip((value, dx), coupled_by_hand()[:2], strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)
    assert len(calls) == 2


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_integers_among_the_arguments_and_nothing_to_differentiate_by(traced, caplog):
    def root(x, n):
        return x ** (1 / tf.cast(n, x.dtype))

    power = cg.implicit_root(lambda y, x, n: y ** tf.cast(n, y.dtype) - x, root)
    two = cg.implicit_root(lambda y: y - 2.0, lambda: tf.constant(2.0))

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = power(x, tf.constant(3))
        return tape.gradient(y, x), two()

    with caplog.at_level(logging.WARNING, "tensorflow"):
        dx, constant = (tf.function(run) if traced else run)(tf.constant([8.0, 27.0]))
    np.testing.assert_allclose(dx, [1 / 12, 1 / 27], rtol=1e-5)
    assert float(constant) == 2.0
    assert not caplog.records


def test_a_singular_jacobian_is_what_the_linear_solver_makes_of_it():
    function = cg.implicit_root(lambda y, x: y**2 - x, tf.sqrt)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not invertible"):
        derivative(function)(tf.constant([0.0, 1.0]))


def f(x):
    return 2.0 * x


CALLS = {
    "structure": (
        lambda: cg.implicit_root(cubic_residual, lambda x: [x, x])(tf.constant(X)),
        TypeError,
        "implicit_root: '<lambda>' did not return a root; expected one Tensor of floating-point or complex numbers, got "
        "[<tf.Tensor",
    ),
    "integers": (
        lambda: cg.implicit_root(cubic_residual, lambda x: tf.constant([1]))(tf.constant(X)),
        TypeError,
        "implicit_root: '<lambda>' did not return a root; expected one Tensor of floating-point or complex numbers, got a "
        "Tensor of dtype int32. Concatenate several unknowns into one Tensor.",
    ),
    "no_batch": (
        lambda: cg.implicit_root(cubic_residual, f, batched=True)(tf.constant(1.0)),
        ValueError,
        "implicit_root: 'f' did not return a batch; expected a leading dimension for the batch, got a scalar. Leave out "
        "batched=True for a single system.",
    ),
    "residual_dtype": (
        lambda: cg.implicit_root(lambda y, x: tf.cast(y, tf.float32), f)(tf.constant(X)),
        TypeError,
        "implicit_root: the residual '<lambda>' of 'f' is not like the root; expected a Tensor of dtype float64, got a "
        "Tensor of dtype float32. Return one equation for each unknown, in their dtype.",
    ),
    "residual_shape": (
        lambda: cg.implicit_root(lambda y, x: tf.reduce_sum(y - x), f)(tf.constant(X)),
        ValueError,
        "implicit_root: the residual '<lambda>' of 'f' has the wrong shape; expected (3,) (the shape of the root), got "
        "(). Return one equation for each unknown.",
    ),
    "linear_solve": (
        lambda: derivative(cg.implicit_root(cubic_residual, f, linear_solve=lambda vjp, dy: dy[:2]))(tf.constant(X)),
        ValueError,
        "implicit_root: the linear_solve for 'f' returned no solution; expected float64 of shape (3,), got float64 of "
        "shape (2,). Return the u with vjp(u) = dy.",
    ),
    "arguments": (
        lambda: cg.implicit_root(cubic_residual, f)(tf.constant(X), 1),
        TypeError,
        "implicit_root: the arguments do not fit 'f'; expected f(x), got a call for which Python says: too many positional "
        "arguments. Pass what the signature asks for.",
    ),
}


@pytest.mark.parametrize("case", CALLS)
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_calls_are_checked(case, traced):
    call, kind, message = CALLS[case]
    with pytest.raises(kind, match=re.escape(message)):
        (tf.function(call, autograph=False) if traced else call)()


def test_a_residual_of_the_wrong_shape_that_shows_at_run_time():
    function = cg.implicit_root(lambda y, x: x[:2], cubic_newton)
    run = tf.function(derivative(function), input_signature=[tf.TensorSpec([None], tf.float64)])
    message = (
        "implicit_root: the residual '<lambda>' of 'cubic_newton' has the wrong shape; expected [3] (the shape of the "
        "root), got [2]. Return one equation for each unknown."
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        run(tf.constant(X))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: cg.implicit_root(3, f),
            "implicit_root: it decorates functions; expected a function or another callable",
        ),
        (
            lambda: cg.implicit_root(f, 3),
            "implicit_root: it decorates functions; expected a function or another callable",
        ),
        (
            lambda: cg.implicit_root(f, f, linear_solve=3),
            "implicit_root: it decorates functions; expected a function or",
        ),
        (
            lambda: cg.implicit_root(f, f, batched=1),
            "implicit_root: batched is not a bool; expected True or False, got 1.",
        ),
    ],
)
def test_the_decoration_is_checked(make, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        make()


def test_a_residual_with_a_tape_has_no_tangent_in_eager_mode_and_has_one_in_a_graph():
    """Forward mode lets no tape record in a gradient function: docs/limits.md."""
    function = cg.implicit_root(ridge_gradient, ridge)
    penalty, targets = tf.constant(0.7, tf.float64), tf.constant(np.arange(7.0))

    def jvp(penalty):
        with tf.autodiff.ForwardAccumulator(penalty, tf.ones_like(penalty)) as accumulator:
            w = function(penalty, targets)
        return w, accumulator.jvp(w)

    w, tangent = tf.function(jvp)(penalty)
    matrix = RIDGE_INPUTS.T @ RIDGE_INPUTS + 0.7 * np.eye(3)
    np.testing.assert_allclose(tangent, -np.linalg.solve(matrix, w), rtol=1e-11)
    with pytest.raises(TypeError, match="implicit_root: the residual 'ridge_gradient' of 'ridge' is not like the root"):
        jvp(penalty)
