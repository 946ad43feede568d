"""Calls of Keras layers through `recompute_grad`, with their masks and losses.

Keras attaches a mask to a Tensor, and a layer stores the losses of its calls. A trace has its own Tensors, so masks
become arguments of the traced function, and masks and losses become results.
"""

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import text
from tf_cg_ops._src.keras import keras_internal
from tf_cg_ops._src.memory.recompute_grad import Recomputation


def recompute(
    recomputation: Recomputation, function: Callable[..., Any], owner: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Calls a layer, or a function that calls layers, with a gradient that runs it again.

    `owner` is the layer whose losses to collect: the layer itself, or one around it, or None.
    """
    if keras_internal.is_stateless():  # Updated variables are Tensors there, and could not leave a trace.
        return function(*args, **kwargs)
    outputs, masks, losses = recomputation(*traceable(function, owner, args, kwargs), {})
    _set_masks(outputs, masks)
    if losses:
        lists = keras_internal.losses_in(owner)
        for key, tensors in losses.items():
            lists[key].extend(tensors)
    return outputs


def traceable(
    function: Callable[..., Any], owner: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], Sequence[Any]]:
    """The same call as a function that takes masks, too, and returns masks and losses, and its arguments."""

    def call(masks: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        _set_masks((args, kwargs), masks)
        with _losses_taken_from(owner) as losses:
            outputs = function(*args, **kwargs)
        return outputs, _masks_of(outputs), losses

    layer = function.__self__ if isinstance(function, types.MethodType) else function
    call.__qualname__ = getattr(layer, "name", None) or text.name_of(function)
    return call, (_masks_of((args, kwargs)), args, kwargs)


def _masks_of(structure: Any) -> list[Any]:
    """The mask of each leaf, or None."""
    return [keras_internal.mask_of(leaf) for leaf in tf.nest.flatten(structure)]


def _set_masks(structure: Any, masks: Sequence[Any]) -> None:
    for leaf, mask in zip(tf.nest.flatten(structure), masks, strict=True):
        if mask is not None:
            keras_internal.set_mask(leaf, mask)


@contextlib.contextmanager
def _losses_taken_from(layer: Any) -> Iterator[dict[str, list[tf.Tensor]]]:
    """Takes the losses that the layer and its inner layers add in this context, by the keys of their lists."""
    taken: dict[str, list[tf.Tensor]] = {}
    before = {id(losses): list(losses) for losses in keras_internal.losses_in(layer).values()}
    try:
        yield taken
    finally:
        for key, losses in keras_internal.losses_in(layer).items():
            earlier = before.get(id(losses), [])
            if len(losses) > len(earlier):
                taken[key] = losses[len(earlier) :]
                losses[:] = earlier
