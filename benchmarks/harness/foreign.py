"""The same job in other frameworks, where they are installed: each in a process of its own, with its own threads."""

import functools
import importlib.util
from collections.abc import Mapping
from typing import Any

from . import peaks
from .samplers import Sampler
from .workers import Worker

_ABSENT = "not installed"
_MODULES = {"torch": "benchmarks.harness.foreign_torch", "jax": "benchmarks.harness.foreign_jax"}
# PyTorch's threads must not spin while others are measured.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "JAX_PLATFORMS": "cpu"}


@functools.cache
def _worker(framework: str) -> Worker:
    return Worker(_ENVIRONMENT)


def implementations(function: str, **arguments: Any) -> dict[str, Sampler | str]:
    """The results of `function` in the modules for PyTorch and JAX; a note for an absent framework."""
    found: dict[str, Sampler | str] = {}
    for framework, module in _MODULES.items():
        if _installed(framework):
            found.update(_worker(framework).build(f"{module}:{function}", **arguments))
        else:
            found[framework] = _ABSENT
    return found


def times_in(framework: str, function: str, **arguments: Any) -> Mapping[str, Sampler | str]:
    """The samplers that `module:function` builds."""
    return _worker(framework).build(function, **arguments) if _installed(framework) else {framework: _ABSENT}


def peak_in(framework: str, builder: str, **arguments: Any) -> Sampler | str:
    """The sampler that `module:function` builds, in a fresh process for each sample."""
    return peaks.InFreshProcess(builder, arguments, _ENVIRONMENT) if _installed(framework) else _ABSENT


def _installed(framework: str) -> bool:
    return importlib.util.find_spec(framework) is not None
