"""The program that checks and times the kernels on a GPU: run on the emulated CUDA, and compiled by nvcc if there is.

In what nvcc made of the library, the loops of the kernels have so few instructions that memory limits the speed.
"""

import csv
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sysconfig

import pytest

import tf_cg_ops as cg
from build_ops import cuda, cuda_check
from build_ops.sources import CUDA_SOURCES

from ..support.contraction import compile_objects
from ..support.emulated_cuda import EMULATED_CUDA, FLAGS
from ..support.sources import ROOT


def build_emulated(folder, root=ROOT):
    """The check program of a copy of the sources, with CUDA emulated."""
    sources = [*cuda_check.SOURCES, *CUDA_SOURCES, f"{EMULATED_CUDA}/emulator.cc"]
    objects = compile_objects(sources, *FLAGS, folder=folder, root=root)
    subprocess.run(["g++", "-o", folder / "cuda_check", *objects], check=True)
    return folder / "cuda_check"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build_emulated(tmp_path_factory.mktemp("program"))


def run(program, *arguments, **environment):
    return subprocess.run([program, *arguments], capture_output=True, text=True, env={**os.environ, **environment})


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


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
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
    result = run(build_emulated(tmp_path, tmp_path), "--quick", "--only", case)
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


@pytest.mark.slow
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


def find_cuobjdump():
    """The one that pip installed with the extra `test`, or that of the toolkit."""
    installed = pathlib.Path(sysconfig.get_path("purelib")) / "nvidia/cu13/bin/cuobjdump"
    found = installed if installed.exists() else shutil.which("cuobjdump")
    assert found, "expected cuobjdump: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
    return pathlib.Path(found)


@pytest.fixture(scope="module")
def kernels():
    """The instructions of each kernel of the library, for the H200, as (address, opcode and operands).

    By its name without namespace and arguments.
    """
    if cg.sysconfig.gpu_kernels() == "the library was built without nvcc":
        pytest.skip(cg.sysconfig.gpu_kernels())
    cuobjdump = find_cuobjdump()
    # It calls nvdisasm, which is installed beside it.
    environment = {**os.environ, "PATH": f"{cuobjdump.parent}{os.pathsep}{os.environ['PATH']}"}
    command = [cuobjdump, "-sass", "-arch", "sm_90", cg.sysconfig.get_lib()]
    text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    text = subprocess.run(["c++filt"], input=text, check=True, capture_output=True, text=True).stdout
    found = {}
    for line in text.splitlines():
        if name := re.search(r"Function : (.+)", line):
            name = re.sub(r"^void |\(.*|tf_cg_ops::(cuda::)?|std::", "", name[1]).replace("> >", ">>")
            current = found.setdefault(name, [])
        elif instruction := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(\S.*?)\s*;", line):
            current.append((int(instruction[1], 16), instruction[2]))
    return found


def hot_loop(function):
    """How many instructions the shortest loop has that loads from global memory, and how many of them load.

    A loop goes from the target of a branch back to that branch. Everything in between counts, with the work at the end
    of a row or of the memory that may be there, and with a loop inside once.
    """
    loops = []
    for end, instruction in function:
        branch = re.match(r"(?:@!?U?P\d+ )?BRA(?:\.\S+)? (?:!?U?P\d+, )?0x([0-9a-f]+)", instruction)
        if branch and int(branch[1], 16) < end:
            body = [text for address, text in function if int(branch[1], 16) <= address <= end]
            loads = sum(bool(re.match(r"(@!?U?P\d+ )?LDG\.", text)) for text in body)
            if loads:
                loops.append((len(body), loads))
    return min(loops)


# Each thread has so many vectors or elements under way at once; see cuda/schedule.h.
UNROLL = 4
# The instructions that a warp may spend to read two operands and write one, for 0.92 of a copy's speed on an H200: for
# vectors of 16 bytes, and for single elements of 4 and of 2 bytes.
VECTOR, FLOAT, HALF = 370, 93, 46

# The instructions that a warp spends for one vector or element, at most. Kernels that move less memory for it may spend
# as much less.
BUDGETS = {
    "MultiplyFlatKernel<{}, true, true>": VECTOR,
    "MultiplyFlatKernel<{}, true, false>": VECTOR,
    "MultiplyFlatKernel<{}, false, true>": VECTOR * 2 // 3,
    "MultiplyFlatKernel<{}, false, false>": VECTOR * 2 // 3,
    "MultiplyRowsKernel<{}, true>": VECTOR,
    "MultiplyRowsKernel<{}, false>": VECTOR * 2 // 3,
}
for kernel in ("SumRowsKernel", "SumColumnsKernel"):
    for has_one_loop in ("true", "false"):
        BUDGETS[f"{kernel}<{{0}}, VectorReader<{{0}}, true, {has_one_loop}>>"] = VECTOR * 2 // 3
        BUDGETS[f"{kernel}<{{0}}, VectorReader<{{0}}, false, {has_one_loop}>>"] = VECTOR // 3
    BUDGETS[f"{kernel}<{{0}}, ScalarReader<{{0}}, unsigned int>>"] = VECTOR * 2 // 3
TYPES = ("Half", "BFloat16", "float", "double", "complex<float>", "complex<double>")


@pytest.mark.parametrize("kernel", BUDGETS)
def test_the_loop_over_vectors_keeps_the_budget(kernels, kernel):
    """A trip of the loop has several vectors."""
    for dtype in TYPES:
        # A vector of complex128 has one element: other kernels do the same work.
        if dtype == "complex<double>" and ("MultiplyRows" in kernel or (", false>" in kernel and "Flat" in kernel)):
            continue
        instructions, _ = hot_loop(kernels[kernel.format(dtype)])
        assert instructions / (1 if "ScalarReader" in kernel else UNROLL) <= BUDGETS[kernel], dtype


@pytest.mark.parametrize(
    ("dtype", "budget"), [("float", FLOAT), ("Half", HALF), ("BFloat16", HALF), ("double", 2 * FLOAT)]
)
def test_single_elements_keep_the_budget(kernels, dtype, budget):
    instructions, loads = hot_loop(kernels[f"MultiplyScalarKernel<{dtype}, unsigned int>"])
    assert loads == 2 * UNROLL
    assert instructions / UNROLL <= budget


def test_vectors_are_read_at_once(kernels):
    """So that the loops above are those that read operands, and all of it."""
    for dtype in TYPES:
        names = [
            f"{name}<{dtype}, VectorReader<{dtype}, true, true>>" for name in ("SumRowsKernel", "SumColumnsKernel")
        ]
        for name in (f"MultiplyFlatKernel<{dtype}, true, true>", *names):
            assert hot_loop(kernels[name])[1] == 2 * UNROLL


def test_the_plain_product_is_as_short_as_one_written_by_hand(kernels):
    """A kernel for float4 alone, with 32-bit indices, has 88 instructions for one vector."""
    assert len(kernels["MultiplyFlatKernel<float, true, true>"]) <= 2 * 88
