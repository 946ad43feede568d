"""The same job in other frameworks, if installed: each in its own process, with its own threads."""

import functools
import importlib.util
from collections.abc import Mapping
from typing import Any

from . import peaks
from .samplers import Sampler
from .workers import Worker

_ABSENT = "not installed"
# PyTorch's threads must not spin while others are measured.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "JAX_PLATFORMS": "cpu"}


@functools.cache
def _worker(framework: str) -> Worker:
    return Worker(_ENVIRONMENT)


def implementations(function: str, **arguments: Any) -> dict[str, Sampler | str]:
    """The samplers that `function` builds in the modules for PyTorch and JAX; a note for an absent framework."""
    torch, jax = (times_in(name, function, **arguments) for name in ("torch", "jax"))
    return {**torch, **jax}


def times_in(framework: str, function: str, **arguments: Any) -> Mapping[str, Sampler | str]:
    """The samplers that `function` builds in the module for a framework."""
    if importlib.util.find_spec(framework) is None:
        return {framework: _ABSENT}
    return _worker(framework).build(f"benchmarks.models.in_{framework}:{function}", **arguments)


def peak_in(framework: str, function: str, **arguments: Any) -> Sampler | str:
    """The sampler that `function` builds, in a fresh process for each sample."""
    if importlib.util.find_spec(framework) is None:
        return _ABSENT
    return peaks.InFreshProcess(f"benchmarks.models.in_{framework}:{function}", arguments, _ENVIRONMENT)
