"""The origin of the figures: machine, versions, commit."""

import importlib.metadata
import os
import pathlib
import platform
import re
import subprocess
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]

_DISTRIBUTIONS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-probability",
    "keras",
    "numpy",
    "torch",
    "jax",
    "jaxlib",
)
_VARIABLES = ("TF_ENABLE", "TF_NUM", "TF_XLA", "XLA_FLAGS", "OMP_", "MALLOC_", "TF_CG_OPS")
# The files that a run writes itself make no tree dirty.
_WRITTEN = (":!benchmarks/results", ":!docs/performance.md", ":!docs/figures")


def threads() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine() -> dict[str, Any]:
    """Processor, cores, caches, memory, and how the kernel hands out pages."""
    cpu = pathlib.Path("/proc/cpuinfo").read_text()
    memory = pathlib.Path("/proc/meminfo").read_text()
    model = re.search(r"model name\s*: (.*)", cpu)
    total = re.search(r"MemTotal:\s*(\d+)", memory)
    pages = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    flags = re.search(r"^flags\s*: (.*)", cpu, re.MULTILINE)
    present = set(flags.group(1).split()) if flags else set()
    return {
        "processor": model.group(1) if model else platform.machine(),
        "vectors": [name for name in ("sse4_2", "avx2", "avx512f", "f16c", "avx512_bf16") if name in present],
        "cores": threads(),
        "last_level_cache_bytes": _last_level_cache(),
        "memory_bytes": int(total.group(1)) * 1024 if total else None,
        "huge_pages": pages.read_text().strip() if pages.exists() else None,
        "system": f"{platform.system()} {platform.release()}",
    }


def environment() -> dict[str, str]:
    """The variables that change how fast the implementations are."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)}


def _last_level_cache() -> int | None:
    folder = pathlib.Path("/sys/devices/system/cpu/cpu0/cache")
    sizes = {int((index / "level").read_text()): (index / "size").read_text() for index in folder.glob("index*")}
    return int(sizes[max(sizes)].strip().rstrip("K")) * 1024 if sizes else None


def versions() -> dict[str, str | None]:
    """The versions of what takes part; None where it is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    installed = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in importlib.metadata.distributions()}
    for name in _DISTRIBUTIONS:
        found[name] = installed.get(name)
    compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True)
    found["g++"] = compiler.stdout.splitlines()[0]
    return found


def commit() -> dict[str, Any]:
    """The commit, and whether tracked files differ from it; None outside of a git checkout."""
    if not (ROOT / ".git").exists():
        return {"hash": None, "dirty": None}
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    status = [*git, "status", "--porcelain", "--untracked-files=no", "--", ".", *_WRITTEN]
    changed = subprocess.run(status, capture_output=True, text=True, check=True)
    return {"hash": head.stdout.strip(), "dirty": bool(changed.stdout.strip())}
