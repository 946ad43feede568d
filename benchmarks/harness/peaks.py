"""The peak of resident memory while a function runs, taken in a process that does nothing else."""

import functools
import pathlib
import re
from collections.abc import Callable
from typing import Any

from .workers import Worker


@functools.cache
def worker() -> Worker:
    """A process in which every large block goes back to the system at once: resident memory is in use.

    Without the optimisations of oneDNN, whose allocator keeps freed memory.
    """
    return Worker({"TF_ENABLE_ONEDNN_OPTS": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"})


class Peak:
    """The units by which the peak exceeds the memory resident before the call."""

    def __init__(self, function: Callable[[], Any], unit_bytes: int) -> None:
        self._function = function
        self._unit_bytes = unit_bytes

    def prepare(self, seconds: float) -> None:
        """Traces, and lets TensorFlow make what it keeps."""
        self._function()

    def sample(self) -> float:
        """The excess of one call."""
        # Sets the peak back to what is resident now: see proc_pid_clear_refs(5).
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        self._function()
        return max(0, _status("VmHWM") - before) / self._unit_bytes


def _status(field: str) -> int:
    found = re.search(rf"^{field}:\s*(\d+) kB", pathlib.Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found, field
    return int(found.group(1)) * 1024
