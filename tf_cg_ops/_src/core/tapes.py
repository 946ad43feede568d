"""Puts gradient functions on the tapes of GradientTape and ForwardAccumulator."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import slices, tf_internal
from tf_cg_ops._src.core.tf_internal import EagerTensor, dtype_number_of


def record(
    name: str,
    outputs: Sequence[tf.Tensor],
    inputs: Sequence[tf.Tensor],
    backward: Callable[..., Sequence[Any]],
    tangents: Callable[..., Sequence[Any]] | None = None,
) -> None:
    """Records `backward` as the gradient function of the outputs with respect to the inputs.

    `tangents` is for forward mode: it takes one tangent for each input and returns one, or None, for each output.
    Without it, TensorFlow transposes `backward`.
    """
    gradients = functools.partial(_dense_in_forward_mode, lambda dys: backward(*dys))
    tf_internal.record_operation(name, outputs, inputs, gradients, tangents)


def recorded_copies(
    name: str,
    results: Sequence[tf.Tensor],
    inputs: Sequence[tf.Tensor],
    backward: Callable[[list[Any]], Sequence[Any]],
    tangents: Callable[..., Sequence[Any]] | None = None,
) -> list[tf.Tensor]:
    """Copies EagerTensors and records `backward`, which takes a list, for the copies."""
    # The copies are not recorded, because forward mode would take the tangents of the results.
    copies = [unrecorded_identity(result) for result in results]
    gradients = functools.partial(_dense_in_forward_mode, backward)
    tf_internal.record_operation(name, copies, inputs, gradients, tangents)
    return copies


def _dense_in_forward_mode(backward: Callable[[list[Any]], Sequence[Any]], *dys: Any) -> Sequence[Any]:
    gradients = backward(list(dys))
    for gradient in gradients:
        if type(gradient) is not EagerTensor and isinstance(gradient, tf.IndexedSlices):
            return gradients if new_tapes_record() else [slices.to_dense(gradient) for gradient in gradients]
    return gradients


def new_tapes_record() -> bool:
    """Whether a new tape would record. It would not in a gradient function that forward mode differentiates."""
    source, result = _probes()
    with tf.GradientTape() as tape:
        tape.watch(source)
        tf_internal.record_operation("probe", [result], [source], lambda dy: [dy])
        return tf_internal.should_record_backprop([result])


def tape_records_tangents(tensors: Sequence[tf.Tensor]) -> bool:
    """Whether a GradientTape around a ForwardAccumulator records the tangents of what is computed from the Tensors."""
    if not tf_internal.pack_tangents(tensors).tangents:
        return False
    result, tangent = tf.constant(0.0), tf.constant(0.0)

    def backward(_: tf.Tensor) -> list[None]:
        return [None] * len(tensors)

    def tangents(*_: Any) -> list[tf.Tensor]:
        tf_internal.record_operation("probe", [tangent], tensors, backward)
        return [tangent]

    tf_internal.record_operation("probe", [result], tensors, backward, tangents)
    return tf_internal.should_record_backprop(tf_internal.pack_tangents([result]).tangents)


@functools.cache
def _probes() -> list[tf.Tensor]:
    """Two tensors that other tapes do not watch."""
    with tf.init_scope():
        return [tf.constant(0.0), tf.constant(0.0)]


_HANDLES = (tf.resource.as_datatype_enum, tf.variant.as_datatype_enum)


def unrecorded_identity(tensor: tf.Tensor) -> tf.Tensor:
    """An EagerTensor with the same value and buffer that is not on any tape; TypeError for a Tensor of a graph."""
    if type(tensor) is EagerTensor and dtype_number_of(tensor) not in _HANDLES:
        device = tensor.backing_device
        if _can_share(device) and device == tensor.device:
            return tf_internal.same_buffer(tensor)
    with tf_internal.stop_recording():
        return tf.identity(tensor)  # It keeps the shape and dtype behind a handle.


@functools.cache
def _can_share(device: str) -> bool:
    """Whether a device is a CPU or GPU of this process: other devices can copy differently."""
    spec = tf.DeviceSpec.from_string(device)
    return spec.job == "localhost" and spec.device_type in ("CPU", "GPU")
