"""Compiles in parallel, only what changed, and links."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shutil
import subprocess

from .cuda import find_toolkit
from .sources import CUDA_SOURCES, SOURCES, WITHOUT_CUDA
from .tensorflow import installed_tensorflow, tensorflow_flags

ROOT = pathlib.Path(__file__).resolve().parents[1]

# NDEBUG: without it absl's containers have another layout than those inside TensorFlow's wheels.
# -ffp-contract=off: fused operations round otherwise, and only some machines have them.
COMPILE_FLAGS = ("-O3", "-ffp-contract=off", "-fPIC", "-DNDEBUG", "-Wall", "-Wextra", "-Wpedantic")


def build_library(library: pathlib.Path) -> None:
    """Compiles the op library and links it, with kernels for GPUs where there is nvcc."""
    toolkit, note = find_toolkit()
    print(f"tf_cg_ops: {note}", flush=True)
    sources = [*(CUDA_SOURCES if toolkit else WITHOUT_CUDA), *SOURCES]
    compile_flags, link_flags = tensorflow_flags()
    compiler = (os.environ.get("CXX") or "g++").split()
    if shutil.which("ccache"):
        compiler = ["ccache", *compiler]
    command = [*compiler, *COMPILE_FLAGS, *compile_flags, "-I."]
    commands = {".cc": command, ".cu": toolkit.compile_command() if toolkit else []}
    if os.environ.get("TF_CG_OPS_WERROR") == "1":
        commands[".cc"] = [*command, "-Werror"]
        commands[".cu"] = [*commands[".cu"], "-Xcompiler", "-Werror", "-Werror", "all-warnings"]
    # Objects of another TensorFlow, compiler or flag must not be mixed up with these.
    digest = hashlib.sha256(json.dumps([commands, installed_tensorflow()]).encode()).hexdigest()[:12]
    objects = ROOT / "build" / f"objects-{digest}"
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        built = list(
            pool.map(lambda source: compile_source(commands[pathlib.Path(source).suffix], source, objects), sources)
        )
    # The order of the link line and -z defs: a symbol that is missing shows here and not at import.
    libraries = [*(toolkit.link_flags() if toolkit else []), *link_flags, "-l:libtensorflow_cc.so.2", "-Wl,-z,defs"]
    run([*compiler, "-shared", "-o", str(library), *map(str, built), *libraries])


def compile_source(command: list[str], source: str, objects: pathlib.Path) -> pathlib.Path:
    """Compiles one file, unless its object is newer than it and all that it includes."""
    target = objects / (source.replace("/", "-") + ".o")
    dependencies = target.with_suffix(".d")
    if not is_up_to_date(target, dependencies):
        objects.mkdir(parents=True, exist_ok=True)
        run([*command, "-MMD", "-MF", str(dependencies), "-c", source, "-o", str(target)])
    return target


def is_up_to_date(target: pathlib.Path, dependencies: pathlib.Path) -> bool:
    """Whether the object exists and is newer than every file in the compiler's list for it."""
    if not target.exists() or not dependencies.exists():
        return False
    files = dependencies.read_text().replace("\\\n", " ").split()[1:]
    built = target.stat().st_mtime
    return all((ROOT / file).exists() and (ROOT / file).stat().st_mtime <= built for file in files)


def run(command: list[str]) -> None:
    """Runs a command of the build in the project's folder and shows it."""
    print(" ".join(command), flush=True)
    subprocess.run(command, cwd=ROOT, check=True)
