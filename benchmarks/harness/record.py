"""The file of results: a header with machine, versions and commit, then one line for each case."""

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import subprocess
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results.json"

_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-probability", "keras", "numpy", "jax")
_VARIABLES = ("TF_ENABLE", "TF_NUM", "TF_XLA", "XLA_FLAGS", "OMP_", "MALLOC_", "TF_CG_OPS")
# Files that a run writes do not count as uncommitted changes.
_WRITTEN = (":!benchmarks/results*.json", ":!docs/performance.md", ":!docs/memory.md", ":!docs/figures")


def processor() -> str:
    """The name of the processor."""
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return model.group(1) if model else platform.machine()


def _machine() -> dict[str, Any]:
    """Processor, cores and the last-level cache."""
    folder = pathlib.Path("/sys/devices/system/cpu/cpu0/cache")
    caches = {int((index / "level").read_text()): (index / "size").read_text() for index in folder.glob("index*")}
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "last_level_cache_bytes": int(caches[max(caches)].strip().rstrip("K")) * 1024 if caches else None,
        "system": f"{platform.system()} {platform.release()}",
    }


def _environment() -> dict[str, str]:
    """The variables that change how fast the implementations are."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)}


def _versions() -> dict[str, str | None]:
    """The versions of all packages that take part; None if one is not installed."""
    installed = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in importlib.metadata.distributions()}
    return {"python": platform.python_version(), **{name: installed.get(name) for name in _DISTRIBUTIONS}}


def _commit() -> dict[str, Any]:
    """The commit, and whether tracked files differ from it; None outside of a git checkout."""
    if not (ROOT / ".git").exists():
        return {"hash": None, "dirty": None}
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    status = [*git, "status", "--porcelain", "--untracked-files=no", "--", ".", *_WRITTEN]
    changed = subprocess.run(status, capture_output=True, text=True, check=True)
    return {"hash": head.stdout.strip(), "dirty": bool(changed.stdout.strip())}


def origin() -> dict[str, Any]:
    """The header, except whether the run is quick."""
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    parts = {"machine": _machine(), "versions": _versions(), "environment": _environment(), "commit": _commit()}
    return {"started": today, **parts}


def write(run: dict[str, Any], path: pathlib.Path) -> None:
    """Writes a run; a line only changes if its figures do."""
    header = [f' "{key}": {_line(value)}' for key, value in run.items() if key != "cases"]
    cases = ",\n".join(f"  {_line(case)}" for case in run["cases"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join([*header, f' "cases": [\n{cases}\n ]']) + "\n}\n")


def earlier(path: pathlib.Path | None, origin: dict[str, Any]) -> dict[str, Any] | None:
    """The run in the file, if there is one; it must be of the same machine, where another kernel may run."""
    if path is None or not path.exists():
        return None
    run = json.loads(path.read_text())
    if {**run["machine"], "system": None} != {**origin["machine"], "system": None}:
        raise SystemExit(f"--only: {path} is of another machine; measure all cases, or write another file")
    return run


def merged(earlier: dict[str, Any] | None, run: dict[str, Any]) -> dict[str, Any]:
    """An earlier run with the cases of a later one added or replaced, each with its own commit, date and system."""
    if earlier is None:
        return run
    own = {"started": run["started"], "commit": run["commit"], "system": run["machine"]["system"]}
    new = {(case["subject"], case["case"]): {**case, **own} for case in run["cases"]}
    kept = [new.pop((case["subject"], case["case"]), case) for case in earlier["cases"]]
    return {**earlier, "cases": [*kept, *new.values()]}


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def read(subject: str | None = None) -> dict[str, Any]:
    """The run that the documentation shows; of a subject in a file of its own, which another machine measured, that."""
    own = RESULTS.with_name(f"results_{subject}.json")
    return json.loads((own if own.exists() else RESULTS).read_text())
