"""Puts gradient functions on the tapes: GradientTapes call them, and ForwardAccumulators their transpose."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from . import _structure, _tf_internal

# From one upstream gradient for each output to one gradient, or None, for each input.
Backward = Callable[..., Sequence[Any]]


def record(name: str, outputs: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor], backward: Backward) -> None:
    """Records that `backward` has the gradients of the inputs for upstream gradients of the outputs.

    TensorFlow would find a tangent by itself, but not where `backward` uses a tape or returns slices.
    """
    # In eager mode no output is kept for its shape.
    likes = [(o.shape, o.dtype) if isinstance(o, _tf_internal.EagerTensor) else o for o in outputs]

    def forward(*tangents: Any) -> list[Any]:
        # Without that, accumulators and the tapes inside of them ignore what is computed for a tangent.
        with _tf_internal.push_forwardprop_state():
            if not tf.executing_eagerly():
                return _transpose(backward, likes, tangents)
            # Traced, so that nothing in between is on a tape: the tape around an accumulator would lose it with that.
            traced = tf.function(lambda *tangents: _transpose(backward, likes, tangents), autograph=False)
            concrete = traced.get_concrete_function(*tangents)
        return concrete(*tangents)

    _tf_internal.record_operation(name, list(outputs), list(inputs), backward, forward)


def _transpose(backward: Backward, likes: list[Any], tangents: Sequence[Any]) -> list[Any]:
    """The tangents of the outputs, `J t`: the derivative of `t . backward(dy)` by `dy`, at any `dy`."""
    dys = [tf.zeros(*like) if isinstance(like, tuple) else tf.zeros_like(like) for like in likes]
    watched = [dy for dy in dys if _tf_internal.is_trainable(dy)]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        gradients = [_structure.to_dense(gradient) for gradient in backward(*dys)]
    pairs = [(g, t) for g, t in zip(gradients, tangents, strict=True) if g is not None and t is not None]
    of_watched = iter(
        tape.gradient([g for g, _ in pairs], watched, [t for _, t in pairs], unconnected_gradients="zero")
    )
    return [next(of_watched) if _tf_internal.is_trainable(dy) else None for dy in dys]
