"""The gain from more threads: each number of intra-op threads in a process of its own."""

import functools
from collections.abc import Mapping

import tensorflow as tf

from .. import program
from ..harness import record
from ..harness.measurement import Case, Settings
from ..harness.names import KERNEL, MULTIPLY, REDUCE_SUM
from ..harness.samplers import Sampler, Timed
from ..harness.tensors import raw_gradient, tensors
from ..harness.workers import Worker

SUBJECT = "threads"


def in_worker(threads: int, shape: list[int], x_shape: list[int]) -> dict[str, Sampler]:
    """The samplers of one number of threads."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    dy, gx = tensors(shape, shape)
    suffix = f"{threads} thread" + ("s" if threads > 1 else "")
    samplers: dict[str, Sampler] = {f"{KERNEL}, {suffix}": Timed(raw_gradient(dy, gx, x_shape))}
    if shape == x_shape:
        samplers[f"{MULTIPLY}, {suffix}"] = Timed(lambda: tf.multiply(dy, gx))
    else:
        samplers[f"{REDUCE_SUM}, {suffix}"] = Timed(lambda: tf.reduce_sum(dy * gx, 0))
    return samplers


@functools.cache
def _worker(threads: int) -> Worker:
    return Worker()


def _build(shape: list[int], x_shape: list[int]) -> Mapping[str, Sampler | str]:
    samplers: dict[str, Sampler | str] = {}
    for threads in sorted({1, record.threads()}):
        function = f"{__spec__.name}:in_worker"
        samplers.update(_worker(threads).build(function, threads=threads, shape=shape, x_shape=x_shape))
    return samplers


def cases(settings: Settings) -> list[Case]:
    """A product and a sum."""
    m, n = settings.pick([4096, 2560], [64, 48])
    ours = (f"{KERNEL}, 1 thread",)
    return [
        Case(SUBJECT, f"backward, {m * n:,}", functools.partial(_build, [m * n], [m * n]), ours),
        Case(SUBJECT, f"sum {[m, n]} to {[n]}", functools.partial(_build, [m, n], [n]), ours),
    ]


if __name__ == "__main__":
    program.run(cases)
