"""The time and the memory of a training step of whole models: what a user notices.

Each has one custom gradient, used once or many times. The optimizer is left out, because it costs the same everywhere.
"""

import functools

from ..harness import peaks
from ..harness.measurement import Case, Samplers, Settings
from ..harness.names import DECORATOR, EMBED, MASKED
from ..harness.samplers import Sampler, Timed
from ..models import in_tensorflow
from ..models.networks import networks

_MIB = 2**20


def in_worker(name: str, mode: str, quick: bool, implementation: str) -> dict[str, Sampler]:
    """The sampler for the peak of one implementation, in the process that measures."""
    step = in_tensorflow.steps(networks(quick)[name], mode)[implementation]
    trace = (lambda: step) if mode == "eager" else step.get_concrete_function
    return {implementation: peaks.OfFirstCall(trace, _MIB)}


def _time(name: str, mode: str, quick: bool) -> Samplers:
    steps = in_tensorflow.steps(networks(quick)[name], mode)
    return {implementation: Timed(step) for implementation, step in steps.items()}


def _memory(name: str, mode: str, quick: bool) -> Samplers:
    found: dict[str, Sampler | str] = {}
    for implementation in in_tensorflow.units(networks(quick)[name].unit):
        arguments = {"name": name, "mode": mode, "quick": quick, "implementation": implementation}
        found[implementation] = peaks.InFreshProcess(f"{__name__}:in_worker", arguments)
    return found


def _masked(name: str, quick: bool) -> Samplers:
    steps = in_tensorflow.masked_steps(networks(quick)[name], "tf.function")
    return {implementation: Timed(step) for implementation, step in steps.items()}


def cases(settings: Settings) -> list[Case]:
    """Time and memory of each network in each mode."""
    found = []
    for name in networks(settings.quick):
        for mode in in_tensorflow.MODES:
            arguments = {"name": name, "mode": mode, "quick": settings.quick}
            ours = (EMBED, DECORATOR)
            found.append(Case("models", f"time, {name}, {mode}", functools.partial(_time, **arguments), ours))
            memory = functools.partial(_memory, **arguments)
            found.append(Case("models", f"peak memory, {name}, {mode}", memory, ours, "MiB", rounds=1))
    for name in networks(settings.quick):
        masked = functools.partial(_masked, name=name, quick=settings.quick)
        found.append(Case("masked", f"time, {name}, tf.function", masked, (MASKED,)))
    return found
