"""`implicit_root`, `implicit_fixed_point` and `implicit_minimum`: derivatives of what a solver finds."""

import functools
from collections.abc import Callable
from typing import Any, overload

import tensorflow as tf

from tf_cg_ops._src.core import text, tf_internal
from tf_cg_ops._src.core.types import P, R
from tf_cg_ops._src.ready_made.equations import Problem
from tf_cg_ops._src.ready_made.implicit_system import checked_options, implicit_function


@overload
def implicit_root(
    residual: Callable[..., Any],
    solve: Callable[P, R],
    *,
    batched: bool = False,
    linear_solve: Callable[..., Any] | None = None,
    has_aux: bool = False,
    check_solution: bool | None = None,
) -> Callable[P, R]: ...
@overload
def implicit_root(
    residual: Callable[..., Any],
    solve: None = None,
    *,
    batched: bool = False,
    linear_solve: Callable[..., Any] | None = None,
    has_aux: bool = False,
    check_solution: bool | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@tf_internal.autograph_artifact
def implicit_root(
    residual: Callable[..., Any],
    solve: Callable[..., Any] | None = None,
    *,
    batched: bool = False,
    linear_solve: Callable[..., Any] | None = None,
    has_aux: bool = False,
    check_solution: bool | None = None,
) -> Callable[..., Any]:
    """Gives the result of a solver the derivative of a root of `residual(y, *args) = 0`.

    `solve(*args)` returns such a `y`, by any method. With the Jacobians `dr/dy` and `dr/dx` of the residual at `y`, and
    the upstream gradient `dy`, the gradient with respect to each Tensor among the arguments is

        dx = -(dr/dx)^H u    where    (dr/dy)^H u = dy

    and likewise for each variable that the residual reads, if it is trainable or a tape watches it. Arguments may be
    nested structures. The solver is not differentiated and not run again, so it may be of any kind: a `tf.while_loop`,
    Newton's method, SciPy within `tf.numpy_function`. For a fixed point and for a minimum there are
    `tf_cg_ops.implicit_fixed_point` and `tf_cg_ops.implicit_minimum`.

    `y` is a Tensor of any shape, or a structure of them, which the residual gets and returns. With `batched` the
    leading dimension is a batch of independent systems: the residual of one example depends on the `y` of that example
    alone, and the Jacobians `dr/dy` are `[B, n, n]`.

    Derivatives of every order work; in a loaded model, those up to the third. The residual is computed once together
    with the value, to check it and to find the variables that it reads.

    The derivative is only as accurate as `y`. A gradient in eager mode checks that `y` is near a root: if one step of
    Newton's method would change it by more than half of its size, or if the residual is near zero with `y` and the
    first argument exchanged, you get an error. A solver that stops early passes. Only a doubtful `y` costs more
    evaluations of the residual: two.

    A residual that does not depend on `y`, or computes with it outside of TensorFlow, has no derivative: that is an
    error when you compute a gradient.

    Limitations. Tensors that the residual closes over get no gradient: pass them as arguments. If `dr/dy` is singular,
    `tf.linalg.solve` fails or returns numbers that are not finite. A complex residual must be holomorphic, and needs a
    `linear_solve` under XLA, where TensorFlow solves no complex systems. A residual with a `tf.GradientTape` inside has
    no tangents by a ForwardAccumulator in eager mode.

    Compared with others: `jax.lax.custom_root` also takes a function and a solver for its tangent; TensorFlow has no
    such function.

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

    Args:
      residual: `residual(y, *args)` is zero at the root: a Tensor of the shape and dtype of `y`, or a structure like
        `y`, made of TensorFlow operations. It gets the value of an argument that is a Variable.
      solve: The solver; it may read variables, and keep its state in some. Without it, a decorator for a solver is
        returned.
      batched: Whether the leading dimension of `y` is a batch of independent systems.
      linear_solve: `linear_solve(vjp, dy)` returns the `u` with `vjp(u) = dy`, in the structure and shapes of `y`,
        where `vjp(u)` is `(dr/dy)^H u`: an iterative solver for systems that are too big for their Jacobian, such
        as `tf_cg_ops.linear.gmres`. Without it the Jacobian is computed and `tf.linalg.solve` called.
      has_aux: Whether `solve` returns a pair `(y, aux)`. `aux`, such as the number of steps, is passed through and has
        no gradient.
      check_solution: Whether a gradient checks that `y` is near a root: True in graphs, too, at run time (not under
        XLA), and False never. None for eager mode alone.

    Returns:
      A function with the signature of `solve` that returns its `y`, or `(y, aux)`.

    Raises:
      TypeError: `residual`, `solve` or `linear_solve` is not callable, or an option is not a bool. At the call: `solve`
        does not return Tensors of one dtype, or no pair with `has_aux`; the residual has another dtype. When you
        compute a gradient: `linear_solve` returned another dtype.
      ValueError: At the call: the residual does not have the structure and shapes of `y`, or `y` is a scalar and
        `batched` is set. When you compute a gradient: `linear_solve` returned another structure or shape, the residual
        has no derivative by `y`, or `y` is far from a root.
      NotImplementedError: When a gradient is asked for: `check_solution` is True under XLA.
      RuntimeError: A derivative of an order above the third is asked for in a loaded model.
      tf.errors.InvalidArgumentError: The residual has another shape than `y`, and the shapes are known at run time
        only; the Jacobian is singular; `linear_solve` is a solver of `tf_cg_ops.linear` that does not converge; or in a
        graph with `check_solution=True`, `y` is far from a root.
    """
    options = checked_options("implicit_root", residual, batched, linear_solve, has_aux, check_solution)
    if solve is None:
        return functools.partial(implicit_root, residual, **options)
    return implicit_function(Problem("implicit_root", "residual", residual, residual, options), solve)


@overload
def implicit_fixed_point(
    f: Callable[..., Any],
    solve: Callable[P, R],
    *,
    batched: bool = False,
    linear_solve: Callable[..., Any] | None = None,
    has_aux: bool = False,
    check_solution: bool | None = None,
) -> Callable[P, R]: ...
@overload
def implicit_fixed_point(
    f: Callable[..., Any],
    solve: None = None,
    *,
    batched: bool = False,
    linear_solve: Callable[..., Any] | None = None,
    has_aux: bool = False,
    check_solution: bool | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@tf_internal.autograph_artifact
def implicit_fixed_point(
    f: Callable[..., Any],
    solve: Callable[..., Any] | None = None,
    *,
    batched: bool = False,
    linear_solve: Callable[..., Any] | None = None,
    has_aux: bool = False,
    check_solution: bool | None = None,
) -> Callable[..., Any]:
    """Gives the result of a solver the derivative of a fixed point `y = f(y, *args)`.

    With the Jacobians `df/dy` and `df/dx` of the function at `y`, and the upstream gradient `dy`,

        dx = (df/dx)^H u    where    u = dy + (df/dy)^H u

    as for the root of `f(y, *args) - y` in `tf_cg_ops.implicit_root`, which has the details. In a deep
    equilibrium model `y` is the state of the layer.

    Compared with others: jaxopt has `implicit_diff.custom_fixed_point`; TensorFlow has no such function.

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

    Args:
      f: `f(y, *args)` returns `y` in its structure, made of TensorFlow operations.
      solve: The solver; without it, a decorator for a solver is returned.
      batched: Whether the leading dimension of `y` is a batch of independent systems.
      linear_solve: `linear_solve(vjp, dy)` returns the `u` with `vjp(u) = dy`, as for `tf_cg_ops.implicit_root`; here
        `vjp(u)` is `(df/dy)^H u - u`.
      has_aux: Whether `solve` returns a pair `(y, aux)`.
      check_solution: Whether a gradient checks that `y` is near a solution, as for `tf_cg_ops.implicit_root`.

    Returns:
      A function with the signature of `solve` that returns its `y`, or `(y, aux)`.

    Raises:
      TypeError: As `tf_cg_ops.implicit_root`, with `f` for `residual`.
      ValueError: Likewise.
      RuntimeError: Likewise.
      tf.errors.InvalidArgumentError: Likewise.

    Source: Bai, Kolter and Koltun, "Deep equilibrium models" (2019), arXiv:1909.01377, theorem 1.
    """
    api = "implicit_fixed_point"
    options = checked_options(api, f, batched, linear_solve, has_aux, check_solution)
    if solve is None:
        return functools.partial(implicit_fixed_point, f, **options)
    return implicit_function(Problem(api, "function", f, f, options, is_fixed_point=True), solve)


@overload
def implicit_minimum(
    objective: Callable[..., Any],
    solve: Callable[P, R],
    *,
    batched: bool = False,
    linear_solve: Callable[..., Any] | None = None,
    has_aux: bool = False,
    check_solution: bool | None = None,
) -> Callable[P, R]: ...
@overload
def implicit_minimum(
    objective: Callable[..., Any],
    solve: None = None,
    *,
    batched: bool = False,
    linear_solve: Callable[..., Any] | None = None,
    has_aux: bool = False,
    check_solution: bool | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@tf_internal.autograph_artifact
def implicit_minimum(
    objective: Callable[..., Any],
    solve: Callable[..., Any] | None = None,
    *,
    batched: bool = False,
    linear_solve: Callable[..., Any] | None = None,
    has_aux: bool = False,
    check_solution: bool | None = None,
) -> Callable[..., Any]:
    """Gives the result of a solver the derivative of a minimum, or another stationary point, of `objective(y, *args)`.

    The gradient of the objective with respect to `y` is zero there. With its Hessian `H = d2f/dy2` and the mixed
    derivative `d2f/dydx` at `y`, and the upstream gradient `dy`,

        dx = -(d2f/dydx)^T u    where    H u = dy

    as for the root of the gradient in `tf_cg_ops.implicit_root`, which has the details. `H` is symmetric: for a
    `linear_solve`, conjugate gradients fit a minimum.

    Limitations. The objective is real, and so are the unknowns. There are no constraints: for these, take the
    conditions of Karush, Kuhn and Tucker as a residual. ForwardAccumulator has no tangents in eager mode.

    Compared with others: jaxopt has `implicit_diff.custom_root` for the gradient of an objective; TensorFlow has no
    such function.

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

    Args:
      objective: `objective(y, *args)` returns a real scalar, or with `batched` one for each example, made of TensorFlow
        operations.
      solve: The solver; without it, a decorator for a solver is returned.
      batched: Whether the leading dimension of `y` is a batch of independent minima.
      linear_solve: `linear_solve(vjp, dy)` returns the `u` with `vjp(u) = dy`, as for `tf_cg_ops.implicit_root`; here
        `vjp(u)` is `H u`.
      has_aux: Whether `solve` returns a pair `(y, aux)`.
      check_solution: Whether a gradient checks that `y` is near a solution, as for `tf_cg_ops.implicit_root`.

    Returns:
      A function with the signature of `solve` that returns its `y`, or `(y, aux)`.

    Raises:
      TypeError: As `tf_cg_ops.implicit_root`; at the call, also: the objective or an unknown is not real.
      ValueError: Likewise; at the call, also: the objective is not a scalar, or with `batched` not a vector.
      RuntimeError: As `tf_cg_ops.implicit_root`.
      tf.errors.InvalidArgumentError: Likewise.
    """
    api = "implicit_minimum"
    options = checked_options(api, objective, batched, linear_solve, has_aux, check_solution)
    if solve is None:
        return functools.partial(implicit_minimum, objective, **options)

    def gradient(y: Any, *args: Any, **kwargs: Any) -> Any:
        leaves = tf.nest.flatten(y)
        if any(leaf.dtype.is_complex for leaf in leaves):
            raise TypeError(
                f"{api}: '{text.name_of(solve)}' returned complex unknowns; expected real ones, got "
                f"{leaves[0].dtype.name}. Solve for the real and the imaginary part."
            )
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            value = tf.convert_to_tensor(objective(y, *args, **kwargs))
            _check_objective(api, objective, value, batched)
            total = tf.reduce_sum(value)
        gradients = tape.gradient(total, leaves, unconnected_gradients="zero")
        return tf.nest.pack_sequence_as(y, [tf.convert_to_tensor(g) for g in gradients])

    return implicit_function(Problem(api, "objective", objective, gradient, options), solve)


def _check_objective(api: str, objective: Callable[..., Any], value: tf.Tensor, batched: bool) -> None:
    if not value.dtype.is_floating:
        raise TypeError(
            f"{api}: the objective '{text.name_of(objective)}' is not real; expected floating-point numbers, got "
            f"{value.dtype.name}. Return a real number."
        )
    if value.shape.rank not in (1 if batched else 0, None):
        expected = "one number for each example" if batched else "a scalar"
        raise ValueError(
            f"{api}: the objective '{text.name_of(objective)}' has the wrong shape; expected {expected}, got "
            f"{value.shape}. Sum it."
        )
