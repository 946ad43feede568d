"""implicit_root with solvers, arguments and layers of every kind, and its errors."""

import functools
import logging
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import MODES, RUNS, assert_all_close, assert_orders, derivative, eager, eager_orders, traced
from ..support.roots import (
    DY,
    RIDGE_INPUTS,
    A,
    X,
    coupled,
    coupled_by_hand,
    coupled_residual,
    cubic_newton,
    cubic_residual,
    ridge,
    ridge_gradient,
    ridge_loss,
    scipy_root,
)
from ..support.tensors import pairs


@pytest.mark.parametrize("mode", ["eager", "around_traced", "tf1"])
def test_a_solver_of_scipy(mode):
    assert_orders(MODES[mode](cg.implicit_root(coupled_residual, scipy_root), X, DY), coupled_by_hand())


def test_a_solver_that_returns_an_array():
    function = cg.implicit_root(coupled_residual, lambda x: scipy_root(x).numpy())
    assert_orders(eager_orders(function, X, DY), coupled_by_hand())


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


@pytest.mark.parametrize("mode", ["eager", "jit"])
def test_an_iterative_linear_solver(mode):
    """Second derivatives differentiate its iterations."""
    function = cg.implicit_root(coupled_residual, lambda x: coupled(tf.ensure_shape(x, [3])), linear_solve=richardson)
    assert_all_close(MODES[mode](function, X, DY), coupled_by_hand(), rtol=1e-8)


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
    assert_all_close(found, (dy * b_ / s, -dy * y / s, dy * x_ / s), rtol=1e-11)
    # dx = dy b / s; ds = 6 y dy + da.
    by_x = -6 * y * b_ / s * dy**2 * b_ / s**2
    by_a = (6 * y**2 / s - 1) * dy**2 * b_ / s**2
    by_b = dy**2 / s - 6 * y * x_ / s * dy**2 * b_ / s**2
    assert_all_close(second, (by_x, by_a, by_b), rtol=1e-10)


def test_a_deep_equilibrium_layer_in_fit_and_after_export(tmp_path, rng):
    """y = tanh(w * y + x), against gradient descent in NumPy."""

    class Equilibrium(keras.layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(shape=shape[1:], initializer="zeros", name="w")

        def step(self, y, x):
            return tf.tanh(y * tf.convert_to_tensor(self.w) + x)

        def call(self, x):
            def solve(x):
                return tf.while_loop(lambda i, _: i < 40, lambda i, y: (i + 1, self.step(y, x)), (0, x))[1]

            return cg.implicit_root(lambda y, x: self.step(y, x) - y, solve, batched=True)(x)

    x, target = rng.normal(size=(4, 2)).astype(np.float32), 0.3 * rng.normal(size=(4, 2)).astype(np.float32)
    model = keras.Sequential([keras.layers.Input((2,)), Equilibrium()])
    model.compile(optimizer=keras.optimizers.SGD(0.5), loss="mse", jit_compile=True)
    model.fit(x, target, epochs=3, batch_size=4, shuffle=False, verbose=0)
    w = np.zeros(2)
    for _ in range(3):
        y = x.astype(float)
        for _ in range(200):
            y = np.tanh(w * y + x)
        slope = 1 - y**2
        w = w - 0.5 * np.sum(y * slope / (1 - w * slope) * 2 * (y - target) / y.size, 0)
    np.testing.assert_allclose(model.get_weights()[0], w, rtol=1e-4)
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    np.testing.assert_allclose(loaded.serve(x), model.predict(x, verbose=0), rtol=1e-5)


@pytest.mark.parametrize("run", [eager, traced])
def test_a_residual_of_numpy(run):
    """In a graph the value and the derivatives share one call of NumPy; in eager mode they need two."""
    calls = []

    @functools.partial(cg.numpy_function, output=tf.TensorSpec([3], tf.float64))
    def residual(y, x):
        calls.append(1)
        return A @ y + y**3 - x, [A + np.diag(3 * y**2), -np.eye(3)]

    value, (dx,) = run(cg.implicit_root(residual, scipy_root), [X], DY)
    assert_all_close((value, dx), coupled_by_hand()[:2], rtol=1e-12)
    assert len(calls) == (2 if run is eager else 1)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_integers_among_the_arguments_and_nothing_differentiable(traced, caplog):
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


def test_a_singular_jacobian_is_left_to_the_linear_solver():
    function = cg.implicit_root(lambda y, x: y**2 - x, tf.sqrt)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not invertible"):
        derivative(function)(tf.constant([0.0, 1.0]))


def f(x):
    return 2.0 * x


CALLS = {
    "several dtypes": (
        lambda: cg.implicit_root(cubic_residual, lambda x: [x, tf.cast(x, tf.float32)])(tf.constant(X)),
        TypeError,
        "implicit_root: '<lambda>' must return unknowns of one dtype, got float64, float32. Cast them with tf.cast.",
    ),
    "no unknown": (
        lambda: cg.implicit_root(cubic_residual, lambda x: [])(tf.constant(X)),
        TypeError,
        "implicit_root: '<lambda>' must return y as a Tensor of floating-point or complex numbers, or as a structure of "
        "such Tensors, got []. To return other results too, pass has_aux=True.",
    ),
    "structure of the residual": (
        lambda: cg.implicit_root(lambda y, x: y["a"] - x, lambda x: {"a": x, "b": x})(tf.constant(X)),
        ValueError,
        "implicit_root: the residual '<lambda>' of '<lambda>' must return the structure of y, with 2 Tensors, got a",
    ),
    "shape in a structure": (
        lambda: cg.implicit_root(lambda y, x: [y[0], y[1][:1]], lambda x: [x, x])(tf.constant(X)),
        ValueError,
        "implicit_root: the residual '<lambda>' of '<lambda>' must return the shape of y[1], (3,), got (1,). Return numbers "
        "with the structure, shapes and dtype of y.",
    ),
    "no aux": (
        lambda: cg.implicit_root(cubic_residual, f, has_aux=True)(tf.constant(X)),
        TypeError,
        "implicit_root: 'f' must return a pair (y, aux), since has_aux is True, got ",
    ),
    "objective that is a vector": (
        lambda: cg.implicit_minimum(lambda y, x: y - x, f)(tf.constant(X)),
        ValueError,
        "implicit_minimum: the objective '<lambda>' must return a scalar, got the shape (3,). Sum it.",
    ),
    "objective that is an integer": (
        lambda: cg.implicit_minimum(lambda y, x: tf.size(y), f)(tf.constant(X)),
        TypeError,
        "implicit_minimum: the objective '<lambda>' must return floating-point numbers, got int32. Cast it, or take its "
        "real part.",
    ),
    "complex unknowns of a minimum": (
        lambda: cg.implicit_minimum(lambda y, x: tf.abs(y[0]), f)(tf.constant(X + 0j)),
        TypeError,
        "implicit_minimum: 'f' must return real numbers, got complex128. Solve for the real and the imaginary part.",
    ),
    "no_batch": (
        lambda: cg.implicit_root(cubic_residual, f, batched=True)(tf.constant(1.0)),
        ValueError,
        "implicit_root: 'f' must return y with a leading batch dimension, got a scalar. For a single system, leave out "
        "batched=True.",
    ),
    "residual_dtype": (
        lambda: cg.implicit_root(lambda y, x: tf.cast(y, tf.float32), f)(tf.constant(X)),
        TypeError,
        "implicit_root: the residual '<lambda>' of 'f' must return Tensors of the dtype of y, float64, got a Tensor of "
        "dtype float32. Return numbers with the structure, shapes and dtype of y.",
    ),
    "residual_shape": (
        lambda: cg.implicit_root(lambda y, x: tf.reduce_sum(y - x), f)(tf.constant(X)),
        ValueError,
        "implicit_root: the residual '<lambda>' of 'f' must return the shape of y, (3,), got (). Return numbers with the "
        "structure, shapes and dtype of y.",
    ),
    "linear_solve": (
        lambda: derivative(cg.implicit_root(cubic_residual, f, linear_solve=lambda vjp, dy: dy[:2]))(tf.constant(X)),
        ValueError,
        "implicit_root: the linear_solve for 'f' must return the shape of y, (3,), got (2,). Return u with vjp(u) = dy.",
    ),
    "argument of vjp": (
        lambda: derivative(cg.implicit_root(cubic_residual, f, linear_solve=lambda vjp, dy: vjp(dy[:2])))(
            tf.constant(X)
        ),
        ValueError,
        "implicit_root: the linear_solve for 'f' must call vjp with the shape of y, (3,), got (2,). Pass numbers with the "
        "structure, shapes and dtype of dy.",
    ),
    "arguments": (
        lambda: cg.implicit_root(cubic_residual, f)(tf.constant(X), 1),
        TypeError,
        "implicit_root: the arguments do not fit 'f': too many positional arguments. Call it as f(x).",
    ),
}


@pytest.mark.parametrize(("case", "traced"), pairs(CALLS, [False, True]))
def test_calls_are_checked(case, traced):
    call, kind, message = CALLS[case]
    with pytest.raises(kind, match=re.escape(message)):
        (tf.function(call, autograph=False) if traced else call)()


def test_a_residual_of_the_wrong_shape_that_shows_at_run_time():
    function = cg.implicit_root(lambda y, x: y[:2] - x[:2], cubic_newton)
    run = tf.function(derivative(function), input_signature=[tf.TensorSpec([None], tf.float64)])
    message = (
        "implicit_root: the residual '<lambda>' of 'cubic_newton' must return the shape of y, [3], got [2]. Return numbers "
        "with the structure, shapes and dtype of y."
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        run(tf.constant(X))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: cg.implicit_root(3, f),
            "implicit_root: residual must be a function, got an int.",
        ),
        (
            lambda: cg.implicit_root(f, 3),
            "implicit_root: the argument must be a function",
        ),
        (
            lambda: cg.implicit_root(f, f, linear_solve=3),
            "implicit_root: linear_solve must be a function such as tf_cg_ops.linear.gmres, got 3.",
        ),
        (
            lambda: cg.implicit_root(f, f, batched=1),
            "implicit_root: batched must be True or False, got 1. Pass a Python bool.",
        ),
    ],
)
def test_the_decoration_is_checked(make, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("function", [cg.implicit_root(ridge_gradient, ridge), cg.implicit_minimum(ridge_loss, ridge)])
@pytest.mark.parametrize("run", ["eager", "traced"])
def test_forward_mode_of_a_function_with_a_tape(function, run):
    penalty, targets = tf.constant(0.7, tf.float64), tf.constant(np.arange(7.0))

    def jvp(penalty):
        with tf.autodiff.ForwardAccumulator(penalty, tf.ones_like(penalty)) as accumulator:
            w = function(penalty, targets)
        return w, accumulator.jvp(w)

    w, tangent = RUNS[run](jvp)(penalty)
    matrix = RIDGE_INPUTS.T @ RIDGE_INPUTS + 0.7 * np.eye(3)
    np.testing.assert_allclose(tangent, -np.linalg.solve(matrix, w), rtol=1e-11)
