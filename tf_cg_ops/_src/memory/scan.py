"""`scan`: a loop over the slices of Tensors, whose gradient recomputes segments of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, misplaced_calls, pytree, signature, text, tf_internal
from tf_cg_ops._src.core.types import Structure
from tf_cg_ops._src.memory import checkpointed_loop
from tf_cg_ops._src.memory.checkpointed_loop import Carry, Loop
from tf_cg_ops._src.memory.nested_loops import Checkpoint, check_checkpoint

_API = "scan"


@tf_internal.autograph_artifact
@misplaced_calls.explains(
    _API,
    "Write scan(f, init, xs), in the order of jax.lax.scan: init is the initializer of tf.scan, and xs its elems. "
    "Leave out options such as unroll and parallel_iterations.",
)
def scan(
    f: Callable[[Structure, Structure], tuple[Structure, Structure]],
    init: Structure,
    xs: Structure = None,
    length: int | tf.Tensor | None = None,
    reverse: bool = False,
    *,
    checkpoint: str | int | None = "sqrt",
) -> tuple[Structure, Structure]:
    """Calls `f(carry, x)` for each slice of `xs`, and keeps only a few of the carries for the gradient.

    Use it to train over sequences that are too long for `tf.scan` or a Keras RNN.

    The arguments have the order of `jax.lax.scan`, not of `tf.scan`:

        carry = init
        for t in range(length):
            carry, ys[t] = f(carry, xs[t])

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> def decay(carry, x):
    ...     carry = 0.5 * carry + x
    ...     return carry, carry**2
    >>> xs = tf.constant([1.0, 2.0, 3.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(xs)
    ...     last, ys = cg.scan(decay, 0.0, xs)
    >>> ys.numpy().tolist()
    [1.0, 6.25, 18.0625]
    >>> tape.gradient(ys, xs, output_gradients=tf.constant([1.0, 10.0, 100.0])).numpy().tolist()
    [239.5, 475.0, 850.0]

    A plain loop keeps what each of its N steps computes. `scan` cuts the loop into segments, keeps the carry at the
    start of each, and runs one segment after the other again in the backward pass. `checkpoint` sets their length:

    - `"sqrt"`: `sqrt(N)` steps per segment, so `sqrt(N)` carries are kept. Each step runs twice.
    - `"log"`: segments within segments, eight in each. About `8 log8(N)` carries are kept. Each step runs `log8(N)`
      times, rounded up.
    - An int: the number of steps per segment.
    - None: everything is kept, and nothing runs again.

    Gradients reach `init`, `xs`, and the Tensors and variables that `f` reads. Each step draws new random numbers,
    which the backward pass uses again. Variables that `f` only reads are read before the loop; variables that it
    assigns carry their value from step to step, and are written after the loop.

    `f` is traced, in eager mode in each call. For speed, use `scan` in a `tf.function`.

    Args:
      f: `f(carry, x)` returns a pair: the new carry, with the structure, shapes and dtypes of the old one, and an
        output, a structure of Tensors or None.
      init: The carry before the first step: a structure of Tensors, arrays and numbers, or None.
      xs: A structure of Tensors with one slice per step along the first dimension, or None.
      length: The number of steps; needed only without `xs`. XLA must know it.
      reverse: Whether to go from the last slice to the first. Each output keeps the position of its slice.
      checkpoint: `"sqrt"`, `"log"`, the number of steps per segment, or None.

    Returns:
      The last carry, and the outputs of all steps, stacked along a new first dimension.

    Raises:
      TypeError: An argument has the wrong type; `f` does not return a pair, or changes the carry's dtype.
      ValueError: The number of steps is missing, negative or ambiguous; `f` changes the carry's structure or a shape.
      NotImplementedError: `f` has a stateful op that can neither be kept nor run again.
      tf.errors.InvalidArgumentError: The numbers of steps differ at run time.

    Differs from `tf.scan`:

    - `scan(f, init, xs)` instead of `tf.scan(f, elems, initializer)`.
    - `f` returns a carry and an output, with structures of their own, and you also get the last carry.
    - Variables are written after the loop.

    Source: Chen et al., "Training deep nets with sublinear memory cost" (2016), arXiv:1604.06174; nested segments:
    Griewank and Walther, "Evaluating derivatives" (2008), chapter 12.
    """
    noun = "a function f(carry, x) that returns (carry, y)"
    misplaced_calls.check_function(_API, "f", f, "Pass the function first.", noun)
    check_checkpoint(_API, checkpoint)
    reverse = convert.to_bool(_API, "reverse", reverse)
    if length is not None and not tf.convert_to_tensor(length).dtype.is_integer:
        raise TypeError(f"{_API}: length must be an int or an integer Tensor, got {text.describe(length)}.")

    init = checkpointed_loop.to_tensors(_API, "init", init, "Put what a step only returns into its output y.")
    xs = checkpointed_loop.to_tensors(_API, "xs", xs, "Stack the values for the steps into Tensors.")
    num_steps = _number_of_steps(xs, None if length is None else checkpointed_loop.static_int(length))
    f = checkpointed_loop.translated(_API, f)
    loop = _Scan(f, init, xs, reverse, checkpoint)
    return loop(init, xs, num_steps)


class _Scan:
    """The loop for one signature of the arguments."""

    def __init__(self, f: Callable[..., Any], init: Any, xs: Any, reverse: bool, checkpoint: Checkpoint) -> None:
        name = text.name_of(f)
        carry = Carry(_API, "init", init, name)
        ints = [leaf for leaf, spec in zip(carry.names, carry.leaves, strict=True) if spec.dtype.is_integer]
        self._structure_of_y: Any = None

        def step(*tensors: tf.Tensor) -> list[tf.Tensor]:
            x = checkpointed_loop.pack(xs, tensors[len(carry.leaves) :])
            takes = f"{_API}: '{name}' must take two arguments, the carry and one slice of xs"
            note = f"{_API}: '{name}' is called as f(carry, x), with one slice of xs."
            for leaf in ints:
                note += f" It gets integers for {leaf}. For floats, start with 0.0."
            value = signature.call(f, [carry.pack(tensors[: len(carry.leaves)]), x], {}, takes, note=note)
            advice = (
                "End it with: return carry, y (or: return carry, None). In tf.scan, unlike here, the function returns "
                "only the carry."
            )
            new_carry, y = pytree.pair(f"{_API}: '{name}'", "carry, y", value, advice, types=tuple)
            y = checkpointed_loop.to_tensors(_API, f"the output y of '{name}'", y, "Return Tensors.")
            ys = _dense_leaves(f"the output y of '{name}'", y)
            # Without its Tensors, because they belong to the trace.
            self._structure_of_y = tf.nest.map_structure(lambda leaf: None if leaf is None else 0, y)
            return [*carry.leaves_of(new_carry), *ys]

        self._loop = Loop(_API, f, step, carry.leaves, checkpointed_loop.leaves_of(xs), checkpoint, reverse=reverse)

    def __call__(self, init: Any, xs: Any, num_steps: int | tf.Tensor) -> tuple[Any, Any]:
        leaves_of, pack = checkpointed_loop.leaves_of, checkpointed_loop.pack
        last, ys = self._loop(leaves_of(init), leaves_of(xs), num_steps)
        return pack(init, last), pack(self._structure_of_y, ys)


def _dense_leaves(name: str, structure: Any) -> list[tf.Tensor]:
    leaves = [leaf for leaf in tf.nest.flatten(structure) if leaf is not None]
    for leaf in leaves:
        if not isinstance(leaf, tf.Tensor):
            raise TypeError(
                f"{_API}: {name} must hold dense Tensors, got {text.describe_type(leaf)}. Convert it with its "
                "to_tensor() or with tf.sparse.to_dense."
            )
    return leaves


def _number_of_steps(xs: Any, length: int | tf.Tensor | None) -> int | tf.Tensor:
    leaves = _dense_leaves("xs", xs)
    all_names = pytree.leaf_names("xs", xs)
    names = [name for name, leaf in zip(all_names, tf.nest.flatten(xs), strict=True) if leaf is not None]
    sizes: dict[str, Any] = {}
    for name, leaf in zip(names, leaves, strict=True):
        if leaf.shape.rank == 0:
            raise ValueError(
                f"{_API}: {name} must have a first dimension for the steps, got a scalar. If it is the initial carry, "
                "pass it second: scan(f, init, xs). Otherwise stack the values for the steps, or let f close over a "
                "value that all steps share."
            )
        known_size = leaf.shape[0] if leaf.shape.rank else None
        sizes[name] = tf.shape(leaf)[0] if known_size is None else known_size
    if length is not None:
        sizes["length"] = length
    if not sizes:
        raise ValueError(
            f"{_API}: xs or length must tell the number of steps, got neither. Write scan(f, init, xs), or pass "
            "length=."
        )
    known = {name: size for name, size in sizes.items() if isinstance(size, int)}
    if known.get("length", 0) < 0:
        raise ValueError(f"{_API}: length must be 0 or more, got {known['length']}.")
    if len(set(known.values())) > 1:
        got = ", ".join(f"{name}: {size}" for name, size in known.items())
        raise ValueError(f"{_API}: the numbers of steps must be equal, got {got}. Cut all to the same length.")
    first, number = next(iter((known or sizes).items()))
    checks = [
        tf.debugging.assert_equal(
            size,
            number,
            f"{_API}: {name} must have as many steps as {first}, got more or fewer. Cut both to the same length.",
        )
        for name, size in sizes.items()
        if name not in known and size is not number
    ]
    if known:
        return number
    with tf.control_dependencies([check for check in checks if check is not None]):
        return tf.identity(number)
