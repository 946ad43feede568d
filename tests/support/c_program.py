"""Compiles and runs the C program of examples/c_api."""

import functools
import os
import subprocess
import sys
import tempfile

import numpy as np

from .saved_models import proto_of
from .sources import ROOT

EXAMPLE = ROOT / "examples" / "c_api"


@functools.cache
def _program():
    """The program and the folder that keeps it until this process ends."""
    folder = tempfile.TemporaryDirectory()
    program = f"{folder.name}/gradient"
    subprocess.run(["make", "-s", "-C", EXAMPLE, f"PYTHON={sys.executable}", f"PROGRAM={program}"], check=True)
    return program, folder


def numbers(array):
    return ",".join(map(repr, np.asarray(array, float).ravel().tolist()))


def run(*arguments):
    """The numbers that the program prints, by name, or the text of its error."""
    arguments = [numbers(a) if isinstance(a, np.ndarray) else str(a) for a in arguments]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [_program()[0], *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        assert result.returncode == 1, result.stderr  # It did not crash.
        assert result.stdout == ""
        return result.stderr
    lines = [line.split(": ") for line in result.stdout.splitlines()]
    return {name: np.array(numbers.split(), float) for name, numbers in lines}


def run_signature(folder, name, inputs):
    """The results of a signature of a SavedModel by name, flat, from a process without any of our libraries."""
    signature = proto_of(folder).meta_graphs[0].signature_def[name]
    fed = [f"{signature.inputs[key].name}={numbers(value)}" for key, value in inputs.items()]
    tensors = {key: info.name for key, info in signature.outputs.items()}
    found = run("run", folder, *fed, *tensors.values())
    assert not isinstance(found, str), found
    return {key: found[tensor] for key, tensor in tensors.items()}
