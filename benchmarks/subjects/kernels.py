"""The backward pass beside the speed of memory: equal shapes, sums, broadcasts and dtypes.

`cg gradient op` is one call of the op: the kernel. The yardsticks of `yardsticks.cc` move the same bytes and do nothing
else. "Forward and backward" is what a user does: a tape, the value, its gradient.
"""

import functools
import math
from collections.abc import Callable

import tensorflow as tf

import tf_cg_ops as cg

from ..harness import yardsticks
from ..harness.implementations import IMPLEMENTATIONS, gradient
from ..harness.measurement import Case, Samplers, Settings
from ..harness.names import (
    DECORATOR,
    EMBED,
    KERNEL,
    MULTIPLY,
    RAW_OP,
    READ_BOTH,
    REDUCE_SUM,
    STREAM,
    TF,
    TRAFFIC,
)
from ..harness.samplers import Sampler, Timed, in_turn
from ..harness.tensors import array, memory, raw_gradient, tensors

# Above this size only the quick ones run: the others take seconds, and the ratios stay the same.
_MANY = 10_000_000


def _product(size: int) -> Samplers:
    dy_tensor, gx_tensor = tensors([size], [size])
    dy, gx, streamed = memory(dy_tensor), memory(gx_tensor), memory(tf.zeros([size]))
    return {
        KERNEL: Timed(raw_gradient(dy_tensor, gx_tensor, [size])),
        MULTIPLY: Timed(lambda: tf.multiply(dy_tensor, gx_tensor)),
        STREAM: Timed(lambda: yardsticks.multiply(dy, gx, streamed)),
    }


def _both(shape: list[int], x_shape: list[int]) -> Samplers:
    """A value with its gradient."""
    fx, gx, x, dy = tensors(shape, shape, x_shape, shape)
    axis = _summed(shape, x_shape)
    functions = {name: make(fx, gx) for name, make in IMPLEMENTATIONS.items() if name != RAW_OP}
    if axis:  # The rules of IMPLEMENTATIONS do not sum.
        for name, decorate in ((DECORATOR, cg.custom_gradient), (TF, tf.custom_gradient)):
            functions[name] = decorate(lambda x: (fx, lambda dy: tf.reduce_sum(dy * gx, axis)))
    if math.prod(shape) > _MANY:
        functions = {name: functions[name] for name in (EMBED, DECORATOR, TF)}
    samplers = {name: Timed(functools.partial(gradient, function, x, dy)) for name, function in functions.items()}
    return samplers


def _elementwise(settings: Settings) -> list[Case]:
    found = []
    for size in settings.pick([10**n for n in range(9)], [1, 10_000]):
        build = functools.partial(_product, size)
        found.append(Case("elementwise", f"backward, {size:,}", build, (KERNEL,), elements=size, bytes_moved=12 * size))
    for size in settings.pick([1, 100, 10_000, 1_000_000, 10_000_000, 100_000_000], [1, 10_000]):
        build = functools.partial(_both, [size], [size])
        found.append(Case("elementwise", f"forward and backward, {size:,}", build, (EMBED, DECORATOR), elements=size))
    return found


def _summed(shape: list[int], x_shape: list[int]) -> list[int]:
    """The dimensions of `shape` that `x` does not have, or has with size 1."""
    extra = len(shape) - len(x_shape)
    return [i for i, size in enumerate(shape) if i < extra or x_shape[i - extra] != size]


def _sum(shape: list[int], x_shape: list[int], large: int) -> Samplers:
    """A sum. Inputs take turns if they are not much larger than the last-level cache."""
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
    }


def _reductions(settings: Settings) -> list[Case]:
    """Sums to trailing dimensions (a bias), leading ones, a scalar, every other one, and with tiny inner dimensions."""
    large = settings.pick(256 * 2**20, 0)  # More bytes than fit into a cache.
    matrices = settings.pick([[4096, 2048], [64, 1000003], [1000003, 64]], [[64, 48]])
    b, h, t, w = settings.pick([16, 64, 256, 128], [2, 8, 4, 8])
    sums = [(m, x_shape) for m in matrices for x_shape in ([m[1]], [m[0], 1], [])]
    sums.append(([b, h, t, w], [b, 1, t, 1]))
    n = settings.pick(500_009, 50)
    blocks = [n, 4, 4, 4]
    tiny = [(blocks, [n, 4, 1, 1]), (blocks, [n, 1, 1, 4]), (blocks, [n, 1, 4, 1]), (blocks, [4, 1, 4])]
    tiny += [([20 * n, 3], [3]), ([20 * n, 3], [20 * n, 1]), ([60 * n, 1], [1])]
    found = []
    for prefix, forms in (("", sums), ("tiny ", tiny)):
        for s, x in forms:
            build = functools.partial(_sum, s, x, large)
            size = math.prod(s)
            found.append(
                Case("reductions", f"{prefix}sum {s} to {x}", build, (KERNEL,), elements=size, bytes_moved=8 * size)
            )
    m, n = matrices[0]
    both, name = functools.partial(_both, [m, n], [n]), f"forward and backward, {[m, n]} to {[n]}"
    found.append(Case("reductions", name, both, (EMBED, DECORATOR), elements=m * n))
    return found


def _with_small(dy_shape: list[int], gx_shape: list[int], x_shape: list[int], axis: list[int]) -> Samplers:
    """A small operand stays in a cache, so the yardstick only moves the large one."""
    dy_tensor, gx_tensor = tensors(dy_shape, gx_shape)
    large = max(memory(dy_tensor), memory(gx_tensor), key=lambda operand: operand.size)
    out = memory(tf.zeros([large.size]))

    def plain() -> tf.Tensor:
        product = dy_tensor * gx_tensor
        return tf.reduce_sum(product, axis) if axis else product

    return {
        KERNEL: Timed(raw_gradient(dy_tensor, gx_tensor, x_shape)),
        TRAFFIC: Timed(lambda: yardsticks.read(large) if axis else yardsticks.multiply(large, None, out)),
        REDUCE_SUM if axis else MULTIPLY: Timed(plain),
    }


def _broadcasts(settings: Settings) -> list[Case]:
    """Products and sums with a `gx` of one number, one row and one column; and a `dy` of one number."""
    m, n = settings.pick([8192, 4096], [64, 48])
    forms = [
        ("gx a scalar", [m, n], [], [m, n], []),
        ("gx a row", [m, n], [n], [m, n], []),
        ("gx a column", [m, n], [m, 1], [m, n], []),
        ("dy a scalar", [], [m, n], [m, n], []),
        ("gx a scalar, to a row", [m, n], [], [n], [0]),
        ("gx a row, to a row", [m, n], [n], [n], [0]),
        ("gx a column, to a row", [m, n], [m, 1], [n], [0]),
        ("gx a row, to a column", [m, n], [n], [m, 1], [1]),
        ("gx a row, to a scalar", [m, n], [n], [], [0, 1]),
    ]
    found = []
    for name, *shapes in forms:
        kind, bytes_moved = ("sum", 4 * m * n) if shapes[-1] else ("product", 8 * m * n)
        build, name = functools.partial(_with_small, *shapes), f"{kind}, {name}, {[m, n]}"
        found.append(Case("broadcast", name, build, (KERNEL,), elements=m * n, bytes_moved=bytes_moved))
    return found


_DTYPES = {"half": tf.float16, "bfloat16": tf.bfloat16, "float32": tf.float32}


def _by_dtype(shape: list[int], x_shape: list[int], axis: list[int]) -> Samplers:
    samplers: dict[str, Sampler | str] = {}
    for name, dtype in _DTYPES.items():
        dy, gx = tensors(shape, shape, dtype=dtype)
        samplers[f"cg {name}"] = Timed(raw_gradient(dy, gx, x_shape))
        if axis:
            samplers[f"{REDUCE_SUM} {name}"] = Timed(lambda dy=dy, gx=gx: tf.reduce_sum(dy * gx, axis))
        else:
            samplers[f"{MULTIPLY} {name}"] = Timed(lambda dy=dy, gx=gx: tf.multiply(dy, gx))
    return samplers


def _dtypes(settings: Settings) -> list[Case]:
    m, n = settings.pick([4096, 2560], [64, 48])
    ours = ("cg half", "cg bfloat16")
    product, row = functools.partial(_by_dtype, [m * n], [m * n], []), functools.partial(_by_dtype, [m, n], [n], [0])
    return [
        Case("dtypes", f"backward, {m * n:,}", product, ours),
        Case("dtypes", f"sum {[m, n]} to {[n]}", row, ours),
    ]


def cases(settings: Settings) -> list[Case]:
    """Elementwise products, sums, broadcasts and dtypes."""
    return _elementwise(settings) + _reductions(settings) + _broadcasts(settings) + _dtypes(settings)
