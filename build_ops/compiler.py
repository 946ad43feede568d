"""Compiles changed sources in parallel, and links them."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from .cuda import Toolkit, announcement, find_toolkit
from .machine import check_machine
from .sources import CUDA_SOURCES, SOURCES, SOURCES_WITH_CC, WITHOUT_CUDA, units
from .tensorflow import require_tensorflow, tensorflow_flags

ROOT = pathlib.Path(__file__).resolve().parents[1]

# NDEBUG: without it, absl's containers have another layout than inside TensorFlow's wheels.
# -ffp-contract=off: fused operations round differently, and only some machines have them.
# -D__libc_single_threaded: see cc/lib/glibc_compatibility.cc.
COMPILE_FLAGS = (
    "-O3",
    "-ffp-contract=off",
    "-fPIC",
    "-DNDEBUG",
    "-D__libc_single_threaded=tf_cg_ops_has_one_thread",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
)
# Flags that make memory errors harder to exploit. Not every compiler and processor supports all of them.
HARDENING_FLAGS = (
    "-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2",
    "-fstack-protector-strong",
    "-fstack-clash-protection",
    "-fcf-protection=full",
)
# -z defs: a missing symbol is an error at link time instead of load time.
LINK_FLAGS = (
    "-shared",
    "-Wl,--version-script=cc/exports.lds",
    "-Wl,-z,defs,-z,relro,-z,now,-z,noexecstack",
    "-Wl,--build-id=sha1",
)


WITH_CC = "-l:libtensorflow_cc.so.2"


def build_libraries(folder: pathlib.Path) -> None:
    """Builds the op library, with GPU kernels if there is nvcc, and the library that needs libtensorflow_cc."""
    check_machine()
    tensorflow = require_tensorflow()
    found = f"{tensorflow.distribution} {tensorflow.version} ({tensorflow.environment.python})"
    print(f"tf_cg_ops: compiling against {found}", flush=True)
    toolkit, note = find_toolkit()
    print(f"tf_cg_ops: {announcement(toolkit, note)}", flush=True)
    cuda = CUDA_SOURCES if toolkit else WITHOUT_CUDA
    # All units of both libraries first, otherwise the last unit of each would compile while other processors are idle.
    compile_units(list(dict.fromkeys([*cuda, *SOURCES_WITH_CC, *SOURCES])), toolkit)
    build_library(folder / "_ops_with_cc.so", SOURCES_WITH_CC, None, [WITH_CC])
    build_library(folder / "_ops.so", [*cuda, *SOURCES], toolkit)


def build_library(
    library: pathlib.Path,
    sources: Sequence[str],
    toolkit: Toolkit | None,
    more_libraries: Sequence[str] = (),
    more_flags: Sequence[str] = (),
) -> None:
    """Compiles the sources and links them; `more_flags` come after all other flags."""
    build_with_tensorflow(library, LINK_FLAGS, sources, toolkit, more_libraries, more_flags)


def build_with_tensorflow(
    target: pathlib.Path,
    link_flags: Sequence[str],
    sources: Sequence[str],
    toolkit: Toolkit | None,
    more_libraries: Sequence[str],
    more_flags: Sequence[str],
) -> None:
    """Builds a library or program that is linked against TensorFlow."""
    built = compile_units(sources, toolkit, more_flags)
    libraries = [*(toolkit.link_flags() if toolkit else []), *tensorflow_flags()[1], *more_libraries]
    run([*find_compiler(), *link_flags, *more_flags, "-o", str(target), *map(str, built), *libraries])


def compile_units(
    sources: Sequence[str], toolkit: Toolkit | None, more_flags: Sequence[str] = ()
) -> list[pathlib.Path]:
    """Compiles the sources that are not up to date; returns all objects."""
    commands = compile_commands(find_compiler(), tensorflow_flags()[0], toolkit, more_flags)
    return compile_files(commands, [as_one(*unit) for unit in units(sources).items()])


def compile_files(commands: Mapping[str, list[str]], sources: Sequence[str]) -> list[pathlib.Path]:
    """Compiles the files that are not up to date, each with the command for its kind; returns all objects."""
    objects = {source: object_of(commands, source) for source in sources}
    changed = [source for source, target in objects.items() if not is_up_to_date(target)]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        compiled = [pool.submit(compile_file, commands, source, objects[source]) for source in changed]
        for count, future in enumerate(concurrent.futures.as_completed(compiled), 1):
            future.result()
            print(f"tf_cg_ops: compiled {count} of {len(changed)} files", flush=True)
    return list(objects.values())


def compile_commands(
    compiler: Sequence[str],
    compile_flags: Sequence[str],
    toolkit: Toolkit | None = None,
    more_flags: Sequence[str] = (),
) -> dict[str, list[str]]:
    """The commands that compile a source, by its kind."""
    hardening = hardening_flags(compiler)
    command = [*compiler, *COMPILE_FLAGS, *hardening, *path_flags(compile_flags), *compile_flags, "-I.", *more_flags]
    commands = {".cc": command, ".cu": [*ccache(), *toolkit.compile_command(hardening)] if toolkit else []}
    if os.environ.get("TF_CG_OPS_WERROR") == "1":
        commands[".cc"] = [*command, "-Werror"]
        commands[".cu"] = [*commands[".cu"], "-Xcompiler", "-Werror", "-Werror", "all-warnings"]
    return commands


def find_compiler() -> list[str]:
    """The compiler's command: g++ or CXX, which can have arguments; with ccache in front if that is installed."""
    command = (os.environ.get("CXX") or "g++").split()
    if not shutil.which(command[0]):
        raise SystemExit(
            f"tf_cg_ops: the build found no C++ compiler: {command[0]!r} is not on PATH. Install g++ (on Debian and "
            "Ubuntu: apt-get install g++), or name another compiler: CXX=clang++."
        )
    return [*ccache(), *command]


def ccache() -> list[str]:
    """The prefix of a compiler's name if ccache is installed."""
    return ["ccache"] if shutil.which("ccache") else []


def hardening_flags(compiler: Sequence[str]) -> list[str]:
    """The flags that the compiler knows."""

    def is_known(flag: str) -> bool:
        probe = [*compiler, "-Werror", "-O3", *flag.split(), "-x", "c++", "-c", os.devnull, "-o", os.devnull]
        return subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode == 0

    return " ".join(filter(is_known, HARDENING_FLAGS)).split()


def path_flags(compile_flags: Sequence[str]) -> list[str]:
    """Flags that keep this machine's folders out of the library: TensorFlow's headers use their own paths."""
    includes = [flag.removeprefix("-isystem") for flag in compile_flags if flag.startswith("-isystem")]
    # The compiler uses the last match, and the folders of headers can be inside the project's folder.
    return [f"-ffile-prefix-map={ROOT}=.", *(f"-ffile-prefix-map={include}=include" for include in sorted(includes))]


def as_one(name: str, sources: Sequence[str]) -> str:
    """The path of a source that includes all of these, if there are several."""
    if len(sources) == 1:
        return sources[0]
    text = "".join(f'#include "{source}"\n' for source in sources)
    # The name depends on the sources, because the sanitizers compile only some of a unit.
    unit = ROOT / "build" / "units" / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.cc"
    if not unit.exists():
        unit.parent.mkdir(parents=True, exist_ok=True)
        unit.write_text(text)
    return str(unit.relative_to(ROOT))


def object_of(commands: Mapping[str, list[str]], source: str) -> pathlib.Path:
    """The object file of a source, which depends on the command that compiles it."""
    # Objects for another TensorFlow, compiler or set of flags must not be mixed with these.
    tensorflow = require_tensorflow()
    made_by = json.dumps([commands[pathlib.Path(source).suffix], tensorflow.distribution, tensorflow.version])
    folder = ROOT / "build" / f"objects-{hashlib.sha256(made_by.encode()).hexdigest()[:12]}"
    return folder / (source.replace("/", "-") + ".o")


def compile_file(commands: Mapping[str, list[str]], source: str, target: pathlib.Path) -> None:
    """Compiles one file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    command = commands[pathlib.Path(source).suffix]
    run([*command, "-MMD", "-MF", str(target.with_suffix(".d")), "-c", source, "-o", str(target)])


def is_up_to_date(target: pathlib.Path) -> bool:
    """Whether the object exists and is newer than every file in the compiler's list for it."""
    dependencies = target.with_suffix(".d")
    if not target.exists() or not dependencies.exists():
        return False
    # g++ writes `object: files`, nvcc `object : files`.
    files = dependencies.read_text().replace("\\\n", " ").partition(": ")[2].split()
    built = target.stat().st_mtime
    return all((ROOT / file).exists() and (ROOT / file).stat().st_mtime <= built for file in files)


def run(command: list[str]) -> None:
    """Runs a command of the build in the project's folder and shows it."""
    print(" ".join(command), flush=True)
    subprocess.run(command, cwd=ROOT, check=True)
