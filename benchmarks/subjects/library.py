"""Importing and building the library: times, the parts of the file, and the cost for other graphs."""

import atexit
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import tensorflow as tf

from build_ops.cuda import find_toolkit

from ..harness.measurement import Case, Samplers, Settings
from ..harness.names import IMPORT, LIBRARY_FILE, WITH, WITH_NVCC, WITHOUT, WITHOUT_NVCC
from ..harness.record import ROOT
from ..harness.samplers import Number, Sampler, Timed
from ..harness.workers import Worker


def _chain(x: tf.Tensor, ops: int) -> tf.Tensor:
    for _ in range(ops // 2):  # Each product has a constant.
        x = x * 1.5
    return x


def _session(nodes: int) -> Callable[[], None]:
    """A new session places and optimises the whole graph."""
    with tf.Graph().as_default() as graph:
        x = tf.ones([])
        _chain(x, nodes)
        tf.negative(x, name="fetched")

    def run() -> None:
        with tf.compat.v1.Session(graph=graph) as session:
            session.run("fetched:0")

    return run


def _function(ops: int) -> Callable[[], None]:
    """Traces a function and calls it."""
    return lambda: tf.function(lambda x: _chain(x, ops), autograph=False)(tf.ones([]))


def _loops(loops: int, ops: int) -> Callable[[], None]:
    """The same with loops inside, and a conditional in each."""

    def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, tf.cond(x > 0.0, lambda: _chain(x, ops), lambda: x)

    def function(x: tf.Tensor) -> tf.Tensor:
        for _ in range(loops):
            x = tf.while_loop(lambda i, _: i < 2, body, (0, x))[1]
        return x

    return lambda: tf.function(function, autograph=False)(tf.ones([]))


_KINDS = {"session": _session, "function": _function, "loops": _loops}


def in_worker(kind: str, sizes: list[int], with_library: bool) -> dict[str, Sampler]:
    """The sampler of a kind of graph, in a process with or without the library. Nothing else here imports it."""
    if with_library:
        import tf_cg_ops  # noqa: F401
    return {kind: Timed(_KINDS[kind](*sizes))}


@functools.cache
def _worker(with_library: bool) -> Worker:
    """A process that imports the library, or one that never does."""
    return Worker()


def _other_graphs(kind: str, sizes: list[int]) -> Samplers:
    """The library's passes see all graphs. Two processes take turns, one with the library imported."""
    return {
        name: _worker(is_with).build(f"{__name__}:in_worker", kind=kind, sizes=sizes, with_library=is_with)[kind]
        for name, is_with in ((WITH, True), (WITHOUT, False))
    }


def _import_cost(settings: Settings) -> list[Case]:
    """The time that importing the library adds to the first run of graphs without our ops."""
    kinds = {
        "a session with {:,} nodes": ("session", settings.pick([60_000], [600])),
        "a function of {:,} ops": ("function", settings.pick([2_000], [20])),
        "a function with {:,} loops around conditionals of {:,} ops": ("loops", settings.pick([10, 100], [1, 4])),
    }
    return [
        Case("import_cost", name.format(*sizes), functools.partial(_other_graphs, kind, sizes), (WITH,))
        for name, (kind, sizes) in kinds.items()
    ]


_IMPORT = """
import importlib, sys, time
for name in sys.argv[1:]:
    start = time.perf_counter()
    importlib.import_module(name)
print(time.perf_counter() - start)
"""


def _import_seconds(folder: str, modules: tuple[str, ...]) -> float:
    """The time of the last import in a list of imports, in a new process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = folder
    command = [sys.executable, "-c", _IMPORT, *modules]
    return float(subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout)


def _imports() -> Samplers:
    folder = tempfile.mkdtemp(prefix="tf_cg_ops_bytecode_")
    atexit.register(shutil.rmtree, folder)
    modules = {IMPORT: ("tensorflow", "tf_cg_ops"), "tensorflow": ("tensorflow",)}
    for names in modules.values():
        _import_seconds(folder, names)  # Compiles the modules, as pip does when it installs.
    return {name: Number(functools.partial(_import_seconds, folder, names)) for name, names in modules.items()}


# Patterns for the names of functions; the first that matches counts.
_CODE = {
    "kernels for AVX-512": r"tf_cg_ops::avx512\b",
    "kernels for AVX2": r"tf_cg_ops::avx2\b",
    "kernels for any processor": r"tf_cg_ops::baseline\b",
    "calls of the GPU's kernels": r"tf_cg_ops::cuda\b",
    "ops, gradients and passes": r"tf_cg_ops",
    "NVIDIA's runtime library": r"cuda",
    "functions of headers": r"",
}
# Sections of the file by their names.
_SECTIONS = {"code for GPUs": (".nv_fatbin",), "names of functions": (".symtab", ".strtab")}


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _sizes(library: str) -> dict[str, int]:
    functions = re.findall(r"^[0-9a-f]+ ([0-9a-f]+) [tTwW] (.*)$", _output("nm", "-C", "-S", library), re.MULTILINE)
    found = {LIBRARY_FILE: os.path.getsize(library), **dict.fromkeys(_CODE, 0)}
    for size, name in functions:
        found[next(part for part, pattern in _CODE.items() if re.search(pattern, name))] += int(size, 16)
    listed = _output("readelf", "-SW", library)
    sections = dict(re.findall(r"\] (\.\S+) +[A-Z_]+ +[0-9a-f]+ [0-9a-f]+ ([0-9a-f]+) ", listed))
    for part, names in _SECTIONS.items():
        found[part] = sum(int(sections.get(name, "0"), 16) for name in names)
    return found


def _parts() -> Samplers:
    """Sizes of the machine code by origin, of the code for GPUs, and of the names of functions."""
    import tf_cg_ops as cg

    if not shutil.which("nm") or not shutil.which("readelf"):
        return dict.fromkeys((LIBRARY_FILE, *_CODE, *_SECTIONS), "not measured: nm or readelf is missing")
    sizes = _sizes(cg.sysconfig.get_library())
    return {part: Number(lambda size=size: size / 1000) for part, size in sizes.items()}


_ALL = "from build_ops import compiler; import pathlib; compiler.build_libraries(pathlib.Path('.'))"
_ONE_FILE = "from build_ops import compiler; compiler.compile_units(['cc/lib/alignment.cc'], None)"


def _build_seconds(script: str, with_nvcc: bool) -> float:
    """The time of a build in a copy of the sources, on all cores and without ccache."""
    variables = {"CCACHE_DISABLE": "1", "TF_CG_OPS_WERROR": "0", "TF_CG_OPS_CUDA": "1" if with_nvcc else "0"}
    command, environment = [sys.executable, "-c", script], {**os.environ, **variables}
    with tempfile.TemporaryDirectory(prefix="tf_cg_ops_build_") as folder:
        for name in ("build_ops", "cc", "cuda"):
            shutil.copytree(ROOT / name, pathlib.Path(folder, name))
        start = time.perf_counter()
        subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, check=True)
        return time.perf_counter() - start


def _build(script: str) -> Samplers:
    """The build with and without nvcc; without it there are no kernels for GPUs."""
    toolkit, _ = find_toolkit()
    nvcc = Number(lambda: _build_seconds(script, True)) if toolkit else "not measured: nvcc is missing"
    return {WITHOUT_NVCC: Number(lambda: _build_seconds(script, False)), WITH_NVCC: nvcc}


def cases(settings: Settings) -> list[Case]:
    """The cost for other graphs, the import, the parts of the file, and the build."""
    build = functools.partial(_build, settings.pick(_ALL, _ONE_FILE))
    return [
        *_import_cost(settings),
        Case("import_time", "import", _imports, (IMPORT,), rounds=settings.pick(5, 1)),
        Case("library_size", "parts of the op library", _parts, (LIBRARY_FILE,), "kB", rounds=1),
        Case("build_time", "cold build", build, (WITHOUT_NVCC,), rounds=1),
    ]
