"""Inference of a `tf.function` whose gradient is expensive to compute: only the value should run.

The baseline is the function without a gradient.
"""

import functools
from collections.abc import Callable, Mapping

import tensorflow as tf
import tensorflow_probability as tfp

import tf_cg_ops as cg

from .. import program
from ..harness.measurement import Case, Settings
from ..harness.names import DECORATOR, EMBED, FORMULA, PLAIN, TF, TFP
from ..harness.samplers import Sampler, Timed
from ..harness.tensors import tensors

SUBJECT = "inference"


def _gx(x: tf.Tensor) -> tf.Tensor:
    for _ in range(10):
        x = tf.sin(x)
    return x


def _decorated(decorate: Callable) -> Callable[[tf.Tensor], tf.Tensor]:
    return decorate(lambda x: (tf.exp(x), lambda dy: dy * _gx(x)))


_FUNCTIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    EMBED: lambda x: cg.embed_gradient(tf.exp(x), _gx(x), x),
    DECORATOR: _decorated(cg.custom_gradient),
    TF: _decorated(tf.custom_gradient),
    FORMULA: lambda x: tf.exp(x) + _gx(x) * (x - tf.stop_gradient(x)),
    TFP: lambda x: tfp.math.custom_gradient(tf.exp(x), _gx(x), x),
    PLAIN: lambda x: tf.exp(x),
}


def _build(size: int) -> Mapping[str, Sampler | str]:
    (x,) = tensors([size])
    return {name: Timed(functools.partial(tf.function(function), x)) for name, function in _FUNCTIONS.items()}


def cases(settings: Settings) -> list[Case]:
    """One element and many."""
    sizes = settings.pick([1, 10_000_000], [1, 1000])
    return [
        Case(SUBJECT, f"tf.function, {size:,}", functools.partial(_build, size), (EMBED, DECORATOR), elements=size)
        for size in sizes
    ]


if __name__ == "__main__":
    program.run(cases)
