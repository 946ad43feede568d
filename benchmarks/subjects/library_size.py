"""The parts of the op library, in kB: machine code by its origin, code for GPUs, and the names of functions."""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping

import tf_cg_ops as cg

from .. import program
from ..harness.measurement import Case, Settings
from ..harness.names import LIBRARY_FILE
from ..harness.samplers import Number, Sampler

SUBJECT = "library_size"
# Patterns for the names of functions; the first that matches counts.
_CODE = {
    "kernels for AVX-512": r"tf_cg_ops::avx512\b",
    "kernels for AVX2": r"tf_cg_ops::avx2\b",
    "kernels for any processor": r"tf_cg_ops::baseline\b",
    "calls of the GPU's kernels": r"tf_cg_ops::cuda\b",
    "ops, gradients and passes": r"tf_cg_ops",
    "NVIDIA's runtime library": r"cuda",
    "functions of headers": r"",
}
# Sections of the file by their names.
_SECTIONS = {"code for GPUs": (".nv_fatbin",), "names of functions": (".symtab", ".strtab")}


@functools.cache
def _sizes() -> dict[str, int]:
    library = cg.sysconfig.get_lib()
    functions = re.findall(r"^[0-9a-f]+ ([0-9a-f]+) [tTwW] (.*)$", _output("nm", "-C", "-S", library), re.MULTILINE)
    found = dict.fromkeys(_CODE, 0)
    for size, name in functions:
        found[next(part for part, pattern in _CODE.items() if re.search(pattern, name))] += int(size, 16)
    listed = _output("readelf", "-SW", library)
    sections = {
        name: int(size, 16)
        for name, size in re.findall(r"\] (\.\S+) +[A-Z_]+ +[0-9a-f]+ [0-9a-f]+ ([0-9a-f]+) ", listed)
    }
    for part, names in _SECTIONS.items():
        found[part] = sum(sections.get(name, 0) for name in names)
    return found


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _build() -> Mapping[str, Sampler | str]:
    if not shutil.which("nm") or not shutil.which("readelf"):
        return dict.fromkeys((LIBRARY_FILE, *_CODE, *_SECTIONS), "not measured: there is no nm or no readelf")
    samplers: dict[str, Sampler] = {LIBRARY_FILE: Number(lambda: os.path.getsize(cg.sysconfig.get_lib()) / 1000)}
    for part in (*_CODE, *_SECTIONS):
        samplers[part] = Number(lambda part=part: _sizes()[part] / 1000)
    return samplers


def cases(settings: Settings) -> list[Case]:
    """One case: the parts of the file."""
    return [Case(SUBJECT, "parts of the op library", _build, (LIBRARY_FILE,), "kB", rounds=1)]


if __name__ == "__main__":
    program.run(cases)
