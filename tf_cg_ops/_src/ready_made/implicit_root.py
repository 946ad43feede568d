"""`implicit_root`, `implicit_fixed_point` and `implicit_minimum`: derivatives of the results of solvers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, text, tf_internal
from tf_cg_ops._src.core.types import P, R, Structure
from tf_cg_ops._src.ready_made.implicit_system import Options, Problem, implicit_function

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _advice(call: str) -> str:
    function = call.partition("(")[2].partition(",")[0]
    return (
        f"Write {call}, where {function}(y, *args) and solve(*args) take the same arguments, or "
        f"@{call.replace(', solve', '')} above solve. Name the options, such as linear_solve: unlike "
        "jax.lax.custom_root, it needs neither an initial guess nor a solver for tangents."
    )


@overload
def implicit_root(
    residual: Callable[..., Structure], solve: Callable[P, R], **options: Unpack[Options]
) -> Callable[P, R]: ...
@overload
def implicit_root(
    residual: Callable[..., Structure], solve: None = None, **options: Unpack[Options]
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@tf_internal.autograph_artifact
@misplaced_calls.explains("implicit_root", _advice("implicit_root(residual, solve)"))
def implicit_root(
    residual: Callable[..., Structure],
    solve: Callable[..., Structure] | None = None,
    *,
    batched: bool = False,
    linear_solve: Callable[..., Structure] | None = None,
    has_aux: bool = False,
    check_solution: bool = True,
) -> Callable[..., Structure]:
    """Differentiates the result `y` of a solver for `residual(y, *args) = 0`, without differentiating the solver.

    Use it if a layer or a loss calls a solver, and you can write down what the solution satisfies.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> def kepler(anomaly, mean, eccentricity):
    ...     return anomaly - eccentricity * tf.sin(anomaly) - mean
    >>> @cg.implicit_root(kepler)
    ... def solve_kepler(mean, eccentricity):
    ...     anomaly = mean
    ...     for _ in range(100):
    ...         anomaly = mean + eccentricity * tf.sin(anomaly)
    ...     return anomaly
    >>> mean = tf.constant([0.5, 1.0, 2.0], tf.float64)
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(mean)
    ...     y = solve_kepler(mean, tf.constant(0.3, tf.float64))
    >>> dx = tape.gradient(y, mean, output_gradients=tf.constant([1.0, 10.0, 100.0], tf.float64))
    >>> expected = [1.0, 10.0, 100.0] / (1 - 0.3 * tf.cos(y))
    >>> bool(tf.reduce_all(tf.abs(dx - expected) < 1e-12))
    True

    `solve(*args)` can find `y` by any method: a `tf.while_loop`, Newton's method, SciPy in a `tf.numpy_function`. It
    runs once, in the forward pass. The derivative equals the derivative of one Newton step at `y`. With the
    Jacobians `dr/dy` and `dr/dx` of the residual, the gradient with respect to `x`, for an upstream gradient `dy`, is

        dx = -(dr/dx)^H u    where    (dr/dy)^H u = dy

    The Tensors that the residual gets as arguments or closes over have gradients, and so do the variables that it
    reads, for the values that they had in the call. Derivatives of every order work, in a loaded model the first two.

    The gradient is only as accurate as `y`, so it checks that `y` is a solution: see `check_solution`. For a fixed
    point or a minimum, use `tf_cg_ops.implicit_fixed_point` or `tf_cg_ops.implicit_minimum`. The guide "Solvers and
    black boxes" has examples of every option, the costs and the limits.

    Args:
      residual: `residual(y, *args)` is zero at the root. It takes `y`, a Tensor or a structure of Tensors, and returns
        the same structure, shapes and dtype. It is traced in each call, so it must use TensorFlow operations. For an
        argument that is a Variable it gets the value.
      solve: The solver. It can read variables, and keep state in them. Without it you get a decorator for a solver.
      batched: Whether the leading dimension of `y` is a batch of independent systems: the residual of one example
        depends on that example's `y` only. The Jacobians `dr/dy` are then `[B, n, n]`.
      linear_solve: A function `linear_solve(vjp, dy)` that returns the `u` with `vjp(u) = dy`, in the structure and
        shapes of `y`. `vjp(u)` is `(dr/dy)^H u`. Use it for systems that are too big for their Jacobian, for example
        `tf_cg_ops.linear.gmres`. By default the Jacobian is computed and solved with `tf.linalg.solve`.
      has_aux: Whether `solve` returns a pair `(y, aux)`. `aux`, for example the number of steps, is passed through and
        has no gradient.
      check_solution: Whether a gradient checks that `y` is a solution: a step of Newton's method must not change it by
        more than a tenth of its size. XLA drops the check.

    Returns:
      A function with the signature of `solve` that returns its `y`, or `(y, aux)`.

    Raises:
      TypeError: An argument has the wrong type; `y` or the residual does not have one dtype; with `has_aux`, `solve`
        does not return a pair.
      ValueError: A structure or shape differs from `y`, or the residual has no derivative.
      RuntimeError: You compute a third derivative in a loaded model.
      tf.errors.InvalidArgumentError: The Jacobian is singular, or `y` is not a root.

    Differs from `jax.lax.custom_root`: the residual takes the solver's arguments, too (JAX's closes over them, which
    works here as well), and `linear_solve`, which solves the transposed system, is optional.
    """
    options = Options(batched=batched, linear_solve=linear_solve, has_aux=has_aux, check_solution=check_solution)
    return _decorated(Problem("implicit_root", "residual", residual, options), "residual", solve)


@overload
def implicit_fixed_point(
    f: Callable[..., Structure], solve: Callable[P, R], **options: Unpack[Options]
) -> Callable[P, R]: ...
@overload
def implicit_fixed_point(
    f: Callable[..., Structure], solve: None = None, **options: Unpack[Options]
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@tf_internal.autograph_artifact
@misplaced_calls.explains("implicit_fixed_point", _advice("implicit_fixed_point(f, solve)"))
def implicit_fixed_point(
    f: Callable[..., Structure],
    solve: Callable[..., Structure] | None = None,
    *,
    batched: bool = False,
    linear_solve: Callable[..., Structure] | None = None,
    has_aux: bool = False,
    check_solution: bool = True,
) -> Callable[..., Structure]:
    """Differentiates the fixed point `y = f(y, *args)` that a solver returns, without differentiating the solver.

    Use it for deep equilibrium models, and for any other solver that repeats `y = f(y, *args)`.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> def babylonian(y, x):
    ...     return (y + x / y) / 2
    >>> @cg.implicit_fixed_point(babylonian)
    ... def square_root(x):
    ...     y = tf.ones_like(x)
    ...     for _ in range(10):
    ...         y = babylonian(y, x)
    ...     return y
    >>> x = tf.constant([4.0, 9.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = square_root(x)
    >>> y.numpy().tolist(), tape.gradient(y, x, output_gradients=tf.constant([1.0, 12.0])).numpy().round(6).tolist()
    ([2.0, 3.0], [0.25, 2.0])

    With the Jacobians `df/dy` and `df/dx` of the function at `y`, the gradient with respect to an argument `x`, for an
    upstream gradient `dy`, is

        dx = (df/dx)^H u    where    u = dy + (df/dy)^H u

    In a deep equilibrium model `y` is the state of the layer. Everything else works as in `tf_cg_ops.implicit_root`,
    with `f(y, *args) - y` as its residual. `f` need not read all unknowns: one that it never reads has no derivative.

    Args:
      f: `f(y, *args)` returns the structure, shapes and dtype of `y`, computed with TensorFlow operations.
      solve: The solver. Without it you get a decorator for a solver.
      batched: Whether the leading dimension of `y` is a batch of independent systems.
      linear_solve: `linear_solve(vjp, dy)` returns the `u` with `vjp(u) = dy`, as for `tf_cg_ops.implicit_root`; here
        `vjp(u)` is `(df/dy)^H u - u`.
      has_aux: Whether `solve` returns a pair `(y, aux)`.
      check_solution: Whether a gradient checks that `y` is a fixed point, as for `tf_cg_ops.implicit_root`.

    Returns:
      A function with the signature of `solve` that returns its `y`, or `(y, aux)`.

    Raises:
      TypeError: As `tf_cg_ops.implicit_root`, with `f` instead of `residual`.
      ValueError: Likewise.
      RuntimeError: Likewise.
      tf.errors.InvalidArgumentError: Likewise.

    Source: Bai, Kolter and Koltun, "Deep equilibrium models" (2019), arXiv:1909.01377, theorem 1.
    """
    options = Options(batched=batched, linear_solve=linear_solve, has_aux=has_aux, check_solution=check_solution)
    return _decorated(Problem("implicit_fixed_point", "function", f, options), "f", solve)


@overload
def implicit_minimum(
    objective: Callable[..., tf.Tensor], solve: Callable[P, R], **options: Unpack[Options]
) -> Callable[P, R]: ...
@overload
def implicit_minimum(
    objective: Callable[..., tf.Tensor], solve: None = None, **options: Unpack[Options]
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@tf_internal.autograph_artifact
@misplaced_calls.explains("implicit_minimum", _advice("implicit_minimum(objective, solve)"))
def implicit_minimum(
    objective: Callable[..., tf.Tensor],
    solve: Callable[..., Structure] | None = None,
    *,
    batched: bool = False,
    linear_solve: Callable[..., Structure] | None = None,
    has_aux: bool = False,
    check_solution: bool = True,
) -> Callable[..., Structure]:
    """Differentiates the minimum of `objective(y, *args)` that a solver returns, without differentiating the solver.

    Use it to differentiate what an optimizer finds, for example with respect to the strength of a regularizer.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> def ridge(w, a, b, strength):
    ...     error = tf.linalg.matvec(a, w) - b
    ...     return tf.reduce_sum(error**2) / 2 + strength * tf.reduce_sum(w**2) / 2
    >>> @cg.implicit_minimum(ridge)
    ... def fit(a, b, strength):
    ...     matrix = tf.linalg.matmul(a, a, transpose_a=True) + strength * tf.eye(2, dtype=a.dtype)
    ...     return tf.linalg.solve(matrix, tf.linalg.matvec(a, b, transpose_a=True)[:, None])[:, 0]
    >>> strength = tf.constant(1.0, tf.float64)
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(strength)
    ...     w = fit(tf.constant([[1.0, 0.0], [0.0, 2.0]], tf.float64), tf.constant([2.0, 5.0], tf.float64), strength)
    >>> dx = tape.gradient(w, strength, output_gradients=tf.constant([1.0, 10.0], tf.float64))
    >>> w.numpy().round(6).tolist(), round(float(dx), 6)
    ([1.0, 2.0], -4.5)

    `y` can also be another stationary point. With the Hessian `H = d2f/dy2` of the objective and its mixed derivative
    `d2f/dydx` at `y`, the gradient with respect to an argument `x`, for an upstream gradient `dy`, is

        dx = -(d2f/dydx)^T u    where    H u = dy

    Everything else works as in `tf_cg_ops.implicit_root`, with the gradient of the objective as its residual. `H` is
    symmetric, so `tf_cg_ops.linear.cg` is a good `linear_solve` for a minimum. For a minimum with constraints, give the
    Karush-Kuhn-Tucker conditions to `tf_cg_ops.implicit_root`.

    Args:
      objective: `objective(y, *args)` returns a real scalar, or with `batched` one for each example, computed with
        TensorFlow operations. `y` must be real, too.
      solve: The solver. Without it you get a decorator for a solver.
      batched: Whether the leading dimension of `y` is a batch of independent minima.
      linear_solve: `linear_solve(vjp, dy)` returns the `u` with `vjp(u) = dy`, as for `tf_cg_ops.implicit_root`; here
        `vjp(u)` is `H u`.
      has_aux: Whether `solve` returns a pair `(y, aux)`.
      check_solution: Whether a gradient checks that `y` is a minimum, as for `tf_cg_ops.implicit_root`.

    Returns:
      A function with the signature of `solve` that returns its `y`, or `(y, aux)`.

    Raises:
      TypeError: As `tf_cg_ops.implicit_root`. At the call, also: the objective or `y` is not real.
      ValueError: As `tf_cg_ops.implicit_root`. At the call, also: the objective is not a scalar, or with `batched` not
        a vector.
      RuntimeError: As `tf_cg_ops.implicit_root`.
      tf.errors.InvalidArgumentError: Likewise.
    """
    options = Options(batched=batched, linear_solve=linear_solve, has_aux=has_aux, check_solution=check_solution)
    return _decorated(Problem("implicit_minimum", "objective", objective, options), "objective", solve)


def _decorated(problem: Problem, parameter: str, solve: Callable[..., Any] | None) -> Callable[..., Any]:
    """The implicit function, or a decorator for a solver; TypeError if an argument has a wrong type."""
    api, options = problem.api, problem.options
    if not callable(problem.user_function):
        raise TypeError(f"{api}: {parameter} must be a function, got {text.describe_type(problem.user_function)}.")
    linear_solve = options["linear_solve"]
    if linear_solve is not None and not callable(linear_solve):
        raise TypeError(
            f"{api}: linear_solve must be a function such as tf_cg_ops.linear.gmres, got {text.describe(linear_solve)}."
        )
    for name, value in options.items():
        if name != "linear_solve" and not isinstance(value, bool):
            raise TypeError(f"{api}: {name} must be True or False, got {text.describe(value)}. Pass a Python bool.")
    if solve is None:
        return functools.partial(implicit_function, problem)
    return implicit_function(problem, solve)
