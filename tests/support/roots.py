"""Equations, solvers for them, and the derivatives to expect."""

import numpy as np
import scipy.optimize
import tensorflow as tf

import tf_cg_ops as cg

A = np.array([[3.0, 1.0, 0.5], [-0.5, 2.0, 0.25], [0.0, 0.75, 2.5]])
X, DY = np.array([0.5, 1.0, -2.0]), np.array([1.0, 10.0, 100.0])


def newton(residual, jacobian, start, steps=8):
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

    return tf.while_loop(lambda i, _: i < 8, body, (0, x), maximum_iterations=8)[1]


cubic = cg.implicit_root(cubic_residual, cubic_newton, batched=True)


def cubic_by_hand():
    y = cubic_root(X)
    slope = 3 * y**2 + 1
    return y, DY / slope, -6 * y * DY**2 / slope**3


def cubic_root(x):
    """Cardano's formula."""
    root = np.sqrt(x**2 / 4 + 1 / 27)
    return np.cbrt(x / 2 + root) + np.cbrt(x / 2 - root)


RIDGE_INPUTS = np.random.default_rng(3).normal(size=(7, 3))


def ridge_loss(w, penalty, targets):
    """The loss that the weights minimize."""
    misfit = tf.linalg.matvec(tf.constant(RIDGE_INPUTS), w) - targets
    return tf.reduce_sum(misfit**2) / 2 + penalty * tf.reduce_sum(w**2) / 2


def ridge_gradient(w, penalty, targets):
    """The gradient of the loss, by a tape."""
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = ridge_loss(w, penalty, targets)
    return tape.gradient(loss, w)


def ridge(penalty, targets):
    matrix = RIDGE_INPUTS.T @ RIDGE_INPUTS + penalty * tf.eye(3, dtype=tf.float64)
    return tf.linalg.solve(matrix, tf.linalg.matvec(RIDGE_INPUTS, targets, transpose_a=True)[:, None])[:, 0]


def scipy_root(x):
    """SciPy's solver, in eager mode and in a graph."""
    y = tf.numpy_function(lambda x: scipy.optimize.root(lambda y: A @ y + y**3 - x, 0 * x, tol=1e-14).x, [x], x.dtype)
    return tf.ensure_shape(y, x.shape)
