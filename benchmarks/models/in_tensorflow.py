"""One training step with each implementation of the custom gradient, in each mode."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tf_cg_ops as cg

from ..harness.names import DECORATOR, EMBED, MASKED, TF, TFP, UNMASKED
from .networks import Network, Unit, arrays

MODES = ("eager", "tf.function", "XLA")


def _decorated(decorate: Callable[..., Any], unit: Unit) -> Callable[[Any], Any]:
    # tf.custom_gradient requires a new tensor as the value.
    return decorate(lambda x: (tf.identity(unit.value(x)), lambda dy: unit.vjp(x, dy)))


def _of_values(embed: Callable[..., Any], unit: Unit) -> Callable[[Any], Any]:
    factor = unit.factor
    assert factor is not None
    return lambda x: embed(unit.value(x), factor(x) * tf.ones_like(x), x)


def units(unit: Unit) -> dict[str, Callable[[Any], Any]]:
    """The unit by each implementation. Those that take values can only multiply by a factor."""
    found = {DECORATOR: _decorated(cg.custom_gradient, unit), TF: _decorated(tf.custom_gradient, unit)}
    if unit.factor is None:
        return found
    return {EMBED: _of_values(cg.embed_gradient, unit), **found, TFP: _of_values(tfp.math.custom_gradient, unit)}


def steps(network: Network, mode: str, dtype: type = np.float32) -> dict[str, Callable[[], Any]]:
    """For each implementation, a function that returns the loss and the gradients of the weights."""
    variables, x, y = _tensors(network, dtype)

    def loss(unit: Callable[[Any], Any]) -> Callable[[], Any]:
        return lambda: network.loss(unit, variables, x, y)

    return {name: _step(loss(unit), variables, mode) for name, unit in units(network.unit).items()}


def masked_steps(network: Network, mode: str, dtype: type = np.float32) -> dict[str, Callable[[], Any]]:
    """The same without a custom gradient, as it is and with masked gradients."""
    variables, x, y = _tensors(network, dtype)

    def loss() -> Any:
        return network.loss(tf.identity, variables, x, y)

    masked = cg.override_gradients(loss, {cg.rules.elementwise: cg.rules.masked})
    return {MASKED: _step(masked, variables, mode), UNMASKED: _step(loss, variables, mode)}


def _tensors(network: Network, dtype: type) -> tuple[list[tf.Variable], tf.Tensor, tf.Tensor]:
    weights, inputs, labels = arrays(network, dtype)
    return [tf.Variable(weight) for weight in weights], tf.constant(inputs), tf.constant(labels)


def _step(loss: Callable[[], Any], variables: list[tf.Variable], mode: str) -> Callable[[], Any]:
    def gradients() -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            value = loss()
        return value, tape.gradient(value, variables)

    return gradients if mode == "eager" else tf.function(gradients, jit_compile=mode == "XLA", autograph=False)
