"""Rules in graphs: recursive ones, slices of a large table, and the memory that a loop keeps for a rule."""

import functools
from collections.abc import Callable, Mapping

import tensorflow as tf

import tf_cg_ops as cg

from .. import program
from ..harness import peaks
from ..harness.measurement import Case, Settings
from ..harness.names import DECORATOR, TF
from ..harness.samplers import Number, Sampler, Timed

SUBJECT = "live_rules"

_DECORATORS: dict[str, Callable] = {DECORATOR: cg.custom_gradient, TF: tf.custom_gradient}


def _recursive(decorate: Callable, branches: int, count: list[int]) -> Callable[[tf.Tensor], tf.Tensor]:
    """`exp(branches * x)`, whose rule calls it once for each branch; `count[0]` counts the calls of the rule."""

    @decorate
    def function(x: tf.Tensor) -> tf.Tensor:
        def grad_fn(dy: tf.Tensor) -> tf.Tensor:
            count[0] += 1
            return dy * tf.add_n([function(x) for _ in range(branches)])

        return tf.exp(branches * x), grad_fn

    return function


def _trace(decorate: Callable, branches: int, order: int) -> int:
    """Traces the value and the derivatives up to an order; returns how often the rule was called."""
    count = [0]
    derivative = _recursive(decorate, branches, count)
    for _ in range(order):
        derivative = functools.partial(_derivative, derivative)
    tf.function(derivative, autograph=False).get_concrete_function(tf.TensorSpec([8], tf.float32))
    return count[0]


def _derivative(function: Callable, x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


def _recursion(branches: int, order: int, is_counted: bool) -> Mapping[str, Sampler | str]:
    traces = {name: functools.partial(_trace, decorate, branches, order) for name, decorate in _DECORATORS.items()}
    return {name: Number(trace) if is_counted else Timed(trace) for name, trace in traces.items()}


def _gather(rows: int) -> Mapping[str, Sampler | str]:
    """The gradient of a few rows of a large table, below an identity with a custom gradient."""
    table, picks = tf.Variable(tf.ones([rows, 64])), tf.range(0, rows, rows // 32)

    def step(decorate: Callable) -> Callable[[], tf.Tensor]:
        same = decorate(lambda x: (tf.identity(x), lambda dy: dy))

        @tf.function
        def gradient() -> tf.Tensor:
            with tf.GradientTape() as tape:
                found = tf.gather(same(table), picks)
            slices = tape.gradient(found, table)
            return slices.values if isinstance(slices, tf.IndexedSlices) else slices

        return gradient

    return {name: Timed(step(decorate)) for name, decorate in _DECORATORS.items()}


def in_worker(steps: int, size: int) -> dict[str, Sampler]:
    """A loop whose rule reads the size of a large tensor, in the process that measures."""

    def step(decorate: Callable) -> Callable[[], tf.Tensor]:
        @decorate
        def function(x: tf.Tensor) -> tf.Tensor:
            large = tf.fill(tf.cast(x[:1] * 0, tf.int32) + size, 1.0)

            def grad_fn(dy: tf.Tensor) -> tf.Tensor:
                return dy * tf.cast(tf.size(large) // size, tf.float32)

            return x * tf.reduce_max(large), grad_fn

        @tf.function
        def gradient(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.while_loop(lambda i, _: i < steps, lambda i, x: (i + 1, function(x)), (0, x))[1]
            return tape.gradient(y, x)

        return functools.partial(gradient, tf.ones([1]))

    return {name: peaks.Peak(step(decorate), 1_000_000) for name, decorate in _DECORATORS.items()}


def _loop(steps: int, size: int) -> Mapping[str, Sampler | str]:
    return peaks.worker().build(f"{__spec__.name}:in_worker", steps=steps, size=size)


def cases(settings: Settings) -> list[Case]:
    """Each beside `tf.custom_gradient`, which calls the same rules where a gradient is asked for."""
    found = []
    for branches in settings.pick((1, 2, 3), (1,)):
        for order in settings.pick((0, 1, 2, 3), (1,)):
            name = f"a rule that calls its function {branches} times, derivatives up to {order}"
            for title, is_counted in (("time", False), ("calls of the rule", True)):
                build = functools.partial(_recursion, branches, order, is_counted)
                unit, rounds = ("calls", 1) if is_counted else ("s", 7)
                found.append(Case(SUBJECT, f"{title}, {name}", build, (DECORATOR,), unit, rounds=rounds))
    rows = settings.pick(500_000, 10_000)
    found.append(Case(SUBJECT, f"gather from {rows} rows", functools.partial(_gather, rows), (DECORATOR,)))
    steps, size = settings.pick((500, 1_000_000), (20, 100_000))
    loop = functools.partial(_loop, steps=steps, size=size)
    name = f"peak memory, {steps} steps of {size} floats of which the rule reads the size"
    found.append(Case(SUBJECT, name, loop, (DECORATOR,), "MB", rounds=3))
    return found


if __name__ == "__main__":
    program.run(cases)
