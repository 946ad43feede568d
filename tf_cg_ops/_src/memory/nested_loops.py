"""A long loop as nested loops. The gradient recomputes each of them, except the outermost.

Only the carry at the start of each segment is kept. Two loops of sqrt(N) steps keep sqrt(N) carries, and the gradient
holds what sqrt(N) steps compute (Chen et al., 2016, arXiv:1604.06174). More loops keep a few carries each.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import text

# The number of steps of each loop for checkpoint="log". A smaller number keeps less and computes more often.
_STEPS_OF_EACH_LOOP = 8
# The number of nested loops for checkpoint="log" if the length is only known at run time.
_NUM_LOOPS = 4

Checkpoint = str | int | None
Values = list[tf.Tensor]
# Takes the carry, the inputs of one step and the values for all steps; returns the new carry and the outputs.
Step = Callable[[Values, Values, Values], tuple[Values, Values]]


def check_checkpoint(api: str, checkpoint: Any) -> None:
    """Raises ValueError or TypeError for a wrong `checkpoint`."""
    if checkpoint is None or (isinstance(checkpoint, str) and checkpoint in ("sqrt", "log")):
        return
    message = f"{api}: checkpoint must be 'sqrt', 'log', the number of steps per segment or None, got {{}}."
    if isinstance(checkpoint, bool) or not isinstance(checkpoint, (int, str)):
        raise TypeError(message.format(text.describe(checkpoint)))
    if isinstance(checkpoint, str) or checkpoint < 1:
        raise ValueError(message.format(text.describe(checkpoint)))


def factors_of(num_steps: int | tf.Tensor, checkpoint: Checkpoint) -> list[int | tf.Tensor]:
    """The number of steps of each loop, the innermost first. Their product is `num_steps` or a little more."""
    if checkpoint is None:
        return [_at_least_one(num_steps)]
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
    return [*inner, _at_least_one(-(-num_steps // length))]


def _at_least_one(number: int | tf.Tensor) -> int | tf.Tensor:
    """At least one, because TensorFlow does not know the shape of the elements of an empty list."""
    return max(number, 1) if isinstance(number, int) else tf.maximum(number, 1)


def _root(number: tf.Tensor, order: int) -> tf.Tensor:
    """The root, rounded up; 1 at least."""
    root = tf.math.ceil(tf.cast(tf.maximum(number, 1), tf.float64) ** (1 / order) - 1e-9)
    return tf.cast(root, number.dtype)


@dataclasses.dataclass(frozen=True)
class NestedLoops:
    """Runs the steps in nested loops."""

    step: Step  # TensorFlow ops only; its stateful ops can run again.
    num_steps: int | tf.Tensor
    factors: Sequence[int | tf.Tensor]  # The number of steps of each loop, the innermost first.
    recompute: Callable[[Callable[..., Any]], Callable[..., Any]]  # Decorates a segment.
    output_specs: Sequence[tf.TensorSpec]  # The outputs of a step.
    keeps_going: Callable[[Values], tf.Tensor] | None  # Tells from the carry if there is a next step. None: there is.
    reverse: bool  # Whether to go from the last input to the first.

    @functools.cached_property
    def _capacity(self) -> Any:
        return math.prod(self.factors)

    @property
    def _is_full(self) -> bool:
        """Whether every place in the loops has a step. If the capacity is an int, so are the factors."""
        return isinstance(self.num_steps, int) and self.num_steps == self._capacity

    def run_steps(self, carry: Values, inputs: Values, values: Values) -> tuple[Values, Values]:
        """The carry after the last step, and the stacked outputs.

        The inputs are stacked along their first dimension. Every step gets all `values`.
        """
        folded = [self._fold(stacked) for stacked in inputs]
        carry, outputs = self._loop(len(self.factors) - 1, tf.constant(0), carry, folded, values)
        return carry, [self._unfold(stacked, spec) for stacked, spec in zip(outputs, self.output_specs, strict=True)]

    def _fold(self, stacked: tf.Tensor) -> tf.Tensor:
        """Splits the first dimension into one for each loop, the outermost first. Places without a step get zeros."""
        each = stacked.shape[1:]
        if not self._is_full:
            missing = self._capacity - self.num_steps
            zeros = tf.zeros(_concat([missing], _shape_of(stacked)[1:]), stacked.dtype)
            stacked = tf.concat([zeros, stacked] if self.reverse else [stacked, zeros], 0)
        folded = tf.reshape(stacked, _concat(self.factors[::-1], _shape_of(stacked)[1:]))
        folded.set_shape(self._static(self.factors).concatenate(each))
        return folded

    def _unfold(self, folded: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        stacked = tf.reshape(folded, _concat([self._capacity], _shape_of(folded)[len(self.factors) :]))
        if not self._is_full:
            missing = self._capacity - self.num_steps
            stacked = stacked[missing:] if self.reverse else stacked[: self.num_steps]
        stacked.set_shape(self._static([self.num_steps]).concatenate(spec.shape))
        return stacked

    @staticmethod
    def _static(sizes: Sequence[int | tf.Tensor]) -> tf.TensorShape:
        """The sizes in reverse order, as a shape."""
        return tf.TensorShape([size if isinstance(size, int) else None for size in sizes[::-1]])

    def _loop(
        self, level: int, first: tf.Tensor, carry: Values, inputs: Values, values: Values
    ) -> tuple[Values, Values]:
        """The carry after the steps from `first` on, and their outputs, with a dimension for each loop."""
        length = self.factors[level]
        steps_of_each = math.prod(self.factors[:level])
        arrays = [
            tf.TensorArray(stacked.dtype, length, element_shape=stacked.shape[1:]).unstack(stacked)
            for stacked in inputs
        ]
        inner = self._static(self.factors[:level])
        results = [
            tf.TensorArray(spec.dtype, length, element_shape=inner.concatenate(spec.shape))
            for spec in self.output_specs
        ]

        def goes_on(turn: tf.Tensor, carry: Values, results: list[Any]) -> Any:
            # Depends on the turn only, so that all examples of tf.vectorized_map agree.
            more = turn < length
            if not self._is_full:
                more = tf.logical_and(more, first + turn * steps_of_each < self.num_steps)
            return more if self.keeps_going is None else tf.logical_and(more, self.keeps_going(carry))

        def body(turn: tf.Tensor, carry: Values, results: list[Any]) -> Any:
            place = length - 1 - turn if self.reverse else turn
            inputs = [array.read(place) for array in arrays]
            if level:
                carry, outputs = self._segment(level - 1)(first + turn * steps_of_each, carry, inputs, values)
            else:
                carry, outputs = self.step(carry, inputs, values)
            results = [array.write(place, output) for array, output in zip(results, outputs, strict=True)]
            return turn + 1, carry, results

        _, carry, results = tf.while_loop(
            goes_on,
            body,
            (tf.constant(0), carry, results),
            # With TensorFlow's ten, the gradient of "log" took twice the memory for 4,096 steps of 1 MiB.
            parallel_iterations=1 if level else 10,
            maximum_iterations=length,
        )
        return carry, [
            _stacked(array, [*self.factors[:level][::-1], *(spec.shape if spec.shape.rank is not None else [None])])
            for array, spec in zip(results, self.output_specs, strict=True)
        ]

    def _segment(self, level: int) -> Callable[..., Any]:
        # It must not close over Tensors, or its trace would also compute the tangents of a ForwardAccumulator.
        def segment(first: tf.Tensor, carry: Values, inputs: Values, values: Values) -> tuple[Values, Values]:
            return self._loop(level, first, carry, inputs, values)

        return self.recompute(segment)


def _stacked(array: tf.TensorArray, element_shape: list[Any]) -> tf.Tensor:
    """The elements of the array, with zeros for steps that did not run."""
    is_static = all(isinstance(size, int) for size in element_shape)
    if is_static or None in element_shape or array.flow.dtype != tf.variant:
        return array.stack()
    # The sizes are only known at run time. If no step ran, no element could tell them.
    return tf.raw_ops.TensorListStack(
        input_handle=array.flow, element_shape=tf.stack(element_shape), element_dtype=array.dtype
    )


def _shape_of(tensor: tf.Tensor) -> Any:
    """The shape; as ints if all sizes are known, because XLA needs them."""
    return tensor.shape.as_list() if tensor.shape.is_fully_defined() else tf.shape(tensor)


def _concat(*shapes: Any) -> Any:
    parts = [shape for shape in shapes if tf.is_tensor(shape) or shape]
    if any(tf.is_tensor(size) for part in parts for size in ([part] if tf.is_tensor(part) else part)):
        return tf.concat(parts, 0)
    return [size for part in parts for size in part]
