"""The backward pass where `x` has fewer elements than `dy`: `dx` is a sum of `dy * gx`.

To trailing dimensions (a bias), to leading ones, to a scalar, to every other dimension, and where the inner dimensions
are tiny. `read both` is the yardstick of `yardsticks.cc` that reads both inputs once. Inputs take turns where they are
not much larger than the last-level cache.
"""

import functools
import math
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from .. import program
from ..harness import foreign, yardsticks
from ..harness.implementations import IMPLEMENTATIONS, gradient
from ..harness.measurement import Case, Settings
from ..harness.names import DECORATOR, EMBED, KERNEL, ONE_BY_ONE, RAW_OP, READ_BOTH, REDUCE_SUM, TF
from ..harness.samplers import Number, Sampler, Timed, in_turn
from ..harness.tensors import array, memory, raw_gradient, tensors

SUBJECT = "reductions"


def _summed(shape: list[int], x_shape: list[int]) -> list[int]:
    """The dimensions of `shape` that `x` does not have, or has with size 1."""
    extra = len(shape) - len(x_shape)
    return [i for i, size in enumerate(shape) if i < extra or x_shape[i - extra] != size]


def _sum(shape: list[int], x_shape: list[int], large: int) -> Mapping[str, Sampler | str]:
    axis = _summed(shape, x_shape)

    def plain(dy: tf.Tensor, gx: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(dy * gx, axis)

    def alike(function: Callable[..., object], inputs: list) -> Sampler:
        return in_turn([functools.partial(function, *pair) for pair in inputs])

    copies = max(1, math.ceil(large / (8 * math.prod(shape))))
    pairs = [(tf.constant(array(shape, 2 * i)), tf.constant(array(shape, 2 * i + 1))) for i in range(copies)]
    arrays = [(memory(dy), memory(gx)) for dy, gx in pairs]
    return {
        KERNEL: in_turn([raw_gradient(dy, gx, x_shape) for dy, gx in pairs]),
        READ_BOTH: alike(yardsticks.read, arrays),
        REDUCE_SUM: alike(plain, pairs),
        f"{REDUCE_SUM} in tf.function": alike(tf.function(plain), pairs),
        f"{REDUCE_SUM} in XLA": alike(tf.function(plain, jit_compile=True), pairs),
        "numpy": alike(lambda dy, gx: np.sum(dy * gx, tuple(axis)), arrays),
    }


def _both(shape: list[int], x_shape: list[int]) -> Mapping[str, Sampler | str]:
    fx, gx, x, dy = tensors(shape, shape, x_shape, shape)
    axis = _summed(shape, x_shape)

    def summing(decorate: Callable[..., Callable]) -> Callable:
        return decorate(lambda x: (fx, lambda dy: tf.reduce_sum(dy * gx, axis)))

    functions = {name: make(fx, gx) for name, make in IMPLEMENTATIONS.items() if name != RAW_OP}
    functions[DECORATOR] = summing(cg.custom_gradient)
    functions[TF] = summing(tf.custom_gradient)
    samplers = {name: Timed(functools.partial(gradient, function, x, dy)) for name, function in functions.items()}
    return {**samplers, **foreign.implementations("gradient", shape=shape, x_shape=x_shape)}


def _error(shape: list[int], x_shape: list[int]) -> Mapping[str, Sampler | str]:
    """The largest relative error, against the sum in float64 of the products rounded once."""
    dy, gx = array(shape, 1), array(shape, 2)
    axis = tuple(_summed(shape, x_shape))
    exact = np.sum(dy.astype(np.float64) * gx, axis)

    def error(result: np.ndarray) -> float:
        return float(np.max(np.abs(result.reshape(exact.shape).astype(np.float64) - exact) / np.abs(exact)))

    def one_by_one() -> np.ndarray:
        kept = [i for i in range(len(shape)) if i not in axis]
        products = np.transpose(dy * gx, [*kept, *axis]).reshape(exact.size, -1)
        return np.add.accumulate(products, 1)[:, -1]

    dy_tensor, gx_tensor = tf.constant(dy), tf.constant(gx)
    kernel = raw_gradient(dy_tensor, gx_tensor, x_shape)
    return {
        KERNEL: Number(lambda: error(kernel().numpy())),
        ONE_BY_ONE: Number(lambda: error(one_by_one())),
        REDUCE_SUM: Number(lambda: error(tf.reduce_sum(dy_tensor * gx_tensor, axis).numpy())),
        "numpy": Number(lambda: error(np.sum(dy * gx, axis))),
    }


def _results(shape: list[int], x_shape: list[int]) -> Mapping[str, Sampler | str]:
    """The number of different results of 20 calls, bit by bit."""
    dy, gx = tensors(shape, shape)
    kernel = raw_gradient(dy, gx, x_shape)
    axis = _summed(shape, x_shape)
    return {
        KERNEL: Number(lambda: len({kernel().numpy().tobytes() for _ in range(20)})),
        REDUCE_SUM: Number(lambda: len({tf.reduce_sum(dy * gx, axis).numpy().tobytes() for _ in range(20)})),
    }


def cases(settings: Settings) -> list[Case]:
    """All shapes for the time; one shape for errors and differences."""
    large = settings.pick(256 * 2**20, 0)  # Bytes that no cache holds.
    matrices = settings.pick([[4096, 2048], [64, 1000003], [1000003, 64]], [[64, 48]])
    b, h, t, w = settings.pick([16, 64, 256, 128], [2, 8, 4, 8])
    sums = [(m, x_shape) for m in matrices for x_shape in ([m[1]], [m[0], 1], [])]
    sums.append(([b, h, t, w], [b, 1, t, 1]))
    n = settings.pick(500_009, 50)
    blocks = [n, 4, 4, 4]
    tiny = [(blocks, [n, 4, 1, 1]), (blocks, [n, 1, 1, 4]), (blocks, [n, 1, 4, 1]), (blocks, [4, 1, 4])]
    tiny += [([20 * n, 3], [3]), ([20 * n, 3], [20 * n, 1]), ([60 * n, 1], [1])]
    accurate = [pair for pair in sums if pair[0] in (matrices[0], [b, h, t, w])]
    found = [
        Case(
            SUBJECT,
            f"{'tiny ' if (s, x) in tiny else ''}sum {s} to {x}",
            functools.partial(_sum, s, x, large),
            (KERNEL,),
            elements=math.prod(s),
            bytes_moved=8 * math.prod(s),
        )
        for s, x in sums + tiny
    ]
    (m, n), ours = matrices[0], (EMBED, DECORATOR)
    both = functools.partial(_both, [m, n], [n])
    found.append(Case(SUBJECT, f"forward and backward, {[m, n]} to {[n]}", both, ours, elements=m * n))
    for name, build in (("error", _error), ("results", _results)):
        for s, x in accurate:
            found.append(
                Case(SUBJECT, f"{name} of {s} to {x}", functools.partial(build, s, x), (KERNEL,), "", rounds=1)
            )
    return found


if __name__ == "__main__":
    program.run(cases)
