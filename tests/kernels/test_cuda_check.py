"""The program that checks and times the kernels on a GPU: run on emulated CUDA, and compiled by nvcc if there is one.

In the code that nvcc made for the library, the kernels' loops have so few instructions that memory limits the speed.
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

from ..support.sources import ROOT
from .contraction import compile_objects
from .emulated_cuda import EMULATED_CUDA, FLAGS


def build_emulated(folder, root=ROOT):
    """The check program of the sources, or of a copy, with CUDA emulated."""
    objects = compile_objects([*cuda_check.SOURCES, *CUDA_SOURCES, f"{EMULATED_CUDA}/emulator.cc"], *FLAGS, root=root)
    subprocess.run(["g++", "-o", folder / "cuda_check", *objects], check=True)
    return folder / "cuda_check"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build_emulated(tmp_path_factory.mktemp("program"))


def run(program, *arguments, settings=""):
    """`settings`: of the emulated GPU, such as "CAPABILITY=75"."""
    emulated = dict(f"EMULATED_CUDA_{setting}".split("=") for setting in settings.split())
    return subprocess.run([program, *arguments], capture_output=True, text=True, env={**os.environ, **emulated})


@pytest.mark.parametrize(
    ("only", "num_cases"), [("1001", 3), pytest.param("", 16, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_the_program_checks_the_kernels_and_writes_the_times(only, num_cases, program, tmp_path):
    """All cases take a minute; test_contraction.py runs the kernels on more."""
    result = run(program, "--quick", "--csv", tmp_path / "times.csv", "--only", only)
    assert result.returncode == 0, result.stdout
    assert re.search(r"^\d{2,5} results checked, 0 wrong\.$", result.stdout, re.MULTILINE)
    with open(tmp_path / "times.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["dtype"] for row in rows} == {"float16", "bfloat16", "float32", "float64", "complex64", "complex128"}
    assert all(float(row["milliseconds"]) > 0 for row in rows)
    # One line of the table for each, too.
    assert len(re.findall(r"^\| .* \| \w+\d+ \|", result.stdout, re.MULTILINE)) == len(rows) == num_cases * 6


# Text in the sources, a fault to replace it with, and a case that shows the fault.
FAULTS = {
    "a sum that leaves a warp out": ("warp = 1; warp < kThreads", "warp = 2; warp < kThreads", "sum of 64 rows"),
    "a tail that nothing computes": ("threadIdx.x < scalars", "threadIdx.x < scalars && threadIdx.x < head", "same"),
    "a vector written where columns end": ("if (columns.Has(i)) Write<T, I>", "Write<T, I>", "sum of columns"),
    "a segment that ends too early": ("kSegment - lane)", "kSegment - lane - 1)", "[n, 1001] * [1001]"),
    "sums of others": ("shared[threadIdx.x * kSize + i]", "shared[threadIdx.x + i * kThreads]", "sum of rows"),
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
    for folder in ("cc", "cuda", "tests/kernels/emulated_cuda"):
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


def test_one_type_is_checked_or_timed(program):
    checked = run(program, "--quick", "--only", "scalar", "--dtype", "float64").stdout
    assert re.findall(r"^checked (\w+)", checked, re.MULTILINE) == ["float64"]
    assert set(re.findall(r"^\| .* \| (\w+) \| 1 \|", checked, re.MULTILINE)) == {"float64"}
    timed = run(program, "--quick", "--only", "scalar", "--times").stdout
    assert "\n0 results checked, 0 wrong." in timed
    assert "| float16 |" in timed


ANOTHER_GPU = "GPU 0 has compute capability {}, but the library has code for 7.5, 8.0, 9.0, and newer"
# Settings of the emulated GPU, and why the kernels cannot run there. The library has code for 7.5, 8.0 and 9.0, and code that
# a driver can translate for all later GPUs, unless it is older than nvcc.
GPUS = {
    "CAPABILITY=75": "",
    "CAPABILITY=120": "",
    "CAPABILITY=80 INTEGRATED=1": "",
    "CAPABILITY=87 INTEGRATED=1": ANOTHER_GPU.format("8.7"),
    "CAPABILITY=70": ANOTHER_GPU.format("7.0"),
    "DRIVER=14000": "",
    "DRIVER=13000": "",
    "DRIVER=13000 CAPABILITY=120": "GPU 0 needs a driver for CUDA 13.1 or newer, which translates code for it, but the "
    "driver is for CUDA 13.0",
    "DRIVER=12090": "the driver is for CUDA 12.9, but the library was built with nvcc 13.1 and needs a driver for CUDA 13 "
    "or newer",
    "DRIVER=0": "there is no NVIDIA driver",
}


def test_kernels_run_where_the_driver_and_every_gpu_can_run_them(program):
    for settings, why in GPUS.items():
        result = run(program, "--quick", "--only", "scalar", "--dtype", "float32", settings=settings)
        assert result.returncode == (2 if why else 0)
        assert result.stderr == (f"cuda_check: the kernels cannot run here: {why}.\n" if why else "")


def test_the_program_reports_a_missing_gpu_and_wrong_arguments(program):
    for arguments, settings, error in (
        ([], "DEVICES=0", "the driver finds no GPU.\n"),
        (["--fast"], "", "unknown argument --fast. Pass --quick "),
        (["--quick", "--only", "x", "--dtype", "half"], "", "no case has 'x' in its name and the dtype 'half'.\n"),
    ):
        result = run(program, *arguments, settings=settings)
        assert result.returncode == 2
        assert settings == "" or result.stdout == ""
        assert result.stderr.startswith(f"cuda_check: {error}")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="found no nvcc")
def test_nvcc_compiles_it_without_warnings(tmp_path):
    """For one architecture; the build of the library compiles the same kernels for all."""
    toolkit, _ = cuda.find_toolkit()
    program = tmp_path / "cuda_check"
    cuda_check.build(dataclasses.replace(toolkit, architectures=toolkit.architectures[-1:]), program)
    if pathlib.Path("/dev/nvidia0").exists():
        assert run(program, "--quick").returncode == 0
    else:
        result = run(program)
        assert (result.returncode, result.stderr) == (2, "cuda_check: the driver finds no GPU.\n")


@pytest.fixture(scope="module", params=["sm_90", "sm_100"])
def kernels(request):
    """The instructions of each kernel of the library, for the H200 and the B200, as (address, opcode and operands).

    By its name without namespace and arguments. nvcc 13 compiles for 10.0 and newer with another compiler than for older
    ones, so the tests look at one of each. The library has both.
    """
    if cg.sysconfig.gpu_kernels() == "the library was built without nvcc":
        pytest.skip(cg.sysconfig.gpu_kernels())
    toolkit, _ = cuda.find_toolkit()
    if toolkit and int(request.param.removeprefix("sm_")) not in toolkit.architectures:
        pytest.skip(f"nvcc {toolkit.version} has no {request.param}")
    installed = pathlib.Path(sysconfig.get_path("purelib")) / "nvidia/cu13/bin/cuobjdump"  # With the extra `test`.
    found = installed if installed.exists() else shutil.which("cuobjdump")
    assert found, "expected cuobjdump: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
    cuobjdump = pathlib.Path(found)
    # It calls nvdisasm, which is installed beside it.
    environment = {**os.environ, "PATH": f"{cuobjdump.parent}{os.pathsep}{os.environ['PATH']}"}
    command = [cuobjdump, "-sass", "-arch", request.param, cg.sysconfig.get_library()]
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

    A loop goes from the target of a branch back to that branch. Everything in between counts, including code for the end
    of a row or of memory, if there is any; an inner loop counts once.
    """
    loops = []
    for end, instruction in function:
        branch = re.match(r"(?:@!?U?P\d+ )?BRA(?:\.\S+)? (?:!?U?P\d+, )?0x([0-9a-f]+)", instruction)
        body = [text for address, text in function if branch and int(branch[1], 16) <= address <= end]
        loads = sum(bool(re.match(r"(@!?U?P\d+ )?LDG\.", text)) for text in body)
        if loads:
            loops.append((len(body), loads))
    return min(loops)


# How many vectors or elements each thread has in flight; see cuda/schedule.h.
UNROLL = 4
# How many instructions a warp can spend to read two operands and write one, at 0.92 of a copy's speed on an H200: for
# vectors of 16 bytes, and for single elements of 4 and of 2 bytes.
VECTOR, FLOAT, HALF = 370, 93, 46

TYPES = ("Half", "BFloat16", "float", "double", "complex<float>", "complex<double>")
# The kernels with a loop over vectors, and the instructions of a warp for one: fewer for kernels that move less memory.
VECTORS = {
    "MultiplyFlatKernel<{}, true>": VECTOR,
    "MultiplyFlatKernel<{}, false>": VECTOR * 2 // 3,
    "MultiplyRowsKernel<{}, true>": VECTOR,
    "MultiplyRowsKernel<{}, false>": VECTOR * 2 // 3,
    **{
        f"{kernel}<{{0}}, VectorReader<{{0}}, {both}, {has_one_loop}>>": VECTOR * 2 // 3
        if both == "true"
        else VECTOR // 3
        for kernel in ("SumRowsKernel", "SumColumnsKernel")
        for both in ("true", "false")
        for has_one_loop in ("true", "false")
    },
}


def budgets(kernels):
    """For each kernel the instructions of a warp for one vector or product, and the most that it may have."""
    for dtype in TYPES:
        for name, budget in VECTORS.items():
            yield name.format(dtype), hot_loop(kernels[name.format(dtype)])[0] / UNROLL, budget
        # Elements of 16 bytes are always vectors.
        for kernel in ("SumRowsKernel", "SumColumnsKernel") if dtype != "complex<double>" else ():
            name = f"{kernel}<{dtype}, ScalarReader<{dtype}, unsigned int>>"
            yield name, hot_loop(kernels[name])[0], VECTOR * 2 // 3
    for dtype, budget in (("float", FLOAT), ("Half", HALF), ("BFloat16", HALF), ("double", 2 * FLOAT)):
        name = f"MultiplyScalarKernel<{dtype}, unsigned int>"
        yield name, hot_loop(kernels[name])[0] / UNROLL, budget
    # No thread of these runs an instruction twice, so that its product takes at most all of them.
    for dtype, size, budget in (("float", 4, FLOAT), ("Half", 8, HALF), ("BFloat16", 8, HALF)):
        # A row of 1,001 leaves some threads of its last segment without an element.
        name = f"MultiplySegmentsKernel<{dtype}, true>"
        yield name, len(kernels[name]) / (2 * size * 1001 / 1024), budget
        # For rows of 32, each thread reads four vectors.
        name = f"SumRowsKernel<{dtype}, VectorReader<{dtype}, true, true>>"
        yield name, len(kernels[name]) / (4 * size), budget * 2 / 3
    # For comparison: a kernel written only for float4, with 32-bit indices, has 88 instructions for one vector.
    yield "the plain product", len(kernels["MultiplyFlatKernel<float, true>"]), 2 * 88


def test_kernels_keep_their_budgets(kernels):
    assert [row for row in budgets(kernels) if row[1] > row[2]] == []


def test_vectors_are_read_at_once(kernels):
    """So the loops above are the ones that read operands, and they are complete."""
    for dtype in TYPES:
        reader = f"<{dtype}, VectorReader<{dtype}, true, true>>"
        names = [f"MultiplyFlatKernel<{dtype}, true>", f"SumRowsKernel{reader}", f"SumColumnsKernel{reader}"]
        # Elements of 16 bytes are always vectors.
        names += [f"MultiplyScalarKernel<{dtype}, unsigned int>"] * (dtype in ("float", "Half", "BFloat16", "double"))
        for name in names:
            assert hot_loop(kernels[name])[1] == 2 * UNROLL
