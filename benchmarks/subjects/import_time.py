"""The time of `import tf_cg_ops` after TensorFlow is imported, beside that import. Every sample is a process.

Python has compiled the modules before, as pip does when it installs a package.
"""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from .. import program
from ..harness.measurement import Case, Settings
from ..harness.names import IMPORT
from ..harness.record import ROOT
from ..harness.samplers import Sampler

SUBJECT = "import_time"

_SCRIPT = """
import importlib, sys, time
for name in sys.argv[1:]:
    start = time.perf_counter()
    importlib.import_module(name)
print(time.perf_counter() - start)
"""


class _Import:
    """Samples the seconds of the last of some imports."""

    def __init__(self, folder: str, *modules: str) -> None:
        self._command = [sys.executable, "-c", _SCRIPT, *modules]
        self._environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def prepare(self, seconds: float) -> None:
        """Has all modules compiled."""
        self.sample()

    def sample(self) -> float:
        """The time in a new process."""
        process = subprocess.run(
            self._command, cwd=ROOT, env=self._environment, stdout=subprocess.PIPE, text=True, check=True
        )
        return float(process.stdout)


def _build(with_probability: bool) -> Mapping[str, Sampler | str]:
    folder = tempfile.mkdtemp(prefix="tf_cg_ops_bytecode_")
    atexit.register(shutil.rmtree, folder)
    samplers: dict[str, Sampler | str] = {
        IMPORT: _Import(folder, "tensorflow", "tf_cg_ops"),
        "tensorflow": _Import(folder, "tensorflow"),
    }
    if with_probability:
        modules = "tensorflow", "tensorflow_probability"
        samplers["tensorflow_probability, after TensorFlow"] = _Import(folder, *modules)
    return samplers


def cases(settings: Settings) -> list[Case]:
    """One case."""
    build = functools.partial(_build, settings.pick(True, False))
    return [Case(SUBJECT, "import", build, (IMPORT,), rounds=settings.pick(5, 1))]


if __name__ == "__main__":
    program.run(cases)
