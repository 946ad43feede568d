"""Throw-away environments, to test the installed library outside the source tree."""

import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Tests of all parts of the library that need only CORE_REQUIREMENTS.
CORE_TESTS = (
    "graph/test_control_flow.py",
    "custom_gradient/test_answers.py",
    "kernels/test_embed_grad_kernel.py",
    "custom_gradient/test_orders.py",
    "embed_gradient/test_orders.py",
    "embed_gradient/test_shape_table.py",
    "embed_gradient/test_value.py",
    "graph/test_import.py",
    "graph/test_pruning.py",
    "kernels/test_raw_ops.py",
    "graph/test_without_python.py",
    "graph/test_xla.py",
)
CORE_REQUIREMENTS = ("pytest>=8", "pytest-xdist>=3.6")


def version_of(python: str) -> tuple[int, int] | None:
    """The version of a Python; None if it is not installed."""
    try:
        script = "import json, sys; print(json.dumps(sys.version_info[:2]))"
        answer = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    # The name can be a script that only recommends a package.
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    major, minor = json.loads(answer.stdout)
    return major, minor


def pythons_at_hand(names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The Pythons with these names that are installed, with their versions."""
    return {python: version for python in names if (version := version_of(python))}


def make_environment(folder: pathlib.Path, python: str) -> pathlib.Path:
    """Makes a virtual environment, and returns the path of its interpreter."""
    run([python, "-m", "venv", "--clear", str(folder)])
    return folder / "bin" / "python"


def pip(interpreter: pathlib.Path, *arguments: str) -> None:
    """Runs an environment's pip, which prints nothing unless something is wrong."""
    run([str(interpreter), "-m", "pip", *arguments, "-q", "--disable-pip-version-check"])


def copy_core_tests(folder: pathlib.Path, more: Sequence[str] = ()) -> None:
    """Copies the core tests, `more` tests and what they need to an empty folder, without the library."""
    ignored = shutil.ignore_patterns("*.pyc", "test_*.py")
    tests = (*CORE_TESTS, *more)
    for part in {"support", *(test.split("/")[0] for test in tests)}:
        shutil.copytree(ROOT / "tests" / part, folder / "tests" / part, ignore=ignored)
    for name in ("__init__.py", "conftest.py", *tests):
        shutil.copy(ROOT / "tests" / name, folder / "tests" / name)
    # It has pytest's settings.
    shutil.copy(ROOT / "pyproject.toml", folder)


def run_core_tests(interpreter: pathlib.Path, folder: pathlib.Path) -> tuple[bool, str]:
    """Runs the core tests of `copy_core_tests`; returns whether all passed, and pytest's last line."""
    options = ("-n", "auto", "--dist", "loadfile", "--max-worker-restart", "0")
    command = [str(interpreter), "-m", "pytest", "tests", *options]
    tests = subprocess.run(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True, check=False)
    summary = tests.stdout.splitlines()[-1]
    if tests.returncode != 0:
        print(tests.stdout, flush=True)
        summary = f"status {tests.returncode}: {summary}"
    return tests.returncode == 0, summary


def environment() -> dict[str, str]:
    """Environment variables for a process that must not see the source tree."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def run(command: Sequence[str], folder: pathlib.Path | None = None, **variables: str) -> None:
    """Runs a command with these additional environment variables."""
    subprocess.run(command, cwd=folder, env={**environment(), **variables}, check=True)
