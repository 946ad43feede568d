"""Prints JSON for tensorflow.bzl: how setup.py compiles with this Python's TensorFlow, and where that is."""

import importlib.util
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from build_ops.compiler import COMPILE_FLAGS, LINK_FLAGS, WITH_CC, find_compiler, hardening_flags
from build_ops.tensorflow import build_info, tensorflow_flags

about = build_info()  # If there is no TensorFlow, this exits and says what to do.
spec = importlib.util.find_spec("tensorflow")
assert spec is not None
assert spec.submodule_search_locations is not None
root = spec.submodule_search_locations[0]
compile_flags, link_flags = tensorflow_flags()
folders = [flag.removeprefix("-isystem") for flag in compile_flags if flag.startswith("-isystem")]
others = [flag for flag in compile_flags if not flag.startswith("-isystem")]
answer = {
    "python": sys.executable,
    "build_info": about,
    "headers": f"{root}/include",
    "folders": [os.path.relpath(folder, root) for folder in folders],
    "libraries": link_flags,
    "with_cc": WITH_CC,
    "compile_flags": [*COMPILE_FLAGS, *hardening_flags(find_compiler()), *others],
    "link_flags": [flag for flag in LINK_FLAGS if flag != "-shared"],  # Bazel adds it itself.
}
print(json.dumps(answer))
