"""Builds the program that checks and times the kernels on a GPU: python3 -m build_ops.cuda_check PROGRAM.

It needs nvcc and nothing else.
"""

import pathlib
import sys

from .compiler import ROOT, run
from .cuda import Toolkit, find_toolkit
from .sources import CUDA_SOURCES

# Beside the kernels: the program itself, and the shape rules that plan the work.
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
    # It is linked with the toolkit's static runtime, which is nvcc's default.
    run([*toolkit.compile_command(), "-Werror", "all-warnings", "-o", str(program), *SOURCES, *CUDA_SOURCES])


def main() -> None:
    """The command line."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python3 -m build_ops.cuda_check PROGRAM")
    toolkit, note = find_toolkit()
    if toolkit is None:
        raise SystemExit(f"tf_cg_ops: cuda_check is compiled by nvcc; found {note}.")
    build(toolkit, ROOT / sys.argv[1])


if __name__ == "__main__":
    main()
