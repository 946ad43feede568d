"""The time of a build of the op library in which nothing is compiled yet, without ccache, on all cores.

`with nvcc` also compiles the kernels for GPUs; without nvcc, the build leaves them out.
"""

import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

from build_ops.cuda import find_toolkit

from .. import program
from ..harness.measurement import Case, Settings
from ..harness.names import WITH_NVCC, WITHOUT_NVCC
from ..harness.record import ROOT
from ..harness.samplers import Number, Sampler

SUBJECT = "build_time"

_ALL = "from build_ops import compiler; import pathlib; compiler.build_libraries(pathlib.Path('.'))"
_ONE_FILE = "from build_ops import compiler; compiler.compile_units(['cc/lib/alignment.cc'], None)"


def _seconds(script: str, with_nvcc: bool) -> float:
    """The time of the build in a copy of the sources."""
    variables = {"CCACHE_DISABLE": "1", "TF_CG_OPS_WERROR": "0", "TF_CG_OPS_CUDA": "1" if with_nvcc else "0"}
    with tempfile.TemporaryDirectory(prefix="tf_cg_ops_build_") as folder:
        for name in ("build_ops", "cc", "cuda"):
            shutil.copytree(ROOT / name, pathlib.Path(folder, name))
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=folder,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            check=True,
        )
        return time.perf_counter() - start


def _build(script: str) -> Mapping[str, Sampler | str]:
    toolkit, _ = find_toolkit()
    nvcc = Number(functools.partial(_seconds, script, True)) if toolkit else "not measured: there is no nvcc"
    return {WITHOUT_NVCC: Number(functools.partial(_seconds, script, False)), WITH_NVCC: nvcc}


def cases(settings: Settings) -> list[Case]:
    """One case."""
    script = settings.pick(_ALL, _ONE_FILE)
    return [Case(SUBJECT, "cold build", functools.partial(_build, script), (WITHOUT_NVCC,), rounds=1)]


if __name__ == "__main__":
    program.run(cases)
