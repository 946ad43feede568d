"""Random ops as functions of a seed, so that the backward pass can draw the same numbers again."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


def _shape_before(inputs: list[tf.Tensor]) -> tf.Tensor:
    """The shape of the output: the draws for each parameter, then the parameters."""
    return tf.concat([inputs[0], tf.shape(inputs[1], inputs[0].dtype)], 0)


def _of_shape(stateless_op: Callable[..., tf.Tensor]) -> Callable[[Any, list[tf.Tensor], tf.Tensor], tf.Tensor]:
    return lambda op, inputs, seed: stateless_op(shape=inputs[0], seed=seed, dtype=op.get_attr("dtype"))


# For each stateful op: its value as a function of its inputs and a seed.
STATELESS: dict[str, Callable[[Any, list[tf.Tensor], tf.Tensor], tf.Tensor]] = {
    "RandomUniform": _of_shape(tf.raw_ops.StatelessRandomUniform),
    "RandomUniformInt": lambda op, inputs, seed: tf.raw_ops.StatelessRandomUniformInt(
        shape=inputs[0], seed=seed, minval=inputs[1], maxval=inputs[2]
    ),
    "RandomStandardNormal": _of_shape(tf.raw_ops.StatelessRandomNormal),
    "TruncatedNormal": _of_shape(tf.raw_ops.StatelessTruncatedNormal),
    "RandomGamma": lambda op, inputs, seed: tf.raw_ops.StatelessRandomGammaV2(
        shape=_shape_before(inputs), seed=seed, alpha=inputs[1]
    ),
    "RandomPoissonV2": lambda op, inputs, seed: tf.raw_ops.StatelessRandomPoisson(
        shape=_shape_before(inputs), seed=seed, lam=inputs[1], dtype=op.get_attr("dtype")
    ),
    "Multinomial": lambda op, inputs, seed: tf.raw_ops.StatelessMultinomial(
        logits=inputs[0], num_samples=inputs[1], seed=seed, output_dtype=op.get_attr("output_dtype")
    ),
}


@dataclasses.dataclass
class _Stream:
    """The seeds inside a loop or branch: one for each op and iteration, from one seed drawn outside."""

    seed: tf.Tensor
    iteration: tf.Tensor | None = None
    num_draws: int = 0


class Seeds:
    """Draws a seed for each random op of the computation that is copied.

    Outside of loops and branches, a stateful op draws it with the seeds that the user gave the random op. Inside, it is
    computed from a seed drawn before the loop or branch, which can then run again.
    """

    def __init__(self) -> None:
        self._streams: list[_Stream] = []

    def draw(self, op: Any = None) -> tf.Tensor:
        """The seed for the op that is copied now, or for a loop or branch without an op."""
        if not self._streams:
            return tf.raw_ops.RandomUniformInt(
                shape=[2],
                minval=tf.constant(0, tf.int32),
                maxval=tf.constant(tf.int32.max, tf.int32),
                seed=op.get_attr("seed") if op is not None else 0,
                seed2=op.get_attr("seed2") if op is not None else 0,
            )
        stream = self._streams[-1]
        stream.num_draws += 1
        iteration = tf.constant(0, tf.int32) if stream.iteration is None else stream.iteration
        # Sums of seeds alone would repeat in nested loops, so a random op scrambles them.
        return tf.raw_ops.StatelessRandomUniformFullInt(
            shape=[2], seed=stream.seed + tf.stack([iteration, stream.num_draws]), dtype=tf.int32
        )

    @contextlib.contextmanager
    def inside(self, seed: tf.Tensor, iteration: tf.Tensor | None = None) -> Iterator[None]:
        """In this context, for a loop or branch, all seeds are made from this one."""
        self._streams.append(_Stream(seed, iteration))
        try:
            yield
        finally:
            self._streams.pop()
