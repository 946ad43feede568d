"""Builds the program that checks and times the kernels on a GPU: python3 -m build_ops.cuda_check PROGRAM.

It needs only nvcc.
"""

import pathlib
import sys

from .compiler import ROOT, run
from .cuda import Toolkit, find_toolkit
from .sources import CUDA_SOURCES

# The program itself, and the shape rules that plan the work; the kernels are added below.
SOURCES = (
    "cuda/check/main.cc",
    "cuda/check/read.cu",
    "cc/lib/alignment.cc",
    "cc/lib/contraction_plan.cc",
    "cc/lib/messages.cc",
)


def build(toolkit: Toolkit, program: pathlib.Path) -> None:
    """Compiles and links the program."""
    program.parent.mkdir(parents=True, exist_ok=True)
    # By default nvcc links the toolkit's static runtime.
    run([*toolkit.compile_command(), "-Werror", "all-warnings", "-o", str(program), *SOURCES, *CUDA_SOURCES])


def main() -> None:
    """The command line."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python3 -m build_ops.cuda_check PROGRAM")
    toolkit, note = find_toolkit()
    if toolkit is None:
        raise SystemExit(f"tf_cg_ops: cuda_check needs nvcc, but the build found {note}.")
    build(toolkit, ROOT / sys.argv[1])


if __name__ == "__main__":
    main()
