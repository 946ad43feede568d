"""Finds the sources of the two libraries in the folders that sources.bzl names; Bazel reads that file too."""

import pathlib
import runpy
from collections.abc import Sequence

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_FOLDERS = runpy.run_path(str(_ROOT / "build_ops" / "sources.bzl"))  # The file is valid Python.


def _find(*patterns: str) -> tuple[str, ...]:
    return tuple(str(path.relative_to(_ROOT)) for pattern in patterns for path in sorted(_ROOT.glob(pattern)))


UNITS: dict[str, list[str]] = _FOLDERS["UNITS"]
# The op library, and the library of the parts that need libtensorflow_cc. The slowest unit comes first, so that it does
# not compile alone at the end.
SOURCES = _find(*(f"{folder}/*.cc" for folder in [*UNITS["ops"], _FOLDERS["LIB"]]))
SOURCES_WITH_CC = (
    *_find(*(f"{folder}/*.cc" for folder in UNITS["ops_with_cc"])),
    *(f"cc/lib/{name}.cc" for name in ("alignment", "messages", "glibc_compatibility")),
)
# The source that replaces the kernels for NVIDIA GPUs without nvcc, and the kernels.
WITHOUT_CUDA = tuple(_FOLDERS["WITHOUT_CUDA"])
CUDA_SOURCES = tuple(source for source in _find("cuda/*.cu", "cuda/*.cc") if source not in WITHOUT_CUDA)


def units(sources: Sequence[str]) -> dict[str, list[str]]:
    """The sources that are compiled together, by the name of their unit. Every other source is its own unit."""
    unit_of = {folder: unit for unit, folders in UNITS.items() for folder in folders}
    by_name: dict[str, list[str]] = {}
    for source in sources:
        unit = unit_of.get(source.rpartition("/")[0], source.replace("/", "-"))
        by_name.setdefault(unit, []).append(source)
    return by_name
