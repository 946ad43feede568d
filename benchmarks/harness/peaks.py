"""The peak of resident memory while a function runs, taken in a process that does nothing else."""

import functools
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from .samplers import Sampler
from .workers import Worker

# Every large block goes back to the system at once, so all resident memory is in use. TensorFlow's oneDNN optimizations
# are off because their allocator keeps freed memory.
ENVIRONMENT = {"TF_ENABLE_ONEDNN_OPTS": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


@functools.cache
def _worker() -> Worker:
    return Worker(ENVIRONMENT)


def in_worker(function: str, **arguments: Any) -> Mapping[str, Sampler]:
    """The samplers that `module:function` returns, in a process in which resident memory is in use."""
    return _worker().build(function, **arguments)


class Peak:
    """By how many units the peak exceeds the memory that was resident before the call."""

    def __init__(self, function: Callable[[], Any], unit_bytes: int) -> None:
        self._function = function
        self._unit_bytes = unit_bytes

    def prepare(self, seconds: float) -> None:
        """Traces, so that TensorFlow allocates what it keeps."""
        self._function()

    def sample(self) -> float:
        """The excess of one call."""
        # Sets the peak back to what is resident now: see proc_pid_clear_refs(5).
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        before = resident_bytes()
        self._function()
        return max(0, _status("VmHWM") - before) / self._unit_bytes


class OfFirstCall(Peak):
    """The peak of the first call after tracing, so that memory freed by an earlier call cannot hide it.

    For one sample only: see InFreshProcess.
    """

    def prepare(self, seconds: float) -> None:
        """Traces and compiles."""
        self._function = self._function()


class OfProcess(Peak):
    """By how much a process grows in its first three calls, tracing included."""

    def prepare(self, seconds: float) -> None:
        """Nothing."""

    def sample(self) -> float:
        """The growth, whatever the allocators keep."""
        before = resident_bytes()
        for _ in range(3):
            self._function()
        return (_status("VmHWM") - before) / self._unit_bytes


class InFreshProcess:
    """A sampler that a process of its own builds for each sample."""

    def __init__(
        self, builder: str, arguments: Mapping[str, Any], environment: Mapping[str, str] = ENVIRONMENT
    ) -> None:
        """`builder`: a `module:function` that returns one sampler, given the arguments."""
        self._builder = builder
        self._arguments = arguments
        self._environment = environment

    def prepare(self, seconds: float) -> None:
        """Nothing: the process prepares."""

    def sample(self) -> float:
        """One sample."""
        worker = Worker(self._environment)
        try:
            (sampler,) = worker.build(self._builder, **self._arguments).values()
            sampler.prepare(0.0)
            return sampler.sample()
        finally:
            worker.end()


def resident_bytes() -> int:
    """The memory that this process holds now."""
    return _status("VmRSS")


def _status(field: str) -> int:
    found = re.search(rf"^{field}:\s*(\d+) kB", pathlib.Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found, field
    return int(found.group(1)) * 1024
