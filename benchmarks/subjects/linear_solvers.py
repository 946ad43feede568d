"""The gradient of an implicit function: by its Jacobian, and by solvers that need none."""

import functools
from collections.abc import Callable, Mapping

import tensorflow as tf

import tf_cg_ops as cg

from .. import program
from ..harness import peaks
from ..harness.measurement import Case, Settings
from ..harness.names import CG_SOLVER, DENSE_SOLVER, GMRES_SOLVER
from ..harness.samplers import Sampler, Timed
from ..harness.tensors import tensors

SUBJECT = "linear_solvers"
# A Jacobian of more than 4 GB is not tried.
_MOST_NUMBERS = 1e9
_SOLVERS: dict[str, Callable | None] = {
    DENSE_SOLVER: None,
    CG_SOLVER: functools.partial(cg.linear.cg, tolerance=1e-6),
    GMRES_SOLVER: functools.partial(cg.linear.gmres, tolerance=1e-6),
}


def _residual(y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """A nonlinear chain in which neighbours pull at each other."""
    neighbours = tf.concat([y[1:], [0.0]], 0) + tf.concat([[0.0], y[:-1]], 0)
    return 4.0 * y + tf.sin(y) - neighbours - x


def _solve(x: tf.Tensor) -> tf.Tensor:
    """By repeated substitution: all implementations pay for the same few steps."""
    y = x / 4.0
    for _ in range(30):
        y -= _residual(y, x) / 5.0
    return y


def _step(solver: Callable | None, x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    function = cg.implicit_root(_residual, _solve, linear_solve=solver)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x, dy)


def _steps(size: int) -> dict[str, Callable[[], tf.Tensor] | str]:
    inputs = tensors([size], [size])
    steps: dict[str, Callable[[], tf.Tensor] | str] = {}
    for name, solver in _SOLVERS.items():
        steps[name] = functools.partial(tf.function(functools.partial(_step, solver)), *inputs)
    if size**2 > _MOST_NUMBERS:
        steps[DENSE_SOLVER] = f"its Jacobian would take {4e-12 * size**2:,.0f} TB"
    return steps


def in_worker(size: int) -> dict[str, Sampler]:
    """The samplers for the peak, in the process that measures."""
    steps = _steps(size).items()
    return {name: peaks.Peak(step, 1_000_000) for name, step in steps if not isinstance(step, str)}


def _memory(size: int) -> Mapping[str, Sampler | str]:
    absent = {name: step for name, step in _steps(size).items() if isinstance(step, str)}
    return {**peaks.worker().build(f"{__spec__.name}:in_worker", size=size), **absent}


def _time(size: int) -> Mapping[str, Sampler | str]:
    return {name: step if isinstance(step, str) else Timed(step) for name, step in _steps(size).items()}


def cases(settings: Settings) -> list[Case]:
    """Memory and time, by the number of unknowns."""
    found = []
    for size in settings.pick([100, 1_000, 4_000, 1_000_000], [100]):
        memory, time = functools.partial(_memory, size), functools.partial(_time, size)
        found.append(Case(SUBJECT, f"peak memory, {size:,} unknowns", memory, (GMRES_SOLVER,), "MB", rounds=3))
        found.append(Case(SUBJECT, f"time, {size:,} unknowns", time, (GMRES_SOLVER, CG_SOLVER)))
    return found


if __name__ == "__main__":
    program.run(cases)
