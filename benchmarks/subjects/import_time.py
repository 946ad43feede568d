"""The time of `import tf_cg_ops` after TensorFlow is imported, beside that import. Every sample is a process."""

import functools
import subprocess
import sys
from collections.abc import Mapping

from .. import program
from ..harness.measurement import Case, Settings
from ..harness.record import ROOT
from ..harness.samplers import Number, Sampler

SUBJECT = "import_time"
OURS = "tf_cg_ops, after TensorFlow"

_SCRIPT = """
import importlib, sys, time
for name in sys.argv[1:]:
    start = time.perf_counter()
    importlib.import_module(name)
print(time.perf_counter() - start)
"""


def _seconds(*modules: str) -> float:
    """The time of the last of some imports."""
    command = [sys.executable, "-c", _SCRIPT, *modules]
    return float(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout)


def _build(with_probability: bool) -> Mapping[str, Sampler | str]:
    samplers: dict[str, Sampler | str] = {
        OURS: Number(functools.partial(_seconds, "tensorflow", "tf_cg_ops")),
        "tensorflow": Number(functools.partial(_seconds, "tensorflow")),
    }
    if with_probability:
        modules = "tensorflow", "tensorflow_probability"
        samplers["tensorflow_probability, after TensorFlow"] = Number(functools.partial(_seconds, *modules))
    return samplers


def cases(settings: Settings) -> list[Case]:
    """One case."""
    build = functools.partial(_build, settings.pick(True, False))
    return [Case(SUBJECT, "import", build, (OURS,), rounds=settings.pick(3, 1))]


if __name__ == "__main__":
    program.run(cases)
