"""The program that checks and times the kernels on a GPU: run on the emulated CUDA, and compiled by nvcc if there is."""

import csv
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from build_ops import cuda, cuda_check
from build_ops.sources import CUDA_SOURCES

from .support.emulated import EMULATED_CUDA, FLAGS
from .support.sources import ROOT


def build_emulated(program, folder=ROOT):
    """The check program of a copy of the sources, with CUDA emulated."""
    sources = [*cuda_check.SOURCES, *CUDA_SOURCES, f"{EMULATED_CUDA}/emulator.cc"]
    command = ["g++", "-std=c++17", "-O2", "-ffp-contract=off", "-I.", *FLAGS, "-o", program]
    subprocess.run([*command, "-x", "c++", *sources], cwd=folder, check=True)
    return program


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build_emulated(tmp_path_factory.mktemp("program") / "cuda_check")


def run(program, *arguments, **environment):
    return subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_it_finds_every_kernel_right_and_writes_the_times(program, tmp_path):
    result = run(program, "--quick", "--csv", tmp_path / "times.csv")
    assert result.returncode == 0, result.stdout
    assert re.search(r"^\d{5} results checked, 0 wrong\.$", result.stdout, re.MULTILINE)
    with open(tmp_path / "times.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["dtype"] for row in rows} == {"float16", "bfloat16", "float32", "float64", "complex64", "complex128"}
    assert all(float(row["milliseconds"]) > 0 for row in rows)
    # One line of the table for each, too.
    assert len(re.findall(r"^\| .* \| \w+\d+ \|", result.stdout, re.MULTILINE)) == len(rows) == 16 * 6


# What is right, what is not, and a case that shows it.
FAULTS = {
    "a sum that leaves a warp out": ("warp = 1; warp < kThreads", "warp = 2; warp < kThreads", "sum of 64 rows"),
    "a pack written where a row ends": ("kPack<T> && operands[u].count == width", "kPack<T>", "same"),
}


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=pytest.mark.slow) if i else fault for i, fault in enumerate(FAULTS)]
)
def test_it_finds_faults(fault, tmp_path):
    right, wrong, case = FAULTS[fault]
    for folder in ("cc", "cuda", "tests/support/emulated_cuda"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    faulty = 0
    for path in (tmp_path / "cuda").glob("*.cuh"):
        text = path.read_text()
        faulty += text.count(right)
        path.write_text(text.replace(right, wrong))
    assert faulty == 1
    result = run(build_emulated(tmp_path / "cuda_check", tmp_path), "--quick", "--only", case)
    assert result.returncode == 1
    assert re.search(r"^WRONG: .*: error ", result.stdout, re.MULTILINE)
    assert re.search(r"results checked, [1-9]\d* wrong\.$", result.stdout, re.MULTILINE)


def test_it_says_what_is_missing(program):
    no_gpu = run(program, EMULATED_CUDA_DEVICES="0")
    assert (no_gpu.returncode, no_gpu.stdout) == (2, "")
    assert no_gpu.stderr == "cuda_check: there is no GPU here; expected one that the driver knows.\n"
    wrong = run(program, "--fast")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("cuda_check: wrong argument --fast; expected --quick ")
    nothing = run(program, "--quick", "--only", "no such case")
    assert nothing.returncode == 2
    assert nothing.stderr == "cuda_check: no case has 'no such case' in its name.\n"


@pytest.mark.parametrize(
    ("settings", "runs"),
    [
        ({}, True),
        # Compiled are 7.5, 8.0, 9.0, and what a driver can translate for all that come after.
        ({"EMULATED_CUDA_CAPABILITY": "75"}, True),
        ({"EMULATED_CUDA_CAPABILITY": "89"}, True),
        ({"EMULATED_CUDA_CAPABILITY": "120"}, True),
        ({"EMULATED_CUDA_CAPABILITY": "80", "EMULATED_CUDA_INTEGRATED": "1"}, True),
        ({"EMULATED_CUDA_CAPABILITY": "87", "EMULATED_CUDA_INTEGRATED": "1"}, False),
        ({"EMULATED_CUDA_CAPABILITY": "70"}, False),
        ({"EMULATED_CUDA_DRIVER": "13010"}, True),
        ({"EMULATED_CUDA_DRIVER": "12090"}, False),
        ({"EMULATED_CUDA_DRIVER": "0"}, False),
    ],
    ids=str,
)
def test_kernels_run_where_the_driver_and_every_gpu_can_run_them(program, settings, runs):
    result = run(program, "--quick", "--only", "scalar", **settings)
    assert result.returncode == (0 if runs else 2)
    assert ("the kernels cannot run here" in result.stderr) == (not runs)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_nvcc_compiles_it_without_warnings(tmp_path):
    """For one architecture here; the build of the library compiles the same kernels for all."""
    toolkit, _ = cuda.find_toolkit()
    program = tmp_path / "cuda_check"
    cuda_check.build(dataclasses.replace(toolkit, architectures=toolkit.architectures[-1:]), program)
    if pathlib.Path("/dev/nvidia0").exists():
        assert run(program, "--quick").returncode == 0
    else:
        result = run(program)
        assert (result.returncode, result.stderr.split(";")[0]) == (2, "cuda_check: there is no GPU here")
