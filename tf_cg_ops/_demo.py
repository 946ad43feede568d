"""What custom gradients do, in seconds: they train a step function, keep a formula finite, and survive a reload.

`tf-cg-ops demo` runs it. It needs only TensorFlow and NumPy and writes no files. `examples/demo.py`, which is not part
of the package, trains on real data.
"""

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_cg_ops import custom_gradient, straight_through

_UPSTREAM = tf.constant([1.0, 10.0, 100.0])


def run() -> int:
    """Prints the findings, and returns the exit status: 1 if one does not hold."""
    rows: list[tuple[str, ...]] = [("finding", "measured", "wanted", "holds")]
    for subject, measured, relation, bound in _findings():
        holds = measured >= bound if relation == "at least" else measured <= bound  # A nan never holds.
        rows.append((subject, f"{measured:.4g}", f"{relation} {bound:.4g}", "yes" if holds else "NO"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, tuple("-" * width for width in widths))
    print()
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print("\nTo train on real data, run examples/demo.py in the source tree.")
    return int(any(row[-1] == "NO" for row in rows))


def _findings() -> Iterator[tuple[str, float, str, float]]:
    """Runs the three parts. A finding has a subject, the measured number, a relation and a bound."""
    print("1. Trains weights through their sign, whose gradient is 0, and through straight_through(tf.sign).")
    yield "wrong signs with tf.sign", _wrong_signs(tf.sign), "at least", 2
    yield "wrong signs with straight_through", _wrong_signs(straight_through(tf.sign)), "at most", 0

    print("2. Computes log(1 + exp(x)) and its gradient, for x up to 100.")
    x = tf.constant([-2.0, 0.5, 100.0])
    right = _UPSTREAM * tf.sigmoid(x)
    yield "error without a custom gradient", _largest(_gradient(_plain, x) - right), "at least", float("inf")
    yield "error with custom_gradient", _largest(_gradient(_log1pexp, x) - right), "at most", 1e-4

    print("3. Saves a model that calls it in a loop, loads the model, and computes the gradient again.")
    yield "change of the gradient by saving", _change_by_saving(x), "at most", 1e-4


def _wrong_signs(sign: Callable[[Any], tf.Tensor]) -> float:
    target = tf.constant([1.0, -1.0, 1.0, -1.0])
    weights = tf.Variable([0.3, 0.3, -0.3, -0.3])
    for _ in range(4):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((sign(weights) - target) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return float(tf.math.count_nonzero(tf.sign(weights) != target))


def _plain(x: tf.Tensor) -> tf.Tensor:
    return tf.math.log(1 + tf.exp(x))


@custom_gradient
def _log1pexp(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    return tf.math.softplus(x), lambda dy: dy * tf.sigmoid(x)


def _gradient(f: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x, output_gradients=_UPSTREAM)


def _largest(difference: tf.Tensor) -> float:
    """The largest absolute value, where nan counts as infinite."""
    return float(tf.reduce_max(tf.where(tf.math.is_nan(difference), float("inf"), tf.abs(difference))))


class _Model(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def f(self, x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = _log1pexp(x)
        return x


def _change_by_saving(x: tf.Tensor) -> float:
    model = _Model()
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(model, folder)
        loaded = tf.saved_model.load(folder)
    return _largest(_gradient(loaded.f, x) - _gradient(model.f, x))
