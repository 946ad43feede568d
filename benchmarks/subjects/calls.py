"""Calls: one element in eager mode, inference, and calls of NumPy."""

import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tf_cg_ops as cg

from ..harness.implementations import IMPLEMENTATIONS, gradient
from ..harness.measurement import Case, Samplers, Settings
from ..harness.names import (
    DECORATOR,
    EMBED,
    FORMULA,
    IDENTITY,
    NUMPY_CALL,
    NUMPY_GRADIENTS,
    NUMPY_VJP,
    PLAIN,
    RAW_OP,
    TF,
    TFP,
)
from ..harness.samplers import Timed
from ..harness.tensors import tensors

_OURS = (EMBED, DECORATOR)


def _forward(on_tape: bool) -> Samplers:
    """`cg raw op` is the op without the conversion and the checks of `embed_gradient`."""
    fx, gx, x = tensors([], [], [])
    functions = {name: functools.partial(make(fx, gx), x) for name, make in IMPLEMENTATIONS.items()}
    if not on_tape:
        return {name: Timed(function) for name, function in functions.items()}

    def record(function: Callable[[], object]) -> None:
        with tf.GradientTape() as tape:
            tape.watch(x)
            function()

    functions["the tape alone"] = lambda: None
    return {name: Timed(functools.partial(record, function)) for name, function in functions.items()}


def _both() -> Samplers:
    """`tf.identity` is the least that a gradient on a tape can cost."""
    fx, gx, x, dy = tensors([], [], [], [])
    functions = {name: make(fx, gx) for name, make in IMPLEMENTATIONS.items()} | {IDENTITY: tf.identity}
    return {name: Timed(functools.partial(gradient, function, x, dy)) for name, function in functions.items()}


def _sizes(sizes: list[int]) -> Samplers:
    samplers = {}
    for size in sizes:
        fx, gx, x = tensors([size], [size], [size])
        samplers[f"{EMBED}, {size:,}"] = Timed(functools.partial(IMPLEMENTATIONS[EMBED](fx, gx), x))
    return samplers


def _dispatch(settings: Settings) -> list[Case]:
    """The cost of a call without its arithmetic."""
    sizes = settings.pick([1, 10_000, 100_000_000], [1, 10_000])
    ours, largest = (*_OURS, RAW_OP), f"{EMBED}, {sizes[-1]:,}"
    return [
        Case("dispatch", "forward, no tape", functools.partial(_forward, False), ours),
        Case("dispatch", "forward, on a tape", functools.partial(_forward, True), ours),
        Case("dispatch", "forward and backward", _both, ours),
        Case("dispatch", "forward by number of elements", functools.partial(_sizes, sizes), (largest,)),
    ]


def _gx(x: tf.Tensor) -> tf.Tensor:
    for _ in range(10):
        x = tf.sin(x)
    return x


def _decorated(decorate: Callable) -> Callable[[tf.Tensor], tf.Tensor]:
    return decorate(lambda x: (tf.exp(x), lambda dy: dy * _gx(x)))


_EXPENSIVE: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    EMBED: lambda x: cg.embed_gradient(tf.exp(x), _gx(x), x),
    DECORATOR: _decorated(cg.custom_gradient),
    TF: _decorated(tf.custom_gradient),
    FORMULA: lambda x: tf.exp(x) + _gx(x) * (x - tf.stop_gradient(x)),
    TFP: lambda x: tfp.math.custom_gradient(tf.exp(x), _gx(x), x),
    PLAIN: lambda x: tf.exp(x),
}


def _value_alone(size: int) -> Samplers:
    (x,) = tensors([size])
    return {name: Timed(functools.partial(tf.function(function), x)) for name, function in _EXPENSIVE.items()}


def _inference(settings: Settings) -> list[Case]:
    """A `tf.function` whose gradient is expensive to compute: only the value should run."""
    sizes = settings.pick([1, 10_000_000], [1, 1000])
    return [
        Case("inference", f"tf.function, {size:,}", functools.partial(_value_alone, size), _OURS, elements=size)
        for size in sizes
    ]


_CALLS = 100


def _numpy(size: int) -> Samplers:
    """The sine: its values stay in the same range, however often it is applied."""
    spec = tf.TensorSpec([size], tf.float32)
    functions = {
        NUMPY_VJP: cg.numpy_function(lambda x: (np.sin(x), x), spec, vjp=lambda x, dy: dy * np.cos(x)),
        NUMPY_CALL: lambda x: tf.ensure_shape(tf.numpy_function(np.sin, [x], tf.float32), [size]),
    }

    def chain(function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
        for _ in range(_CALLS):
            x = function(x)
        return x

    traced = {name: tf.function(functools.partial(chain, function)) for name, function in functions.items()}
    return {name: Timed(functools.partial(function, *tensors([size]))) for name, function in traced.items()}


def _eager_numpy(on_tape: bool) -> Samplers:
    """A call that computes nothing, so that only its price is left."""
    (x,) = tensors([10])
    ones = np.ones(10, np.float32)
    functions = {
        NUMPY_VJP: cg.numpy_function(lambda x: (x, x), tf.TensorSpec([10]), vjp=lambda x, dy: dy),
        NUMPY_GRADIENTS: cg.numpy_function(lambda x: (x, ones)),
        NUMPY_CALL: lambda x: tf.numpy_function(lambda x: x, [x], tf.float32),
    }

    def run(function: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            if on_tape:
                tape.watch(x)
            return function(x)

    return {name: Timed(functools.partial(run, function)) for name, function in functions.items()}


def _numpy_calls(settings: Settings) -> list[Case]:
    """The cost of residuals, compared with TensorFlow's plain call."""
    eager = [
        Case(
            "numpy_calls",
            f"eager mode, {place}",
            functools.partial(_eager_numpy, on_tape),
            (NUMPY_VJP, NUMPY_GRADIENTS),
        )
        for place, on_tape in (("no tape", False), ("on a tape", True))
    ]
    return eager + [
        Case(
            "numpy_calls", f"value of {_CALLS} calls, {size:,} elements", functools.partial(_numpy, size), (NUMPY_VJP,)
        )
        for size in settings.pick([10, 100_000], [10])
    ]


def cases(settings: Settings) -> list[Case]:
    """Dispatch, inference and calls of NumPy."""
    return _dispatch(settings) + _inference(settings) + _numpy_calls(settings)
