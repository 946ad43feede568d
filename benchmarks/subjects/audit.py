"""The audit of a deep model, and its search for the op that makes a nan."""

import functools
import time
from collections.abc import Callable

import tensorflow as tf

import tf_cg_ops as cg

from ..harness.measurement import Case, Samplers, Settings
from ..harness.names import FINITE, WITH_NAN
from ..harness.samplers import Number


@cg.custom_gradient
def _swish(x: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    s = tf.sigmoid(x)
    return x * s, lambda dy: dy * s * (1 + x * (1 - s))


def _seconds(layers: int, width: int, *, custom: bool, nan: bool) -> float:
    """The time of one audit, with tracing."""
    weights = [tf.Variable(tf.random.stateless_normal([width, width], [i, 1]) / width**0.5) for i in range(layers)]
    activation = _swish if custom else lambda x: x * tf.sigmoid(x)

    def loss(x: tf.Tensor) -> tf.Tensor:
        for w in weights:
            x = x + 0.01 * activation(x @ w)
        return tf.reduce_mean(tf.where(x > 0, tf.math.log(tf.nn.relu(x) + (0.0 if nan else 1.0)), 0.0))

    start = time.perf_counter()
    report = cg.testing.audit(loss, [tf.random.stateless_normal([32, width], [1, 1])])
    seconds = time.perf_counter() - start
    if (report.first_nonfinite is not None) != nan or report.wrong:
        raise AssertionError(str(report))
    return seconds


def cases(settings: Settings) -> list[Case]:
    """The cases."""
    layers = settings.pick(1000, 4)

    def build(layers: int, custom: bool) -> Samplers:
        runs = {FINITE: False, WITH_NAN: True} if not custom else {FINITE: False}
        measured = functools.partial(_seconds, layers, 158, custom=custom)
        return {name: Number(functools.partial(measured, nan=nan)) for name, nan in runs.items()}

    size = f"{layers:,} layers, {layers * 158**2 / 1e6:.0f} million weights"
    fewer = layers // 4
    return [
        Case("audit", f"{size}, a custom gradient in each", lambda: build(layers, True), (), rounds=1),
        Case("audit", f"{fewer:,} layers, built-in ops", lambda: build(fewer, False), (WITH_NAN,), rounds=1),
    ]
