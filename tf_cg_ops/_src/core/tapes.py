"""Puts gradient functions on the tapes of GradientTape and ForwardAccumulator."""

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
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
    gradients = functools.partial(_dense_in_forward_mode, backward)
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
    record(name, copies, inputs, lambda *dys: backward(list(dys)), tangents)
    return copies


def _dense_in_forward_mode(backward: Callable[..., Sequence[Any]], *dys: Any) -> Sequence[Any]:
    gradients = backward(*dys)
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


@contextlib.contextmanager
def recording_apart() -> Iterator[Callable[[], bool]]:
    """A scope in which new tapes record, even while an accumulator computes a tangent.

    Yields a function that a function of tangents can call: it tells whether the accumulator was made in this scope.
    """
    if not tf_internal.could_possibly_record():
        yield lambda: True
        return
    source = _new_constant()
    with tf_internal.push_forwardprop_state(), tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(source)

        def is_of_scope() -> bool:  # The tape does not record while an accumulator around it computes.
            result = _new_constant()
            tf_internal.record_operation("probe", [result], [source], lambda dy: [dy])
            return tf_internal.should_record_backprop([result])

        yield is_of_scope


class _Resumed(threading.local):
    """For each scope of `recording_resumed` that this thread is in, a tensor that only its accumulator watches."""

    def __init__(self) -> None:
        self.marks: list[tf.Tensor] = []


_resumed = _Resumed()


@contextlib.contextmanager
def recording_resumed(inputs: Sequence[tf.Tensor]) -> Iterator[bool]:
    """A scope in a function of tangents of the inputs in which new tapes record.

    The accumulator records, too. It does not watch identities made outside of the scope, so compute with those.
    Yields whether the accumulator already is in such a scope, and needs no tangents.
    """
    mark, tangent, turns = _new_constant(), _new_constant(), itertools.count()
    num_outer = _watchers(inputs)
    with tf_internal.push_forwardprop_state():
        _watchers(inputs, mark, lambda: tangent if next(turns) == num_outer else None)
        is_inside = any(_watchers([mark, other]) == 1 for other in _resumed.marks)
        _resumed.marks.append(mark)
        try:
            yield is_inside
        finally:
            _resumed.marks.pop()


def _watchers(tensors: Sequence[tf.Tensor], result: Any = None, tangent: Callable[[], Any] = lambda: None) -> int:
    """How many accumulators watch one of the tensors. Those that compute a tangent do not count.

    From the outermost to the innermost, each gets a tangent for the result.
    """
    tangents, number = [], len(tensors)

    def forward(*_: Any) -> list[Any]:
        tangents.append(tangent())
        return tangents[-1:]

    result = _new_constant() if result is None else result
    tf_internal.record_operation("probe", [result], tensors, lambda _: [None] * number, forward)
    return len(tangents)


def _new_constant() -> tf.Tensor:
    with tf.init_scope():
        return tf.constant(0.0)


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
    return [_new_constant(), _new_constant()]


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
