"""Four networks with a custom gradient each, written once for all implementations.

- Spiking: leaky neurons that see an image row by row, with the surrogate gradient of Zenke and Ganguli, SuperSpike
  (Neural Computation 30, 2018).
- Binarized: a convolutional net with weights and activations of -1 and 1, and the straight-through estimator of
  Hubara et al., Binarized Neural Networks (2016).
- Transformer: blocks of attention whose gradients are clipped to a norm.
- Adversarial: features from which a second head should not be able to tell the domain, with the gradient reversal of
  Ganin and Lempitsky, Unsupervised Domain Adaptation by Backpropagation (2015).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def _mean(x: Any) -> Any:
    return tf.reduce_mean(x, axis=-1, keepdims=True)


def _convolution(x: Any, kernel: Any) -> Any:
    return tf.nn.conv2d(x, kernel, 1, "SAME")


def _pool(x: Any) -> Any:
    return tf.nn.max_pool2d(x, 2, 2, "VALID")


@dataclasses.dataclass(frozen=True)
class Unit:
    """A function with a custom gradient."""

    value: Callable[[Any], Any]
    # The gradient with respect to x, from x and the upstream gradient.
    vjp: Callable[[Any, Any], Any]
    # The factor, if the gradient is `dy * factor`.
    factor: Callable[[Any], Any] | None = None


def _with_factor(value: Callable[[Any], Any], factor: Callable[[Any], Any]) -> Unit:
    return Unit(value, lambda x, dy: dy * factor(x), factor)


def _clip_to_norm(x: Any, dy: Any) -> Any:
    return dy * tf.minimum(1e-3 / tf.sqrt(tf.reduce_sum(dy * dy) + 1e-30), 1.0)


SPIKE = _with_factor(lambda v: tf.cast(v > 0, v.dtype), lambda v: 1 / (1 + 10 * abs(v)) ** 2)
BINARY = _with_factor(lambda x: tf.sign(x), lambda x: tf.cast(abs(x) <= 1, x.dtype))
CLIP = Unit(lambda x: x, _clip_to_norm)
REVERSAL = _with_factor(lambda x: x, lambda x: -0.3)

# loss(unit, weights, inputs, labels)
Loss = Callable[[Callable[[Any], Any], Sequence[Any], Any, Any], Any]


@dataclasses.dataclass(frozen=True)
class Network:
    """A network with its unit and the shapes of its arrays."""

    unit: Unit
    loss: Loss
    inputs: Sequence[int]
    has_domains: bool  # Besides its class, each input belongs to one of two domains.
    weights: Sequence[Sequence[int]]


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return -tf.reduce_sum(labels * tf.nn.log_softmax(logits)) / labels.shape[0]


def _spiking(spike: Callable[[Any], Any], weights: Sequence[Any], x: Any, labels: Any) -> Any:
    into, recurrent, out = weights
    potential = x[:, 0] @ into
    spikes = spike(potential - 1)
    logits = spikes @ out
    for step in range(1, x.shape[1]):
        potential = 0.9 * potential + x[:, step] @ into + spikes @ recurrent - spikes
        spikes = spike(potential - 1)
        logits = logits + spikes @ out
    return _cross_entropy(logits, labels)


def _binarized(binary: Callable[[Any], Any], weights: Sequence[Any], x: Any, labels: Any) -> Any:
    first, second, third, out = weights
    x = _pool(_convolution(x, binary(first)) / 3)
    x = _pool(_convolution(binary(x), binary(second)) / 12)
    x = _convolution(binary(x), binary(third)) / 16
    return _cross_entropy(tf.reduce_mean(tf.nn.relu(x), axis=[1, 2]) @ out, labels)


def _normalized(x: Any) -> Any:
    centred = x - _mean(x)
    return centred / tf.sqrt(_mean(centred * centred) + 1e-6)


def block(
    heads: int,
    length: int,
    weights: Sequence[Any],
    x: Any,
    activation: Callable[[Any], Any],
    mark: Callable[[Any, str], Any] = lambda x, name: x,
    unit: Callable[[Any], Any] = lambda x: x,
) -> Any:
    """A transformer block of rows `[batch * length, width]`; `mark` names two values."""
    into, back, up, down = weights
    rows, width = x.shape
    projected = tf.reshape(_normalized(x) @ into, [rows // length, length, 3, heads, width // heads])
    projected = tf.transpose(projected, [2, 0, 3, 1, 4])
    q, k, v = projected[0], projected[1], projected[2]
    scores = tf.nn.softmax(q @ tf.transpose(k, [0, 1, 3, 2]) / math.sqrt(width // heads))
    attention = tf.reshape(tf.transpose(scores @ v, [0, 2, 1, 3]), [rows, width])
    x = x + unit(mark(attention, "attention") @ back)
    return x + unit(activation(mark(_normalized(x) @ up, "hidden")) @ down)


def block_shapes(width: int) -> list[list[int]]:
    """The weights of a block."""
    return [[width, 3 * width], [width, width], [width, 4 * width], [4 * width, width]]


def _transformer(heads: int, clip: Callable[[Any], Any], weights: Sequence[Any], x: Any, labels: Any) -> Any:
    batch, length, width = x.shape
    *of_blocks, out = weights
    x = tf.reshape(x, [batch * length, width])
    for first in range(0, len(of_blocks), 4):
        x = block(heads, length, of_blocks[first : first + 4], x, tf.nn.relu, unit=clip)
    return _cross_entropy(tf.reshape(x, [batch, length * width]) @ out, labels)


def _adversarial(reverse: Callable[[Any], Any], weights: Sequence[Any], x: Any, labels: Any) -> Any:
    first, second, out, hidden, out_of_domain = weights
    features = tf.nn.relu(tf.nn.relu(x @ first) @ second)
    domain = tf.nn.relu(reverse(features) @ hidden) @ out_of_domain
    return _cross_entropy(features @ out, labels[:, :10]) + _cross_entropy(domain, labels[:, 10:])


def networks(quick: bool) -> dict[str, Network]:
    """The networks by their names; small ones if `quick`."""
    batch, size, hidden = (2, 4, 5) if quick else (64, 28, 128)
    spiking = Network(SPIKE, _spiking, [batch, size, size], False, [[size, hidden], [hidden, hidden], [hidden, 10]])
    batch, size, depths = (2, 8, (2, 3, 4)) if quick else (16, 28, (16, 32, 64))
    kernels = [[3, 3, before, after] for before, after in zip((1, *depths), depths, strict=False)]
    binarized = Network(BINARY, _binarized, [batch, size, size, 1], False, [*kernels, [depths[-1], 10]])
    blocks, batch, length, width, heads = (1, 2, 3, 4, 2) if quick else (4, 4, 64, 128, 4)
    of_transformer = [*(block_shapes(width) * blocks), [length * width, 10]]
    transformer = Network(CLIP, functools.partial(_transformer, heads), [batch, length, width], False, of_transformer)
    batch, width, features = (4, 6, 5) if quick else (256, 784, 256)
    of_adversarial = [
        [width, 2 * features],
        [2 * features, features],
        [features, 10],
        [features, features],
        [features, 2],
    ]
    adversarial = Network(REVERSAL, _adversarial, [batch, width], True, of_adversarial)
    return {
        "spiking network": spiking,
        "binarized network": binarized,
        "transformer with clipped gradients": transformer,
        "domain-adversarial network": adversarial,
    }


def arrays(network: Network, dtype: type = np.float32) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Weights, inputs, and labels: one of ten classes for each row, and one of two domains if the network has them."""
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=shape) * math.sqrt(2 / math.prod(shape[:-1])) for shape in network.weights]
    inputs = rng.normal(size=network.inputs)
    labels = np.eye(10)[rng.integers(10, size=network.inputs[0])]
    if network.has_domains:
        domains = np.eye(2)[np.arange(network.inputs[0]) % 2]
        labels = np.concatenate([labels, domains], axis=1)
    return [weight.astype(dtype) for weight in weights], inputs.astype(dtype), labels.astype(dtype)
