"""Builds both libraries for 64-bit ARM with a cross compiler, against TensorFlow's wheel for ARM: `make aarch64`.

This checks that they compile without a warning, that every symbol is resolved, and that QEMU opens them together with
TensorFlow's library. It does not run their code. `make wheel` puts them into a wheel.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

from .compiler import LINK_FLAGS, WITH_CC, as_one, compile_commands, compile_files, run
from .environments import pip
from .sources import SOURCES, SOURCES_WITH_CC, WITHOUT_CUDA, units
from .tensorflow import minor_of, newest_of, require_tensorflow, tensorflow_flags

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
SYSTEM = "/usr/aarch64-linux-gnu"

_OPEN = """
#include <dlfcn.h>
#include <cstdio>
int main(int count, char** paths) {
  for (int i = 1; i < count; ++i) {
    if (dlopen(paths[i], RTLD_NOW | RTLD_GLOBAL) == nullptr) return std::puts(dlerror()), 1;
  }
  return 0;
}
"""


def requirement() -> str:
    """The TensorFlow for ARM: the version of this environment's."""
    return f"tensorflow{newest_of(minor_of(require_tensorflow().version))}"


def unpack_tensorflow(folder: pathlib.Path) -> pathlib.Path:
    """Unpacks the headers and libraries of TensorFlow's wheel for ARM, and returns the package's folder."""
    wanted = ["--only-binary", ":all:", "--platform", "manylinux_2_27_aarch64", "--python-version", "3.12"]
    pip(pathlib.Path(sys.executable), "download", "--no-deps", *wanted, "-d", str(folder), requirement())
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        needed = ("tensorflow/include/", "tensorflow/lib")
        archive.extractall(folder, [n for n in archive.namelist() if n.startswith(needed) or ".dist-info/" in n])
    return folder / "tensorflow"


def build(tensorflow: pathlib.Path, folder: pathlib.Path) -> list[pathlib.Path]:
    """Compiles and links both libraries, with warnings as errors."""
    compile_flags, link_flags = tensorflow_flags()
    (here,) = [flag[2:] for flag in link_flags if flag.startswith("-L")]
    compile_flags, link_flags = (
        [flag.replace(here, str(tensorflow)) for flag in flags] for flags in (compile_flags, link_flags)
    )
    commands = compile_commands([COMPILER], compile_flags, None, ["-Werror"])
    libraries = []
    for name, sources, more in (("_ops", [*WITHOUT_CUDA, *SOURCES], []), ("_ops_with_cc", SOURCES_WITH_CC, [WITH_CC])):
        objects = compile_files(commands, [as_one(*unit) for unit in units(sources).items()])
        libraries.append(folder / f"{name}.so")
        run([COMPILER, *LINK_FLAGS, "-o", str(libraries[-1]), *map(str, objects), *link_flags, *more])
    return libraries


def open_in_emulator(paths: list[pathlib.Path], folder: pathlib.Path) -> None:
    """Opens libraries one after the other, in QEMU."""
    (folder / "open.cc").write_text(_OPEN)
    run([COMPILER, "-o", str(folder / "open"), str(folder / "open.cc"), "-ldl"])
    search = f"LD_LIBRARY_PATH={SYSTEM}/lib:{paths[0].parent}"
    run([EMULATOR, "-L", SYSTEM, "-E", search, str(folder / "open"), *map(str, paths)])


def make_wheel(sdist: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Makes the wheel from the libraries in a folder, which also has the metadata of the TensorFlow for ARM."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "sources")
    (source,) = (folder / "sources").iterdir()
    command = [sys.executable, "setup.py", "-q", "bdist_wheel", "--plat-name", "linux_aarch64"]
    # TensorFlow for ARM is the distribution `tensorflow`; the build prefers it to the one of this environment.
    variables = {"TF_CG_OPS_PREBUILT": str(folder), "PYTHONPATH": str(folder)}
    subprocess.run([*command, "--dist-dir", str(folder)], cwd=source, env={**os.environ, **variables}, check=True)
    (wheel,) = folder.glob("tf_cg_ops-*.whl")
    return wheel


def missing_programs() -> str | None:
    """What is not installed, and how to install it; None if all is there."""
    missing = [program for program in (COMPILER, EMULATOR) if not shutil.which(program)]
    install = "On Debian and Ubuntu: apt-get install g++-aarch64-linux-gnu qemu-user"
    return f"aarch64 needs {' and '.join(missing)} on PATH. {install}" if missing else None


def build_and_open(folder: pathlib.Path) -> None:
    """Builds both libraries in a folder, and opens them."""
    tensorflow = unpack_tensorflow(folder)
    library, with_cc = build(tensorflow, folder)
    framework, cc = (tensorflow / f"libtensorflow_{name}.so.2" for name in ("framework", "cc"))
    open_in_emulator([framework, library], folder)
    open_in_emulator([framework, cc, with_cc], folder)


def main() -> None:
    """Builds and opens them."""
    if missing := missing_programs():
        raise SystemExit(f"tf_cg_ops: {missing}")
    with tempfile.TemporaryDirectory(prefix="tf_cg_ops-") as temporary:
        build_and_open(pathlib.Path(temporary))
    print(f"tf_cg_ops: both libraries compile, link and open for aarch64, against {requirement()}.")


if __name__ == "__main__":
    main()
