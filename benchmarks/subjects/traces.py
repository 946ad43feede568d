"""Tracing: rules that call their own function, and first calls of functions that eager mode traces."""

import functools
import gc
import itertools
import time
from collections.abc import Callable

import tensorflow as tf

import tf_cg_ops as cg

from ..harness.implementations import gradient
from ..harness.measurement import Case, Samplers, Settings
from ..harness.names import (
    DECORATOR,
    OVERRIDDEN,
    PLAIN_IN_FUNCTION,
    RECOMPUTED,
    SAME_IN_FUNCTION,
    SCAN,
    SEGMENTED,
    TF,
)
from ..harness.samplers import Number, Timed

_OPS = 10


def _series(x: tf.Tensor) -> tf.Tensor:
    """A value like TFP's `bessel_ive`: a loop and some ten operations around it."""

    def step(i: tf.Tensor, term: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, ...]:
        for _ in range(_OPS):
            term = term * x / (tf.cast(i, x.dtype) + 1.0)
        return i + 1, term, total + term

    x = tf.abs(x) + tf.cast(x < 0, x.dtype)
    return tf.while_loop(lambda i, *_: i < 10, step, (0, tf.ones_like(x), tf.zeros_like(x)))[2]


def _recursive(decorate: Callable, calls: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function whose gradient calls it this many times."""

    @decorate
    def function(x: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        return _series(x), lambda dy: dy * tf.add_n([function(x + float(i)) for i in range(calls)])

    return function


def _trace(function: Callable[[tf.Tensor], tf.Tensor], order: int) -> None:
    for _ in range(order):
        function = functools.partial(gradient, function)
    tf.function(function).get_concrete_function(tf.TensorSpec([8], tf.float32))


def _recursion(settings: Settings) -> list[Case]:
    """The trace of a value, of its gradient, and of a second derivative."""

    def build(calls: int, order: int) -> Samplers:
        decorated = {DECORATOR: _recursive(cg.custom_gradient, calls), TF: _recursive(tf.custom_gradient, calls)}
        return {name: Timed(functools.partial(_trace, function, order)) for name, function in decorated.items()}

    cases = [(calls, order) for calls in settings.pick((1, 2, 3), (1,)) for order in (0, 1)]
    cases += settings.pick([(2, 2)], [])
    titles = ("value", "gradient", "second derivative")
    found = []
    for calls, order in cases:
        name = f"trace, {titles[order]}, calls itself {calls} times"
        found.append(Case("recursive_rules", name, functools.partial(build, calls, order), (DECORATOR,)))
    return found


def _block(x: tf.Tensor) -> tf.Tensor:
    for _ in range(_OPS):
        x = tf.sin(x) * 1.5 + tf.cos(x)
    return x


_STEPS = 16
# Each loop gets its own constant, because the library reuses a loop with the same operations.
_constants = itertools.count()

Function = Callable[[tf.Tensor], tf.Tensor]


def _loop(while_loop: Callable) -> Function:
    constant = float(next(_constants))
    body = lambda i, y: (i + 1, _block(y + constant))  # noqa: E731
    return lambda x: while_loop(lambda i, _: i < _STEPS, body, (0, x), maximum_iterations=_STEPS)[1]


def _scan() -> Function:
    constant = float(next(_constants))
    return lambda x: cg.scan(lambda carry, _: (_block(carry + constant), ()), x, length=_STEPS)[0]


# Functions that eager mode traces at the first call, and the same without: each entry makes a new function.
_TRACED: dict[str, tuple[Callable[[], Function], Callable[[], Function]]] = {
    RECOMPUTED: (lambda: cg.recompute_grad(lambda x: _block(x)), lambda: lambda x: _block(x)),
    OVERRIDDEN: (
        lambda: cg.override_gradients(lambda x: _block(x), {"Sin": cg.rules.built_in}),
        lambda: lambda x: _block(x),
    ),
    SCAN: (_scan, functools.partial(_loop, tf.while_loop)),
    SEGMENTED: (functools.partial(_loop, cg.while_loop), functools.partial(_loop, tf.while_loop)),
}


def _first_call(make: Callable[[], Function], x: tf.Tensor) -> float:
    """The seconds of the first call of a new function, with its gradient."""
    function = make()
    gc.collect()
    start = time.perf_counter()
    gradient(function, x)
    return time.perf_counter() - start


def _first_calls(settings: Settings) -> list[Case]:
    """The first eager call with its gradient, beside the first call of a `tf.function`."""

    def build(name: str) -> Samplers:
        make, without = _TRACED[name]
        first_call = functools.partial(_first_call, x=tf.linspace(0.1, 0.8, 8))
        return {
            name: Number(functools.partial(first_call, make)),
            SAME_IN_FUNCTION: Number(functools.partial(first_call, lambda: tf.function(make()))),
            PLAIN_IN_FUNCTION: Number(functools.partial(first_call, lambda: tf.function(without()))),
        }

    return [Case("first_calls", name, functools.partial(build, name), (name,)) for name in _TRACED]


def cases(settings: Settings) -> list[Case]:
    """Recursive rules and first calls."""
    return _recursion(settings) + _first_calls(settings)
