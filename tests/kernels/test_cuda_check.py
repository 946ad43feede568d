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

from ..support.emulated_cuda import EMULATED_CUDA, FLAGS
from ..support.sources import ROOT


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


def test_the_program_checks_every_kernel_and_writes_the_times(program, tmp_path):
    result = run(program, "--quick", "--csv", tmp_path / "times.csv")
    assert result.returncode == 0, result.stdout
    assert re.search(r"^\d{5} results checked, 0 wrong\.$", result.stdout, re.MULTILINE)
    with open(tmp_path / "times.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["dtype"] for row in rows} == {"float16", "bfloat16", "float32", "float64", "complex64", "complex128"}
    assert all(float(row["milliseconds"]) > 0 for row in rows)
    # One line of the table for each, too.
    assert len(re.findall(r"^\| .* \| \w+\d+ \|", result.stdout, re.MULTILINE)) == len(rows) == 16 * 6


# The text of the sources, the fault put in its place, and a case that shows it.
FAULTS = {
    "a sum that leaves a warp out": ("warp = 1; warp < kThreads", "warp = 2; warp < kThreads", "sum of 64 rows"),
    "a tail that nothing computes": ("threadIdx.x < scalars", "threadIdx.x < head", "same"),
    "a vector written where columns end": ("if (i < count) Write<T, I>", "Write<T, I>", "sum of columns"),
    "products rounded before they are added": (
        "static_cast<double>(lhs), static_cast<double>(rhs), sum",
        "static_cast<double>(lhs * rhs), 1.0, sum",
        "sum of columns",
    ),
}


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=pytest.mark.slow) if i else fault for i, fault in enumerate(FAULTS)]
)
def test_the_program_finds_injected_faults(fault, tmp_path):
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


def test_the_program_reports_a_missing_gpu_and_wrong_arguments(program):
    no_gpu = run(program, EMULATED_CUDA_DEVICES="0")
    assert (no_gpu.returncode, no_gpu.stdout) == (2, "")
    assert no_gpu.stderr == "cuda_check: there is no GPU here; expected one that the driver knows.\n"
    wrong = run(program, "--fast")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("cuda_check: wrong argument --fast; expected --quick ")
    nothing = run(program, "--quick", "--only", "no such case")
    assert nothing.returncode == 2
    assert nothing.stderr == "cuda_check: no case has 'no such case' in its name.\n"


ANOTHER_GPU = "GPU 0 has compute capability {}; expected one that the library has code for: 7.5, 8.0, 9.0, or newer"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, ""),
        # Compiled are 7.5, 8.0, 9.0, and a form that the driver can translate for all that come after.
        ({"CAPABILITY": "75"}, ""),
        ({"CAPABILITY": "89"}, ""),
        ({"CAPABILITY": "120"}, ""),
        ({"CAPABILITY": "80", "INTEGRATED": "1"}, ""),
        ({"CAPABILITY": "87", "INTEGRATED": "1"}, ANOTHER_GPU.format("8.7")),
        ({"CAPABILITY": "70"}, ANOTHER_GPU.format("7.0")),
        ({"DRIVER": "14000"}, ""),
        # A driver of the same major version runs code for its GPUs, but may not translate what a newer nvcc wrote.
        ({"DRIVER": "13000"}, ""),
        (
            {"DRIVER": "13000", "CAPABILITY": "120"},
            "GPU 0 needs a driver that translates code for it; expected one for CUDA 13.1 or newer, got one for CUDA 13.0",
        ),
        (
            {"DRIVER": "12090"},
            "the driver is for CUDA 12.9; expected one for CUDA 13 or newer, since the library was built with nvcc 13.1",
        ),
        ({"DRIVER": "0"}, "there is no NVIDIA driver"),
    ],
    ids=str,
)
def test_kernels_run_where_the_driver_and_every_gpu_can_run_them(program, settings, why):
    settings = {f"EMULATED_CUDA_{name}": value for name, value in settings.items()}
    result = run(program, "--quick", "--only", "scalar", **settings)
    assert result.returncode == (2 if why else 0)
    assert result.stderr == (f"cuda_check: the kernels cannot run here: {why}.\n" if why else "")


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
