"""`while_loop`: `tf.while_loop` with a gradient that recomputes segments of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, text, tf_internal
from tf_cg_ops._src.core.signature import check_takes
from tf_cg_ops._src.core.types import Structure
from tf_cg_ops._src.memory import checkpointed_loop
from tf_cg_ops._src.memory.checkpointed_loop import Carry, Loop
from tf_cg_ops._src.memory.nested_loops import Checkpoint, check_checkpoint

_API = "while_loop"


@tf_internal.autograph_artifact
@misplaced_calls.explains(
    _API,
    "Write while_loop(cond, body, loop_vars, maximum_iterations=...), with a list or tuple of loop_vars and an upper "
    "limit for the number of steps; cond still ends the loop. Leave out options such as parallel_iterations and "
    "shape_invariants.",
)
def while_loop(
    cond: Callable[..., tf.Tensor],
    body: Callable[..., Structure],
    loop_vars: Sequence[Structure],
    *,
    maximum_iterations: int | tf.Tensor,
    checkpoint: str | int | None = "sqrt",
) -> Sequence[Structure]:
    """Repeats `body` while `cond` is true, like `tf.while_loop`, and keeps only a few of the steps for the gradient.

    Use it if a long loop needs too much memory for its gradient.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x = tf.constant(3.0)
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     (y,) = cg.while_loop(lambda y: y < 100.0, lambda y: (y * y,), (x,), maximum_iterations=50)
    >>> float(y), float(tape.gradient(y, x))
    (6561.0, 17496.0)

    It computes

        while cond(*loop_vars) and t < maximum_iterations:
            loop_vars, t = body(*loop_vars), t + 1

    Gradients reach `loop_vars`, and the Tensors and variables that `body` reads. `maximum_iterations` is cut into
    segments as `checkpoint` says; `scan` describes how much each choice keeps and how often a step runs. The loop can
    end anywhere, also within a segment. Random numbers and variables behave as in `scan`.

    Args:
      cond: `cond(*loop_vars)` returns one bool: whether there is a next step.
      body: `body(*loop_vars)` returns the new loop variables, with the structure, shapes and dtypes of the old ones.
      loop_vars: A list or tuple of structures of Tensors, arrays and numbers.
      maximum_iterations: The largest number of steps. XLA must know it.
      checkpoint: `"sqrt"`, `"log"`, the number of steps per segment, or None.

    Returns:
      The last `loop_vars`, in their structure.

    Raises:
      TypeError: An argument has the wrong type; `body` changes a dtype; `cond` does not return a bool.
      ValueError: `loop_vars` is empty; `maximum_iterations` or `checkpoint` is out of range; `body` changes the
        structure or a shape; `cond` returns several bools.
      NotImplementedError: As in `scan`.

    Differs from `tf.while_loop`:

    - `maximum_iterations` is required, and the loop variables keep their shapes.
    - Variables that `body` assigns are written after the loop.
    - Eager mode traces `body` and `cond`, in each call.

    Source: as in `scan`.
    """
    for argument, function in (("cond", cond), ("body", body)):
        noun = "a function of the loop variables"
        misplaced_calls.check_function(_API, argument, function, "Pass cond first, then body.", noun)
    check_checkpoint(_API, checkpoint)
    message = f"{_API}: loop_vars must be a list or tuple of the arguments of body, at least one, got {{}}. "
    if not isinstance(loop_vars, (list, tuple)):
        raise TypeError(message.format(text.describe(loop_vars)) + "Write (x,) for a single one.")
    if not loop_vars:
        raise ValueError(message.format(text.describe(loop_vars)) + "Pass what changes from step to step.")

    for argument, function in (("cond", cond), ("body", body)):
        must_take = f"{_API}: {argument} must take one argument for each of the loop variables, {len(loop_vars)} in all"
        check_takes(function, loop_vars, {}, must_take)

    loop_vars = checkpointed_loop.to_tensors(_API, "loop_vars", loop_vars, "Use scan to collect values of the steps.")
    num_steps = _number_of_steps(maximum_iterations)
    cond, body = (checkpointed_loop.translated(_API, function) for function in (cond, body))
    loop = _WhileLoop(cond, body, loop_vars, checkpoint)
    return loop(cond, loop_vars, num_steps)


class _WhileLoop:
    """The loop for one signature of the loop variables. Its carry starts with a bool: whether there is a next step."""

    def __init__(
        self, cond: Callable[..., Any], body: Callable[..., Any], loop_vars: Sequence[Any], checkpoint: Checkpoint
    ) -> None:
        name = text.name_of(body)
        carry = Carry(_API, "loop_vars", loop_vars, name)

        def step(goes_on: tf.Tensor, *leaves: tf.Tensor) -> list[tf.Tensor]:
            value = body(*carry.pack(leaves))
            if getattr(value, "dtype", None) == tf.bool and any(leaf.dtype != tf.bool for leaf in carry.leaves):
                raise TypeError(f"{_API}: body '{name}' must return loop_vars, got a bool. Pass cond first, then body.")
            if len(loop_vars) == 1 and not isinstance(value, (list, tuple)):
                value = (value,)
            new = carry.leaves_of(value)
            return [_goes_on(cond, carry.pack(new)), *new]

        self._loop = Loop(
            _API,
            body,
            step,
            [tf.TensorSpec([], tf.bool), *carry.leaves],
            [],
            checkpoint,
            keeps_going=lambda values: values[0],
        )

    def __call__(self, cond: Callable[..., Any], loop_vars: Sequence[Any], num_steps: int | tf.Tensor) -> Any:
        leaves = checkpointed_loop.leaves_of(loop_vars)
        last, _ = self._loop([_goes_on(cond, loop_vars), *leaves], [], num_steps)
        return checkpointed_loop.pack(loop_vars, last[1:])


def _goes_on(cond: Callable[..., Any], loop_vars: Sequence[Any]) -> tf.Tensor:
    value = tf.convert_to_tensor(cond(*loop_vars))
    subject = f"{_API}: '{text.name_of(cond)}' must return one bool, whether there is a next step"
    if value.dtype != tf.bool:
        raise TypeError(f"{subject}, got a Tensor of {value.dtype.name}. Compare with <, or cast it.")
    if value.shape.num_elements() not in (1, None):
        raise ValueError(f"{subject}, got a Tensor of shape {value.shape}. Reduce it with tf.reduce_any.")
    return tf.reshape(value, [])


def _number_of_steps(maximum_iterations: Any) -> int | tf.Tensor:
    number = None if maximum_iterations is None else tf.convert_to_tensor(maximum_iterations)
    if number is None or not number.dtype.is_integer or number.shape.rank not in (0, None):
        raise TypeError(
            f"{_API}: maximum_iterations must be an int or an integer Tensor, got {text.describe(maximum_iterations)}. "
            "Pass an upper limit, which is cut into segments; cond still ends the loop."
        )
    static_number = checkpointed_loop.static_int(number)
    if isinstance(static_number, int) and static_number < 0:
        raise ValueError(f"{_API}: maximum_iterations must be 0 or more, got {static_number}.")
    return static_number
