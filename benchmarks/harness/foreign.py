"""The same job in other frameworks, where they are installed: each in a process of its own, with its own threads."""

import functools
import importlib.util
from typing import Any

from .samplers import Sampler
from .workers import Worker

_MODULES = {"torch": "benchmarks.harness.foreign_torch", "jax": "benchmarks.harness.foreign_jax"}


@functools.cache
def _worker(framework: str) -> Worker:
    # OMP_WAIT_POLICY: PyTorch's threads must not spin while others are measured.
    return Worker({"OMP_WAIT_POLICY": "passive", "JAX_PLATFORMS": "cpu"})


def implementations(function: str, **arguments: Any) -> dict[str, Sampler | str]:
    """The results of `function` in the modules for PyTorch and JAX; a note for an absent framework."""
    found: dict[str, Sampler | str] = {}
    for framework, module in _MODULES.items():
        if importlib.util.find_spec(framework) is None:
            found[framework] = "not installed"
        else:
            found.update(_worker(framework).build(f"{module}:{function}", **arguments))
    return found
