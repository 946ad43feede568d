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


def _how_to_write(call: str) -> str:
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
@misplaced_calls.explains("implicit_root", _how_to_write("implicit_root(residual, solve)"))
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

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> @cg.implicit_root(lambda y, mean, eccentricity: y - eccentricity * tf.sin(y) - mean)
    ... def solve_kepler(mean, eccentricity):
    ...     y = mean
    ...     for _ in range(100):
    ...         y = mean + eccentricity * tf.sin(y)
    ...     return y
    >>> mean = tf.constant([0.5, 1.0, 2.0], tf.float64)
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(mean)
    ...     y = solve_kepler(mean, tf.constant(0.3, tf.float64))
    >>> dx = tape.gradient(y, mean, output_gradients=tf.constant([1.0, 10.0, 100.0], tf.float64))
    >>> bool(tf.reduce_all(tf.abs(dx - [1.0, 10.0, 100.0] / (1 - 0.3 * tf.cos(y))) < 1e-12))
    True

    `solve(*args)` can find `y` by any method, also SciPy in a `tf.numpy_function`; it runs once, in the forward pass.
    With the Jacobians `dr/dy` and `dr/dx` of the residual at `y`, the gradient for an upstream gradient `dy` is

        dx = -(dr/dx)^H u    where    (dr/dy)^H u = dy

    The guide "Solvers and black boxes" derives it, and has examples of every option, the costs and the limits.

    Args:
      residual: `residual(y, *args)` is zero at the root. It takes `y`, a Tensor or a structure of Tensors of one
        floating-point or complex dtype, and returns the same structure, shapes and dtype, computed with TensorFlow
        operations. For an argument that is a Variable it gets the value.
      solve: The solver. It can read variables, and keep state in them. Without it you get a decorator for a solver.
      batched: Whether the leading dimension of `y` is a batch of independent systems, with Jacobians `[B, n, n]`.
      linear_solve: `linear_solve(vjp, dy)` solves the system: it returns the `u` with `vjp(u) = dy`, in the structure
        and shapes of `y`, as `tf_cg_ops.linear.gmres` does. By default `tf.linalg.solve` does, with the whole Jacobian.
      has_aux: Whether `solve` returns a pair `(y, aux)`. `aux` is passed through and has no gradient.
      check_solution: Whether a gradient checks that a step of Newton's method changes `y` by no more than a tenth of
        its size. XLA drops the check.

    Returns:
      A function with the signature of `solve` that returns its `y`, or `(y, aux)`.

    Raises:
      TypeError: An argument has the wrong type; `y` or the residual does not have one dtype; with `has_aux`, `solve`
        does not return a pair.
      ValueError: A structure or shape differs from `y`, or the residual has no derivative.
      RuntimeError: You compute a third derivative in a loaded model.
      tf.errors.InvalidArgumentError: The Jacobian is singular, or `y` is not a root.

    Differs from `jax.lax.custom_root`: the residual takes the solver's arguments, and `linear_solve`, which solves the
    transposed system, is optional.
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
@misplaced_calls.explains("implicit_fixed_point", _how_to_write("implicit_fixed_point(f, solve)"))
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

    >>> import numpy as np
    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> @cg.implicit_fixed_point(lambda y, x: (y + x / y) / 2)
    ... def square_root(x):
    ...     return tf.numpy_function(np.sqrt, [x], x.dtype)
    >>> x = tf.constant([4.0, 9.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = square_root(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 12.0])).numpy().round(6).tolist()
    [0.25, 2.0]

    For deep equilibrium models, and any other solver that repeats `y = f(y, *args)`. It is `tf_cg_ops.implicit_root`
    with the residual `y - f(y, *args)`, and has its arguments, shapes, dtypes and errors. `f` returns the structure of
    `y`, and need not read every unknown. With the Jacobians of `f` at `y`, the gradient is

        dx = (df/dx)^H u    where    u - (df/dy)^H u = dy

    and `vjp(u)` is the left side of this system. `tf_cg_ops.linear.cg` solves it if `f` is a contraction and `df/dy` is
    symmetric.

    Differs from JAXopt's `custom_fixed_point`: the solver does not take an initial guess.

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
@misplaced_calls.explains("implicit_minimum", _how_to_write("implicit_minimum(objective, solve)"))
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

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> def ridge(w, b, strength):
    ...     return tf.reduce_sum((w - b) ** 2 + strength * w**2) / 2
    >>> fit = cg.implicit_minimum(ridge, lambda b, strength: b / (1.0 + strength))
    >>> strength = tf.constant(1.0)
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(strength)
    ...     w = fit(tf.constant([2.0, 5.0]), strength)
    >>> round(float(tape.gradient(w, strength, output_gradients=tf.constant([1.0, 10.0]))), 4)
    -13.0

    For what an optimizer finds; `y` can also be another stationary point. It is `tf_cg_ops.implicit_root` with the
    gradient of the objective as the residual, and has its arguments and errors. The objective returns a real scalar,
    or with `batched` one for each example, and `y` must be real; otherwise you get a TypeError, or a ValueError for
    another shape. With the Hessian `H` of the objective `f` at `y`, the gradient is

        dx = -(d2f/dydx)^T u    where    H u = dy

    and `vjp(u)` is `H u`. `tf_cg_ops.linear.cg` solves this system at a minimum. With constraints, give the
    Karush-Kuhn-Tucker conditions to `tf_cg_ops.implicit_root`.

    Differs from JAXopt's `custom_root(jax.grad(objective))`: the solver does not take an initial guess.
    """
    options = Options(batched=batched, linear_solve=linear_solve, has_aux=has_aux, check_solution=check_solution)
    return _decorated(Problem("implicit_minimum", "objective", objective, options), "objective", solve)


def _decorated(problem: Problem, parameter: str, solve: Callable[..., Any] | None) -> Callable[..., Any]:
    """The implicit function, or a decorator for a solver; TypeError if an argument has a wrong type."""
    api, options = problem.api, problem.options
    misplaced_calls.check_function(api, parameter, problem.user_function)
    if options["linear_solve"] is not None:
        noun = "a function such as tf_cg_ops.linear.gmres"
        misplaced_calls.check_function(api, "linear_solve", options["linear_solve"], noun=noun)
    for name, value in options.items():
        if name != "linear_solve" and not isinstance(value, bool):
            raise TypeError(f"{api}: {name} must be True or False, got {text.describe(value)}. Pass a Python bool.")
    if solve is None:
        return functools.partial(implicit_function, problem)
    return implicit_function(problem, solve)
