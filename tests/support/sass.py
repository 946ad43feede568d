"""The machine code of the kernels for GPUs: compiled by nvcc, read by cuobjdump."""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sysconfig

from build_ops import cuda

from .sources import ROOT

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
