"""Prints JSON for nvcc.bzl: how setup.py compiles and links kernels for NVIDIA GPUs, if there is nvcc."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from build_ops.compiler import find_compiler, hardening_flags
from build_ops.cuda import announcement, find_toolkit

toolkit, note = find_toolkit()
answer: dict[str, object] = {"note": announcement(toolkit, note)}
if toolkit:
    answer["command"] = toolkit.compile_command(hardening_flags(find_compiler()))
    answer["static_runtime"] = toolkit.static_runtime
    answer["link_flags"] = [flag for flag in toolkit.link_flags() if flag != toolkit.static_runtime]
print(json.dumps(answer))
