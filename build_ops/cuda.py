"""Finds nvcc, and compiles the kernels for NVIDIA GPUs with it."""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Sequence

# The oldest toolkit that has what the kernels use (cudaLaunchKernelEx, __grid_constant__, the list of architectures).
OLDEST_TOOLKIT = (12, 0)

# Turing: the oldest that nvcc 13 compiles for.
OLDEST_ARCHITECTURE = 75

NVCC_FLAGS = (
    "-O3",
    "-std=c++17",
    # Products are rounded before they are added, as on the CPU.
    "-fmad=false",
    "-Xcompiler",
    "-fPIC,-Wall,-Wextra",
    "--threads",
    "0",
    # Otherwise the names of temporary files, with nvcc's process number in them, end up in the object.
    "--objdir-as-tempdir",
)


# Compression reduces the GPU code to a third. Every driver for CUDA 13 reads it; some drivers for CUDA 12 do not.
COMPRESSION_FLAGS = ("--compress-mode=size",)
FIRST_WITH_COMPRESSION = (13, 0)


@dataclasses.dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit that can compile the kernels."""

    nvcc: str
    version: tuple[int, ...]
    architectures: tuple[int, ...]
    static_runtime: str

    def compile_command(self, host_flags: Sequence[str] = ()) -> list[str]:
        """The command for all architectures: machine code for each, and code that drivers can translate for later ones.

        `host_flags` are for the compiler of the host code.
        """
        for_host = [argument for flag in host_flags for argument in ("-Xcompiler", flag)]
        flags = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in self.architectures]
        newest = self.architectures[-1]
        return [
            self.nvcc,
            *NVCC_FLAGS,
            *(COMPRESSION_FLAGS if self.version >= FIRST_WITH_COMPRESSION else ()),
            *for_host,
            *flags,
            f"-gencode=arch=compute_{newest},code=compute_{newest}",
            "-I.",
        ]

    def link_flags(self) -> list[str]:
        """The libraries of the CUDA runtime; TensorFlow's export functions of the same names, so these come first.

        If the library used TensorFlow's functions, it would not load with `tensorflow-cpu`.
        """
        return [self.static_runtime, "-Wl,--exclude-libs,libcudart_static.a", "-lrt", "-lpthread", "-ldl"]


def find_toolkit() -> tuple[Toolkit | None, str]:
    """The toolkit to build with, if any, and a description of what was found or is missing.

    TF_CG_OPS_CUDA=0 builds without one; TF_CG_OPS_CUDA=1 makes a missing one an error.
    """
    wish = os.environ.get("TF_CG_OPS_CUDA")
    if wish == "0":
        return None, "TF_CG_OPS_CUDA=0"
    toolkit, note = _look_for_toolkit()
    if toolkit is None and wish == "1":
        raise SystemExit(f"tf_cg_ops: TF_CG_OPS_CUDA=1 needs nvcc, but the build found {note}.")
    return toolkit, note


def announcement(toolkit: Toolkit | None, note: str) -> str:
    """The line that a build prints about CUDA."""
    if toolkit is None:
        return f"{note}: building for the CPU; on GPUs the ops use TensorFlow's own kernels"
    return f"{note}: building for GPUs, too"


def _look_for_toolkit() -> tuple[Toolkit | None, str]:
    home = os.environ.get("CUDA_HOME")
    nvcc = shutil.which("nvcc", path=os.path.join(home, "bin") if home else None)
    if nvcc is None:
        return None, f"no nvcc in CUDA_HOME={home}" if home else "no nvcc on PATH, and no CUDA_HOME"
    release = re.search(r"release (\d+)\.(\d+)", _output(nvcc, "--version"))
    version = tuple(map(int, release.groups())) if release else ()
    if version < OLDEST_TOOLKIT:
        found = ".".join(release.groups()) if release else "of an unknown version"
        return None, f"an nvcc that is {found}, older than {'.'.join(map(str, OLDEST_TOOLKIT))} ({nvcc})"
    architectures = _architectures(_output(nvcc, "--list-gpu-code"))
    toolkit = Toolkit(nvcc, version, architectures, _static_runtime(nvcc))
    listed = ", ".join(f"sm_{architecture}" for architecture in architectures)
    return toolkit, f"nvcc {'.'.join(map(str, version))} ({nvcc}), for {listed} and newer"


def _architectures(listed: str) -> tuple[int, ...]:
    """The first architecture of each generation; its code runs on the rest of the generation."""
    generations: dict[int, int] = {}
    for number in sorted(int(n) for n in re.findall(r"^sm_(\d+)$", listed, re.MULTILINE)):
        if number >= OLDEST_ARCHITECTURE:
            generations.setdefault(number // 10, number)
    return tuple(generations.values())


def _static_runtime(nvcc: str) -> str:
    """The path of the toolkit's runtime, as nvcc reports it; nvcc itself can be a script somewhere else."""
    dry_run = subprocess.run(
        [nvcc, "--dryrun", "-c", "-x", "cu", os.devnull, "-o", os.devnull],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    ).stdout
    for folder in re.findall(r'"-L([^"]*)"', dry_run):
        library = pathlib.Path(folder) / "libcudart_static.a"
        if library.exists():
            return str(library.resolve())
    raise SystemExit(
        f"tf_cg_ops: the toolkit of {nvcc} has no libcudart_static.a. Install the toolkit's development files, or set "
        "TF_CG_OPS_CUDA=0 to build without CUDA."
    )


def _output(nvcc: str, option: str) -> str:
    return subprocess.run([nvcc, option], stdout=subprocess.PIPE, text=True, check=True).stdout
