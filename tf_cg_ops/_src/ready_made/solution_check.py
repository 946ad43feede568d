"""Checks that a solver's result solves the equation. It finds gross errors, such as exchanged arguments."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.ready_made.equations import Equations

# Limits for the relative change of the unknowns in one step of Newton's method. Above the first, the residual is also
# computed elsewhere; above the second, the unknowns are not a solution.
_SUSPICIOUS, _GROSS = 0.01, 0.5
# Added to the size of unknowns, because rounding changes an unknown whose exact value is zero.
_ZERO = 0.01
_LAWS = {
    "residual": "must be zero at the y that {} returns, got numbers",
    "function": "must return the y that {} returns, got numbers that differ from it by",
    "objective": "must have a gradient of zero at the y that {} returns, got numbers",
}


def checked(
    equations: Equations, value: tf.Tensor, y: tf.Tensor, dy: tf.Tensor, u: tf.Tensor, inputs: Sequence[tf.Tensor]
) -> tf.Tensor:
    """Returns `u`, the solution of (dr/dy)^H u = dy; ValueError or InvalidArgumentError if y is far from a solution.

    One step of Newton's method would change `sum(conj(dy) * y)` by `sum(conj(u) * r)`.
    """
    value, y, dy, solution, *inputs = map(tf.stop_gradient, (value, y, dy, u, *inputs))
    r = _residual(equations, value, y)
    error = _relative_error(r, y, dy, solution, inputs)
    if tf.executing_eagerly():
        if bool(error > _SUSPICIOUS) and bool(_is_wrong(equations, error, r, y, inputs)):
            raise ValueError(_message(equations, f"{float(tf.reduce_max(_size(r))):.3g}"))
        return u
    _refuse_xla(equations)
    largest = tf.strings.as_string(tf.reduce_max(_size(r)), precision=3, shortest=True)
    before, after = _message(equations, "\0").split("\0")
    message = tf.strings.join([before, largest, after])
    fits = (error <= _SUSPICIOUS) | ~_is_wrong(equations, error, r, y, inputs)
    with tf.control_dependencies([tf.debugging.Assert(fits, [message])]):
        return tf.identity(u)


def _residual(equations: Equations, value: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return value - y if equations.is_fixed_point else value


def _size(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.abs(tensor), tf.float64 if tensor.dtype.real_dtype == tf.float64 else tf.float32)


def _relative_error(r: Any, y: Any, dy: Any, u: Any, inputs: Sequence[Any]) -> tf.Tensor:
    """The relative change of the unknowns in one step of Newton's method, weighted by `dy`; nan if `dy` is zero."""
    real = _size(y).dtype
    sizes = [_size(t) for t in (y, *inputs) if t.dtype.is_floating or t.dtype.is_complex]
    largest = tf.reduce_max(tf.stack([tf.constant(0.0, real), *(tf.cast(tf.reduce_max(s), real) for s in sizes)]))
    rounding = 8 * {2: 2.0**-8, 4: 2.0**-23}.get(y.dtype.real_dtype.size, 2.0**-52) * largest
    moved = tf.reduce_sum(_size(u) * tf.nn.relu(_size(r) - rounding))
    return moved / tf.reduce_sum(_size(dy) * (_size(y) + _ZERO))


def _is_wrong(equations: Equations, error: Any, r: Any, y: Any, inputs: Sequence[Any]) -> Any:
    """Whether the residual is as large as elsewhere, and Newton's step is large or exchanged arguments are a root."""
    moved = y + tf.cast(0.5, y.dtype) * y + tf.cast(_ZERO, y.dtype)
    size = tf.norm(_size(r))
    elsewhere = _norm_at(equations, moved, inputs, moved)
    if elsewhere is None:
        return False
    is_large = size > _SUSPICIOUS * elsewhere
    is_wrong = error > _GROSS
    if inputs and inputs[0].dtype == y.dtype and inputs[0].shape == y.shape and len(equations.unknowns.names()) == 1:
        exchanged = _norm_at(equations, inputs[0], [y, *inputs[1:]], y)
        if exchanged is not None:
            is_wrong |= exchanged < 0.1 * size
    return is_large & is_wrong


def _norm_at(equations: Equations, unknowns: Any, inputs: Sequence[Any], y: Any) -> Any:
    """The norm of the residual for other unknowns; None if the user's function does not take them."""
    try:
        value = equations.value_at(equations.unknowns.leaves(unknowns), inputs)
    except Exception:
        return None
    return tf.norm(_size(_residual(equations, value, y)))


def _message(equations: Equations, largest: str) -> str:
    law = _LAWS[equations.noun].format(f"'{equations.function_name}'")
    return (
        f"{equations.api}: {equations.subject} {law} up to {largest}. Check that the {equations.noun} takes y first "
        "and that the solver converges, or pass check_solution=False."
    )


def _refuse_xla(equations: Equations) -> None:
    """NotImplementedError under XLA, which drops checks silently."""
    if tf_internal.is_traced_for_xla(tf.compat.v1.get_default_graph()):
        raise NotImplementedError(
            f"{equations.api}: XLA cannot compile check_solution=True. Leave it out for '{equations.function_name}' in "
            "a function with jit_compile=True."
        )
