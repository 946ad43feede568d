"""Calls of NumPy in a graph: the residuals and their token cost something, TensorFlow's bare call is the baseline."""

import functools
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from .. import program
from ..harness.implementations import gradient
from ..harness.measurement import Case, Settings
from ..harness.names import NUMPY_CALL, NUMPY_JACOBIAN, NUMPY_VJP, TF_NUMPY_PAIR
from ..harness.samplers import Sampler, Timed
from ..harness.tensors import tensors

SUBJECT = "numpy_calls"
_CALLS = 100


def _functions(size: int) -> dict[str, Callable[[tf.Tensor], tf.Tensor]]:
    """The sine, which keeps its values in a range that never changes, however often it is applied."""
    spec = tf.TensorSpec([size], tf.float32)

    def by_hand(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def grad_fn(dy: tf.Tensor) -> tf.Tensor:
            dx = tf.numpy_function(lambda dy, x: dy * np.cos(x), [dy, x], tf.float32)
            return tf.ensure_shape(dx, [size])

        return tf.ensure_shape(tf.numpy_function(np.sin, [x], tf.float32), [size]), grad_fn

    return {
        NUMPY_VJP: cg.numpy_function(lambda x: (np.sin(x), x), spec, vjp=lambda x, dy: dy * np.cos(x)),
        NUMPY_JACOBIAN: cg.numpy_function(lambda x: (np.sin(x), np.cos(x))),
        NUMPY_CALL: lambda x: tf.ensure_shape(tf.numpy_function(np.sin, [x], tf.float32), [size]),
        TF_NUMPY_PAIR: tf.custom_gradient(by_hand),
    }


def _repeat(function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    for _ in range(_CALLS):
        x = function(x)
    return x


def _value(size: int) -> Mapping[str, Sampler | str]:
    (x,) = tensors([size])
    repeated = {name: functools.partial(_repeat, function) for name, function in _functions(size).items()}
    return {name: Timed(functools.partial(tf.function(function), x)) for name, function in repeated.items()}


def _gradient(size: int) -> Mapping[str, Sampler | str]:
    x, dy = tensors([size], [size])
    functions = _functions(size)
    del functions[NUMPY_CALL]  # It has no gradient.
    steps = {name: functools.partial(gradient, functools.partial(_repeat, f)) for name, f in functions.items()}
    return {name: Timed(functools.partial(tf.function(step), x, dy)) for name, step in steps.items()}


def cases(settings: Settings) -> list[Case]:
    """The value alone, and with its gradient, of a hundred calls in a function."""
    found = []
    for size in settings.pick([10, 100_000], [10]):
        for kind, build in (("value", _value), ("value and gradient", _gradient)):
            name = f"{kind} of {_CALLS} calls, {size:,} elements"
            found.append(Case(SUBJECT, name, functools.partial(build, size), (NUMPY_VJP, NUMPY_JACOBIAN)))
    return found


if __name__ == "__main__":
    program.run(cases)
