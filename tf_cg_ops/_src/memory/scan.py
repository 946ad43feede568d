"""`scan`: a loop over the slices of Tensors, whose gradient recomputes segments of it."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import convert, pytree, text, tf_internal
from tf_cg_ops._src.memory import checkpointed_loop
from tf_cg_ops._src.memory.checkpointed_loop import Carry, Loop
from tf_cg_ops._src.memory.segments import Checkpoint, check_checkpoint
from tf_cg_ops._src.rewrite import traces

_API = "scan"


@tf_internal.autograph_artifact
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | tf.Tensor | None = None,
    reverse: bool = False,
    *,
    checkpoint: Checkpoint = "sqrt",
) -> tuple[Any, Any]:
    """Calls `f(carry, x) -> (carry, y)` for each slice of Tensors, in little memory; in JAX's order, not `tf.scan`'s.

    The steps are those of

        carry = init
        for t in range(length):
            carry, ys[t] = f(carry, xs[t])

    and the gradients are those of this loop: with respect to `init`, `xs`, and what `f` reads, Tensors and variables. A
    plain loop keeps for the gradient what each of its N steps computes. Here N steps are cut into segments, only the
    carries at their beginnings are kept, and the gradient computes one segment after the other once more. `checkpoint`
    says how:

    - `"sqrt"`: segments of `sqrt(N)` steps. Kept are `sqrt(N)` carries, and what `sqrt(N)` steps compute. Each step is
      computed twice.
    - `"log"`: segments in segments, eight in each. Kept are `8 log8(N)` carries, and what 8 steps compute. Each step is
      computed `log8(N)` times, rounded up.
    - A number: segments of so many steps, such as 100 for the layout of a plain loop over `scan`s of 100 steps.
    - None: nothing is computed again, and everything is kept.

    The outputs `ys`, and the gradients of `xs`, have a slice for each step.

    The step is traced once, and in eager mode once for each signature of the arguments. A Python number that it reads
    outside stays the one of the first call. If `f` is a new function in each call, such as a lambda in a training
    step, eager mode traces its step each time and builds the loop again only if the step computes something else.
    Random ops draw new numbers in each step, and the same ones for the gradient. Variables that `f` only reads are
    read before the loop; those that it assigns, such as the state of dropout, carry their values from step to step and
    are written after the loop.

    Compared with `tf.scan(f, elems, initializer)`: the start comes first, here `scan(f, init, xs)`, and `f` returns the
    carry and an output, which may be of different structures; the last carry is returned, too; memory grows as
    the square root of the length; the state of variables is written after the loop. `jax.lax.scan` with
    `jax.checkpoint` in two loops is like it.

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

    Args:
      f: `f(carry, x)` returns a pair: the new carry, of the structure, shapes and dtypes of the old one, and an output,
        a structure of Tensors or None.
      init: The carry before the first step: a structure of Tensors, arrays and numbers.
      xs: A structure of Tensors that have one slice for each step along their first dimension; None for none.
      length: The number of steps. It may be left out if there are `xs`. XLA must know it.
      reverse: Whether the steps go from the last slice to the first. Outputs have the places of their slices.
      checkpoint: `"sqrt"`, `"log"`, the number of steps in a segment, or None.

    Returns:
      The last carry, and the outputs of all steps, stacked along a new first dimension.

    Raises:
      TypeError: `f` cannot be called, does not return a pair, or changes the dtype of the carry; `init` or `xs` holds
        something else than Tensors; `checkpoint` is of another type.
      ValueError: The number of steps is not known, or differs between `xs` and `length`; there is no such `checkpoint`;
        `f` changes the structure or a shape of the carry.
      NotImplementedError: `f` has a stateful op that can neither be kept nor computed again, such as one of
        `tf.py_function`.
      tf.errors.InvalidArgumentError: The numbers of steps differ, and are known at run time only.

    Source: Chen et al., "Training deep nets with sublinear memory cost" (2016), arXiv:1604.06174; nested segments:
    Griewank and Walther, "Evaluating derivatives" (2008), chapter 12.
    """
    if not callable(f):
        raise TypeError(
            f"{_API}: f cannot be called; expected a function f(carry, x) that returns (carry, y), got "
            f"{text.describe_type(f)}. Pass the function first."
        )
    check_checkpoint(_API, checkpoint)
    reverse = convert.to_bool(_API, "reverse", reverse)
    if length is not None and not tf.convert_to_tensor(length).dtype.is_integer:
        raise TypeError(f"{_API}: length must be an int or an integer Tensor, got {text.describe(length)}.")
    given = init
    init = checkpointed_loop.to_tensors(_API, "init", init, "Return what else a step computes as its output y.")
    xs = checkpointed_loop.to_tensors(_API, "xs", xs, "Stack what the steps get.")
    num_steps = _number_of_steps(xs, None if length is None else checkpointed_loop.static_int(length))
    key = "scan", reverse, checkpoint, num_steps, init, xs
    f = checkpointed_loop.translated(f)
    with checkpointed_loop.explain_int_carry(_API, "init", given):
        loop = traces.find_or_make(_API, f, key, lambda: _Scan(f, init, xs, reverse, checkpoint))
    return loop(init, xs, num_steps)


class _Scan:
    """A loop for arguments of one signature."""

    def __init__(self, f: Callable[..., Any], init: Any, xs: Any, reverse: bool, checkpoint: Checkpoint) -> None:
        name = text.name_of(f)
        carry = Carry(_API, "init", init, name)
        self._structure_of_y: Any = None

        def step(*tensors: tf.Tensor) -> list[tf.Tensor]:
            value = f(carry.pack(tensors[: len(carry.leaves)]), _replace(xs, tensors[len(carry.leaves) :]))
            if not isinstance(value, tuple) or len(value) != 2:
                raise TypeError(
                    f"{_API}: '{name}' did not return its carry with an output; expected a pair (carry, y), got "
                    f"{text.describe_type(value)}. End it with: return carry, y (None for no output; tf.scan's "
                    "function returns the carry alone)"
                )
            new_carry, y = value
            y = checkpointed_loop.to_tensors(_API, f"the output y of '{name}'", y, "Return Tensors.")
            ys = _dense_leaves(f"the output y of '{name}'", y)
            # Without its Tensors, which belong to the trace.
            self._structure_of_y = tf.nest.map_structure(lambda leaf: None if leaf is None else 0, y)
            return [*carry.leaves_of(new_carry), *ys]

        self._loop = Loop(_API, f, step, carry.leaves, _leaves(xs), checkpoint, reverse=reverse)

    def __call__(self, init: Any, xs: Any, num_steps: int | tf.Tensor) -> tuple[Any, Any]:
        leaves = tf.nest.flatten(init, expand_composites=True)
        last, ys = self._loop(leaves, _leaves(xs), num_steps)
        return tf.nest.pack_sequence_as(init, last, expand_composites=True), _replace(self._structure_of_y, ys)


def _leaves(structure: Any) -> list[Any]:
    return [leaf for leaf in tf.nest.flatten(structure) if leaf is not None]


def _replace(structure: Any, tensors: Sequence[tf.Tensor]) -> Any:
    """The structure with these Tensors as its leaves, and None where it has None."""
    remaining = iter(tensors)
    leaves = [None if leaf is None else next(remaining) for leaf in tf.nest.flatten(structure)]
    return tf.nest.pack_sequence_as(structure, leaves)


def _dense_leaves(name: str, structure: Any) -> list[tf.Tensor]:
    leaves = _leaves(structure)
    for leaf in leaves:
        if not isinstance(leaf, tf.Tensor):
            raise TypeError(
                f"{_API}: {name} cannot be stacked or cut into slices; expected Tensors, got "
                f"{text.describe_type(leaf)}. Convert it with its to_tensor() or tf.sparse.to_dense."
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
                f"{_API}: {name} has no slices; expected a Tensor with a dimension for the steps, got a scalar. If it "
                "is the initial carry, the order is that of JAX: scan(f, init, xs). Otherwise stack what the steps "
                "get, or let the function close over a value that is the same in each."
            )
        known_size = leaf.shape[0] if leaf.shape.rank else None
        sizes[name] = tf.shape(leaf)[0] if known_size is None else known_size
    if length is not None:
        sizes["length"] = length
    if not sizes:
        raise ValueError(
            f"{_API}: nothing tells the number of steps; expected xs or length, got neither. Pass length=."
        )
    known = {name: size for name, size in sizes.items() if isinstance(size, int)}
    if len(set(known.values())) > 1 or any(size < 0 for size in known.values()):
        got = ", ".join(f"{name}: {size}" for name, size in known.items())
        raise ValueError(
            f"{_API}: the number of steps is not clear; expected one number for all, got {got}. Cut them to the same "
            "length."
        )
    number = next(iter((known or sizes).values()))
    checks = [
        tf.debugging.assert_equal(
            size,
            number,
            f"{_API}: the number of steps is not clear; expected one number for all, got another for {name}. Cut them "
            "to the same length.",
        )
        for name, size in sizes.items()
        if name not in known and size is not number
    ]
    if known:
        return number
    with tf.control_dependencies([check for check in checks if check is not None]):
        return tf.identity(number)
