"""The number of instructions in the loops of the GPU kernels: so few that memory limits the speed."""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sysconfig

import pytest

from build_ops import cuda

from ..support.sources import ROOT

# That of the H200.
ARCHITECTURE = 90


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop of a kernel: how many instructions it has, and how many of them load from global memory."""

    instructions: int
    loads: int


def compile_kernels(folder, source="cuda/contraction.cu"):
    """The SASS of every kernel of the source, by its name in C++ with its template arguments."""
    toolkit, _ = cuda.find_toolkit()
    toolkit = dataclasses.replace(toolkit, architectures=(ARCHITECTURE,))
    binary = pathlib.Path(folder) / "kernels.o"
    subprocess.run([*toolkit.compile_command(), "-c", source, "-o", binary], cwd=ROOT, check=True)
    return functions(disassembly(binary))


def disassembly(binary):
    """The output of cuobjdump for a file that nvcc wrote."""
    cuobjdump = find_cuobjdump()
    # It calls nvdisasm, which is installed beside it.
    environment = {**os.environ, "PATH": f"{cuobjdump.parent}{os.pathsep}{os.environ['PATH']}"}
    command = [cuobjdump, "-sass", "-arch", f"sm_{ARCHITECTURE}", binary]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def find_cuobjdump():
    """The one that pip installed with the extra `test`, or that of the toolkit."""
    installed = pathlib.Path(sysconfig.get_path("purelib")) / "nvidia/cu13/bin/cuobjdump"
    found = installed if installed.exists() else shutil.which("cuobjdump")
    assert found, "expected cuobjdump: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
    return pathlib.Path(found)


def functions(text):
    """The instructions of each function as (address, opcode and operands), by its name without namespace and arguments."""
    found, current = {}, None
    for line in text.splitlines():
        if name := re.search(r"Function : (\S+)", line):
            current = found.setdefault(demangled(name[1]), [])
        elif instruction := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(\S.*?)\s*;", line):
            current.append((int(instruction[1], 16), instruction[2]))
    return found


def demangled(name):
    """`Kernel<float, true>` for its symbol."""
    text = subprocess.run(["c++filt", name], check=True, capture_output=True, text=True).stdout.strip()
    return re.sub(r"^void |\(.*|tf_cg_ops::(cuda::)?|std::", "", text)


def hot_loop(function):
    """The shortest loop that loads from global memory: from the target of a branch back to that branch.

    Everything in between counts, with the work at the end of a row or of the memory that may be there, and with a loop
    inside once.
    """
    loops = []
    for end, instruction in function:
        branch = re.match(r"(?:@!?U?P\d+ )?BRA(?:\.\S+)? (?:!?U?P\d+, )?0x([0-9a-f]+)", instruction)
        if branch and int(branch[1], 16) < end:
            body = [text for address, text in function if int(branch[1], 16) <= address <= end]
            loads = sum(bool(re.match(r"(@!?U?P\d+ )?LDG\.", text)) for text in body)
            if loads:
                loops.append(Loop(len(body), loads))
    return min(loops, key=lambda loop: loop.instructions)


pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")

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
        BUDGETS[f"{kernel}<{{0}}, VectorReader<{{0}}, true, {has_one_loop}> >"] = VECTOR * 2 // 3
        BUDGETS[f"{kernel}<{{0}}, VectorReader<{{0}}, false, {has_one_loop}> >"] = VECTOR // 3
    BUDGETS[f"{kernel}<{{0}}, ScalarReader<{{0}}, unsigned int> >"] = VECTOR * 2 // 3
TYPES = ("Half", "BFloat16", "float", "double", "complex<float>", "complex<double>")


# A vector of complex128 has one element: other kernels do the same work.
ABSENT = {
    (kernel, "complex<double>")
    for kernel in BUDGETS
    if "MultiplyRows" in kernel or (", false>" in kernel and "Flat" in kernel)
}


def spelled(kernel, dtype):
    """The name as c++filt writes it: `> >`."""
    return (
        kernel.format(dtype)
        .replace("complex<float>>", "complex<float> >")
        .replace("complex<double>>", "complex<double> >")
    )


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return compile_kernels(tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize(
    ("kernel", "dtype"), [(kernel, dtype) for kernel in BUDGETS for dtype in TYPES if (kernel, dtype) not in ABSENT]
)
def test_the_loop_over_vectors_keeps_the_budget(kernels, kernel, dtype):
    """Counted in the SASS for one architecture; see `hot_loop`. A trip of the loop has several vectors."""
    name = spelled(kernel, dtype)
    loop = hot_loop(kernels[name])
    vectors = 1 if "ScalarReader" in kernel else UNROLL
    assert loop.instructions / vectors <= BUDGETS[kernel], loop


@pytest.mark.parametrize(
    ("dtype", "budget"), [("float", FLOAT), ("Half", HALF), ("BFloat16", HALF), ("double", 2 * FLOAT)]
)
def test_single_elements_keep_the_budget(kernels, dtype, budget):
    loop = hot_loop(kernels[f"MultiplyScalarKernel<{dtype}, unsigned int>"])
    assert loop.loads == 2 * UNROLL
    assert loop.instructions / UNROLL <= budget


def test_vectors_are_read_at_once(kernels):
    """So that the loops above are those that read operands, and all of it."""
    for dtype in TYPES:
        assert hot_loop(kernels[spelled("MultiplyFlatKernel<{}, true, true>", dtype)]).loads == 2 * UNROLL
        for kernel in ("SumRowsKernel", "SumColumnsKernel"):
            loop = hot_loop(kernels[spelled(f"{kernel}<{{0}}, VectorReader<{{0}}, true, true> >", dtype)])
            assert loop.loads == 2 * UNROLL


def test_the_plain_product_is_as_short_as_one_written_by_hand(kernels):
    """A kernel for float4 alone, with 32-bit indices, has 88 instructions for one vector."""
    assert len(kernels["MultiplyFlatKernel<float, true, true>"]) <= 2 * 88


def test_the_count_sees_what_a_loop_has(tmp_path):
    """A kernel with one loop in another, and the same with more to do in the inner one."""
    source = tmp_path / "loops.cu"
    counts = []
    for work in ("x[j] += 1;", f"float y = x[j]; {'y = y * y + 1;' * VECTOR} x[j] = y;"):
        source.write_text(
            f"__global__ void Loops(float* x, int n) {{ for (int i = 0; i < n; ++i) {{ x[-i] = i;\n"
            f"#pragma unroll 1\nfor (int j = 0; j < i; ++j) {{ {work} }} }} }}"
        )
        (function,) = compile_kernels(tmp_path, source).values()
        loop = hot_loop(function)
        assert loop.loads >= 1
        assert loop.instructions < len(function)
        counts.append(loop.instructions)
    assert counts[0] < 20
    assert 2 * VECTOR < counts[1] < 2 * VECTOR + 20
