"""A long loop as loops in loops, each of which but the outermost is recomputed for the gradient.

Only the carries at the beginnings of segments are kept. With two loops of sqrt(N) steps these are sqrt(N) carries, and
the gradient keeps what sqrt(N) steps compute (Chen et al., 2016, arXiv:1604.06174); with a loop for each factor of N,
a number of carries for each loop.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import text

# Of "log": each loop makes so many steps. A smaller number would keep less, and compute more often.
_STEPS_OF_EACH_LOOP = 8
# Of "log", for a length that only the run of the graph tells.
_NUM_LOOPS = 4

Checkpoint = str | int | None
Values = list[tf.Tensor]
# From the carry and the inputs of this step to the carry and the outputs.
Step = Callable[[Values, Values], tuple[Values, Values]]


def check_checkpoint(api: str, checkpoint: Any) -> None:
    """ValueError or TypeError unless the argument says how to cut the loop into segments."""
    if checkpoint is None or checkpoint in ("sqrt", "log"):
        return
    if isinstance(checkpoint, bool) or not isinstance(checkpoint, int):
        raise TypeError(
            f"{api}: checkpoint does not say how to cut the loop into segments; expected 'sqrt', 'log', the number of "
            f"steps in a segment or None, got {text.describe(checkpoint)}. Pass checkpoint='sqrt'."
        )
    if checkpoint < 1:
        raise ValueError(
            f"{api}: a segment has no steps; expected a positive number as checkpoint, got {checkpoint}. Pass "
            "checkpoint='sqrt', or None to keep everything."
        )


def factors_of(num_steps: int | tf.Tensor, checkpoint: Checkpoint) -> list[int | tf.Tensor]:
    """How many steps each loop makes, the innermost first: together `num_steps`, or a few more."""
    if checkpoint is None:
        return [num_steps]
    static = isinstance(num_steps, int)
    if checkpoint == "log":
        if static:
            num_loops = max(1, math.ceil(round(math.log(max(num_steps, 1), _STEPS_OF_EACH_LOOP), 9)))
            inner: list[Any] = [_STEPS_OF_EACH_LOOP] * (num_loops - 1)
        else:
            inner = [_root(num_steps, _NUM_LOOPS)] * (_NUM_LOOPS - 1)
    elif checkpoint == "sqrt":
        inner = [math.isqrt(max(num_steps - 1, 0)) + 1 if static else _root(num_steps, 2)]
    else:
        inner = [checkpoint]
    length = math.prod(inner)
    return [*inner, -(-num_steps // length)]


def _root(number: tf.Tensor, order: int) -> tf.Tensor:
    """A positive whole number, of which this power is at least the given number."""
    root = tf.math.ceil(tf.cast(tf.maximum(number, 1), tf.float64) ** (1 / order) - 1e-9)
    return tf.maximum(tf.cast(root, number.dtype), 1)


class Segments:
    """Runs steps in nested loops.

    Args:
      step: Computes a step. Only TensorFlow ops, of which the stateful ones can be computed again.
      num_steps: The number of steps.
      factors: How many steps each loop makes, the innermost first.
      recompute: Decorates a function so that its gradient recomputes it.
      output_specs: Those of what each step returns beside the carry.
      keeps_going: Whether there is a next step, from the carry; None for always.
      reverse: Whether the steps take the inputs from the last to the first.
    """

    def __init__(
        self,
        step: Step,
        num_steps: int | tf.Tensor,
        factors: Sequence[int | tf.Tensor],
        recompute: Callable[[Callable[..., Any]], Callable[..., Any]],
        output_specs: Sequence[tf.TensorSpec] = (),
        keeps_going: Callable[[Values], tf.Tensor] | None = None,
        reverse: bool = False,
    ) -> None:
        self._step = step
        self._num_steps = num_steps
        self._factors = list(factors)
        self._recompute = recompute
        self._output_specs = list(output_specs)
        self._keeps_going = keeps_going
        self._reverse = reverse
        self._capacity = _product(self._factors)
        exact = isinstance(num_steps, int) and isinstance(self._capacity, int) and num_steps == self._capacity
        self._may_end_early = not exact or keeps_going is not None

    def run(self, carry: Values, inputs: Values) -> tuple[Values, Values]:
        """The carry after the last step, and the stacked outputs; inputs are stacked along their first dimension."""
        folded = [self._fold(stacked) for stacked in inputs]
        _, carry, outputs = self._loop(len(self._factors) - 1, tf.constant(0), carry, folded)
        return carry, [self._unfold(stacked, spec) for stacked, spec in zip(outputs, self._output_specs, strict=True)]

    def _fold(self, stacked: tf.Tensor) -> tf.Tensor:
        """One leading dimension for each loop, the outermost first, with zeros in the places without a step."""
        each = stacked.shape[1:]
        missing = self._capacity - self._num_steps
        if not isinstance(missing, int) or missing:
            zeros = tf.zeros(_concat([missing], _shape_of(stacked)[1:]), stacked.dtype)
            stacked = tf.concat([zeros, stacked] if self._reverse else [stacked, zeros], 0)
        folded = tf.reshape(stacked, _concat(self._factors[::-1], _shape_of(stacked)[1:]))
        folded.set_shape(self._static(self._factors).concatenate(each))
        return folded

    def _unfold(self, folded: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        stacked = tf.reshape(folded, _concat([self._capacity], _shape_of(folded)[len(self._factors) :]))
        if self._may_end_early:
            missing = self._capacity - self._num_steps
            stacked = stacked[missing:] if self._reverse else stacked[: self._num_steps]
        stacked.set_shape(self._static([self._num_steps]).concatenate(spec.shape))
        return stacked

    @staticmethod
    def _static(sizes: Sequence[int | tf.Tensor]) -> tf.TensorShape:
        """The shape of these sizes, the last one first."""
        return tf.TensorShape([size if isinstance(size, int) else None for size in sizes[::-1]])

    def _loop(self, level: int, first: tf.Tensor, carry: Values, inputs: Values) -> tuple[tf.Tensor, Values, Values]:
        """The number of the next step, the carry, and the outputs of the segment, with a dimension for each loop."""
        length = self._factors[level]
        arrays = [
            tf.TensorArray(stacked.dtype, length, element_shape=stacked.shape[1:]).unstack(stacked)
            for stacked in inputs
        ]
        inner = self._static(self._factors[:level])
        results = [
            tf.TensorArray(spec.dtype, length, element_shape=inner.concatenate(spec.shape))
            for spec in self._output_specs
        ]

        def goes_on(turn: tf.Tensor, number: tf.Tensor, carry: Values, results: list[Any]) -> Any:
            more = number < self._num_steps
            return more if self._keeps_going is None else tf.logical_and(more, self._keeps_going(carry))

        def body(turn: tf.Tensor, number: tf.Tensor, carry: Values, results: list[Any]) -> Any:
            place = length - 1 - turn if self._reverse else turn
            inputs = [array.read(place) for array in arrays]
            if level:
                number, carry, outputs = self._segment(level - 1)(number, carry, inputs)
            else:
                carry, outputs = self._step(carry, inputs)
                number += 1
            results = [array.write(place, output) for array, output in zip(results, outputs, strict=True)]
            return turn + 1, number, carry, results

        _, number, carry, results = tf.while_loop(
            goes_on if self._may_end_early else lambda turn, *others: turn < length,
            body,
            (tf.constant(0), first, carry, results),
            maximum_iterations=length,
        )
        return number, carry, [array.stack() for array in results]

    def _segment(self, level: int) -> Callable[..., Any]:
        def segment(first: tf.Tensor, carry: Values, inputs: Values) -> tuple[tf.Tensor, Values, Values]:
            return self._loop(level, first, carry, inputs)

        return self._recompute(segment)


def _product(factors: Sequence[int | tf.Tensor]) -> int | tf.Tensor:
    product: Any = 1
    for factor in factors:
        product *= factor
    return product


def _shape_of(tensor: tf.Tensor) -> Any:
    """Numbers, if all are known: XLA needs them."""
    return tensor.shape.as_list() if tensor.shape.is_fully_defined() else tf.shape(tensor)


def _concat(*shapes: Any) -> Any:
    parts = [shape for shape in shapes if tf.is_tensor(shape) or shape]
    if any(tf.is_tensor(size) for part in parts for size in ([part] if tf.is_tensor(part) else part)):
        return tf.concat(parts, 0)
    return [size for part in parts for size in part]
