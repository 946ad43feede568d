"""Gradient functions on the tapes of GradientTape and ForwardAccumulator."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import slices, tf_internal

# Takes an upstream gradient for each output; returns a gradient, or None, for each input.
Backward = Callable[..., Sequence[Any]]


def record(
    name: str,
    outputs: Sequence[tf.Tensor],
    inputs: Sequence[tf.Tensor],
    backward: Backward,
    tangents: Callable[..., Sequence[Any]] | None = None,
) -> None:
    """Records `backward` as the gradient function of the outputs with respect to the inputs.

    `tangents`, from one tangent for each input to one, or None, for each output, serves forward mode. Without it,
    TensorFlow transposes `backward`.
    """

    def dense_in_forward_mode(*dys: Any) -> list[Any]:
        gradients = list(backward(*dys))
        if any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients) and not new_tapes_record():
            gradients = [slices.to_dense(gradient) for gradient in gradients]
        return gradients

    tf_internal.record_operation(name, list(outputs), list(inputs), dense_in_forward_mode, tangents)


def new_tapes_record() -> bool:
    """Whether a new tape records: none does in a gradient function that forward mode differentiates."""
    source, result = _probes()
    with tf.GradientTape() as tape:
        tape.watch(source)
        tf_internal.record_operation("probe", [result], [source], lambda dy: [dy])
        return tf_internal.should_record_backprop([result])


@functools.cache
def _probes() -> list[tf.Tensor]:
    """Two tensors that no other tape watches."""
    with tf.init_scope():
        return [tf.constant(0.0), tf.constant(0.0)]


def unrecorded_identity(tensor: tf.Tensor) -> tf.Tensor:
    """Another EagerTensor with the same value and buffer, which no tape knows; TypeError for a Tensor of a graph."""
    if type(tensor) is not tf_internal.EagerTensor or tensor.dtype is tf.resource or tensor.dtype is tf.variant:
        with tf_internal.stop_recording():
            return tf.identity(tensor)  # This keeps the shape and dtype behind a handle.
    recorded = tf_internal.could_possibly_record()
    return (tf_internal.execute_unrecorded if recorded else tf_internal.execute)("Identity", tensor)
