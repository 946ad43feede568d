"""`while_loop`: `tf.while_loop` with a gradient that recomputes segments of it."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import text, tf_internal
from tf_cg_ops._src.memory import checkpointed_loop
from tf_cg_ops._src.memory.checkpointed_loop import Carry, Loop
from tf_cg_ops._src.memory.segments import Checkpoint, check_checkpoint
from tf_cg_ops._src.rewrite import traces

_API = "while_loop"


@tf_internal.autograph_artifact
def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    maximum_iterations: int | tf.Tensor,
    *,
    checkpoint: Checkpoint = "sqrt",
) -> Any:
    """Repeats `body` while `cond` is true, as `tf.while_loop` does, in little memory for the gradient.

    The steps are those of

        while cond(*loop_vars) and t < maximum_iterations:
            loop_vars, t = body(*loop_vars), t + 1

    and the gradients are those of this loop: with respect to `loop_vars`, and the Tensors and variables that `body`
    reads. `checkpoint` and `maximum_iterations` decide, as in `scan`, how much is kept for the gradient and how often a
    step is computed. The loop may end anywhere, also within a segment.

    Compared with `tf.while_loop`: the same values and gradients, but `maximum_iterations` is necessary, shapes do not
    change from step to step, and variables that `body` assigns are written after the loop. In eager mode the loop is
    traced, once for each signature of its variables.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x = tf.constant(3.0)
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     (y,) = cg.while_loop(lambda y: y < 100.0, lambda y: (y * y,), (x,), maximum_iterations=50)
    >>> float(y), float(tape.gradient(y, x))
    (6561.0, 17496.0)

    Args:
      cond: `cond(*loop_vars)` returns whether there is a next step: a Tensor of one bool.
      body: `body(*loop_vars)` returns the new ones, of the structure, shapes and dtypes of the old ones.
      loop_vars: A list or tuple of structures of Tensors, arrays and numbers.
      maximum_iterations: The largest number of steps. XLA must know it.
      checkpoint: `"sqrt"`, `"log"`, the number of steps in a segment, or None.

    Returns:
      The last `loop_vars`, in their structure.

    Raises:
      TypeError: `cond` or `body` cannot be called; `loop_vars` is not a list or tuple, or holds something else than
        Tensors; `maximum_iterations` is not a whole number; `checkpoint` is of another type; `body` changes a dtype;
        `cond` does not return a bool.
      ValueError: `loop_vars` is empty; `maximum_iterations` is negative; there is no such `checkpoint`; `body` changes
        the structure or a shape; `cond` returns several bools.
      NotImplementedError: `body` has a stateful op that can neither be kept nor computed again.

    Source: as `scan`.
    """
    for argument, function in (("cond", cond), ("body", body)):
        if not callable(function):
            raise TypeError(
                f"{_API}: {argument} cannot be called; expected a function of the loop variables, got "
                f"{text.describe_type(function)}. Pass cond first, and then body."
            )
    check_checkpoint(_API, checkpoint)
    message = f"{_API}: loop_vars must be a list or tuple of the arguments of body, at least one, got {{}}. "
    if not isinstance(loop_vars, (list, tuple)):
        raise TypeError(message.format(text.describe(loop_vars)) + "Write (x,) for a single one.")
    if not loop_vars:
        raise ValueError(message.format(text.describe(loop_vars)) + "Pass what changes from step to step.")
    given = loop_vars
    loop_vars = checkpointed_loop.to_tensors(_API, "loop_vars", loop_vars, "Let scan stack the values of the steps.")
    num_steps = _number_of_steps(maximum_iterations)
    cond, body = map(checkpointed_loop.translated, (cond, body))
    key = "while_loop", cond, checkpoint, num_steps, loop_vars
    with checkpointed_loop.explain_int_carry(_API, "loop_vars", given):
        loop = traces.find_or_make(
            _API, body, key, lambda: _WhileLoop(cond, body, loop_vars, checkpoint), others=[cond]
        )
    return loop(cond, loop_vars, num_steps)


class _WhileLoop:
    """A loop for loop variables of one signature. Its carry begins with whether there is a next step."""

    def __init__(
        self, cond: Callable[..., Any], body: Callable[..., Any], loop_vars: Sequence[Any], checkpoint: Checkpoint
    ) -> None:
        name = text.name_of(body)
        carry = Carry(_API, "loop_vars", loop_vars, name)

        def step(goes_on: tf.Tensor, *leaves: tf.Tensor) -> list[tf.Tensor]:
            value = body(*carry.pack(leaves))
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
        leaves = tf.nest.flatten(loop_vars, expand_composites=True)
        last, _ = self._loop([_goes_on(cond, loop_vars), *leaves], [], num_steps)
        return tf.nest.pack_sequence_as(loop_vars, last[1:], expand_composites=True)


def _goes_on(cond: Callable[..., Any], loop_vars: Sequence[Any]) -> tf.Tensor:
    with traces.explain_missing_numbers(_API, cond):
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
            f"{_API}: maximum_iterations is no whole number; expected the largest number of steps, which says how to "
            f"cut the loop into segments, got {text.describe(maximum_iterations)}. Pass an upper limit: cond ends the "
            "loop."
        )
    static_number = checkpointed_loop.static_int(number)
    if isinstance(static_number, int) and static_number < 0:
        raise ValueError(
            f"{_API}: maximum_iterations is negative; expected the largest number of steps, got {static_number}. Pass "
            "an upper limit."
        )
    return static_number
