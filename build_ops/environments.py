"""Throw-away environments, in which an installed library is tested outside of the source tree."""

import os
import pathlib
import shutil
import subprocess
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Of every part of the library some, and nothing that needs more than CORE_REQUIREMENTS.
CORE_TESTS = (
    "test_control_flow.py",
    "test_custom_gradient_arguments.py",
    "test_custom_gradient_embed_grad_kernel.py",
    "test_custom_gradient_modes.py",
    "test_embed_gradient_orders.py",
    "test_embed_gradient_table.py",
    "test_embed_gradient_value.py",
    "test_import.py",
    "test_inference_pass.py",
    "test_raw_ops.py",
    "test_saved_model.py",
    "test_without_python.py",
    "test_xla.py",
)
CORE_REQUIREMENTS = ("pytest>=8", "pytest-xdist>=3.6")


def make_environment(folder: pathlib.Path, python: str) -> pathlib.Path:
    """Makes a virtual environment of a Python, and returns the path of the interpreter in it."""
    run([python, "-m", "venv", "--clear", str(folder)])
    return folder / "bin" / "python"


def pip(interpreter: pathlib.Path, *arguments: str) -> None:
    """Runs an environment's pip, which says nothing unless something is wrong."""
    run([str(interpreter), "-m", "pip", *arguments, "-q", "--disable-pip-version-check"])


def copy_core_tests(folder: pathlib.Path, more: Sequence[str] = ()) -> None:
    """Copies the core tests, more ones and what they share to an empty folder that holds nothing of the library."""
    shutil.copytree(ROOT / "tests" / "support", folder / "tests" / "support", ignore=shutil.ignore_patterns("*.pyc"))
    for name in ("__init__.py", "conftest.py", *CORE_TESTS, *more):
        shutil.copy(ROOT / "tests" / name, folder / "tests")
    # It has the settings of pytest.
    shutil.copy(ROOT / "pyproject.toml", folder)


def run_core_tests(interpreter: pathlib.Path, folder: pathlib.Path) -> tuple[bool, str]:
    """Runs the core tests of `copy_core_tests`; returns whether all passed, and what pytest says last."""
    # The folder is named, since a run of all tests that there are writes the table of regimes.
    command = [
        str(interpreter),
        "-m",
        "pytest",
        "tests",
        "-n",
        "auto",
        "--dist",
        "loadfile",
        "--max-worker-restart",
        "0",
    ]
    tests = subprocess.run(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True, check=False)
    summary = tests.stdout.splitlines()[-1]
    if tests.returncode != 0:
        print(tests.stdout, flush=True)
        summary = f"status {tests.returncode}: {summary}"
    return tests.returncode == 0, summary


def environment() -> dict[str, str]:
    """The variables of a process that sees nothing of the source tree."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def run(command: Sequence[str], folder: pathlib.Path | None = None, **variables: str) -> None:
    """Runs a command, with these variables of its own."""
    subprocess.run(command, cwd=folder, env={**environment(), **variables}, check=True)
