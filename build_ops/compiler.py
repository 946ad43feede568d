"""Compiles with g++ in parallel, only what changed, and links."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Sequence

from .tensorflow import installed_tensorflow, tensorflow_flags

ROOT = pathlib.Path(__file__).resolve().parents[1]

# NDEBUG: without it absl's containers have another layout than those inside TensorFlow's wheels.
# -ffp-contract=off: fused operations round otherwise, and only some machines have them.
COMPILE_FLAGS = ("-O3", "-ffp-contract=off", "-fPIC", "-DNDEBUG", "-Wall", "-Wextra", "-Wpedantic")


def build_library(library: pathlib.Path, sources: Sequence[str]) -> None:
    """Compiles the sources and links the op library."""
    compile_flags, link_flags = tensorflow_flags()
    compiler = (os.environ.get("CXX") or "g++").split()
    if shutil.which("ccache"):
        compiler = ["ccache", *compiler]
    command = [*compiler, *COMPILE_FLAGS, *compile_flags, "-I."]
    if os.environ.get("TF_CG_OPS_WERROR") == "1":
        command.append("-Werror")
    # Objects of another TensorFlow, compiler or flag must not be mixed up with these.
    digest = hashlib.sha256(json.dumps([command, installed_tensorflow()]).encode()).hexdigest()[:12]
    objects = ROOT / "build" / f"objects-{digest}"
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        built = list(pool.map(lambda source: compile_source(command, source, objects), sources))
    # The order of the link line and -z defs: a symbol that is missing shows here and not at import.
    libraries = ["-l:libtensorflow_cc.so.2", "-Wl,-z,defs"]
    run([*compiler, "-shared", "-o", str(library), *map(str, built), *link_flags, *libraries])


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
