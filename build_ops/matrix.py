"""Builds and tests the library against every supported TensorFlow, each in its own environment.

    python -m build_ops.matrix --python python3.12 python3.13 --tensorflow 2.19 2.21

`make matrix` runs it. Each version gets the newest of these Pythons that it is published for. Copy the table that it
prints into docs/building.md.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
from collections.abc import Sequence

from .environments import (
    CORE_REQUIREMENTS,
    ROOT,
    copy_core_tests,
    environment,
    make_environment,
    pip,
    pythons_at_hand,
    run_core_tests,
    version_of,
)
from .release import make_sdist
from .tensorflow import SUPPORTED, newest_of

# The newest Python that each version of TensorFlow is published for. (All are published for 3.10.)
NEWEST_PYTHON = {"2.19": (3, 12), "2.20": (3, 13), "2.21": (3, 13), "2.22": (3, 14)}

# In addition to the core tests: tests that depend on TensorFlow's private names or on Keras, or that read files from
# another TensorFlow.
MORE_TESTS = (
    "files/test_files.py",
    "graph/test_forward_mode.py",
    "keras/test_functional_models.py",
    "keras/test_layers.py",
    "packaging/test_tf_internal.py",
    "graph/test_vectorized_map.py",
)

HEADER = ("TensorFlow", "Python", "NumPy", "Keras", "tf_keras", "tests")


def newest_for(minor: str, pythons: dict[str, tuple[int, int]]) -> str | None:
    """The newest of the Pythons that a version of TensorFlow is published for."""
    fitting = [python for python, version in pythons.items() if version <= NEWEST_PYTHON[minor]]
    return max(fitting, key=lambda python: pythons[python], default=None)


def install(interpreter: pathlib.Path, minor: str, sdist: pathlib.Path) -> None:
    """Installs a version of TensorFlow, its tf_keras, and the library, built against it."""
    pip(interpreter, "install", f"tensorflow-cpu{newest_of(minor)}", *CORE_REQUIREMENTS)
    # tf_keras requires the distribution `tensorflow`, which pip would install too. A release candidate of TensorFlow
    # comes before its tf_keras.
    pip(interpreter, "install", "--no-deps", f"tf-keras<={minor}.99")
    pip(interpreter, "install", str(sdist))


def versions_in(interpreter: pathlib.Path) -> list[str]:
    """The versions of the packages in the table."""
    # Not from the metadata: a release candidate of TensorFlow requires keras-nightly.
    script = (
        "import json, platform, keras, numpy, tensorflow, tf_keras;"
        "found = [library.__version__ for library in (tensorflow, numpy, keras, tf_keras)];"
        "print(json.dumps([found[0], platform.python_version(), *found[1:]]))"
    )
    answer = subprocess.run([interpreter, "-c", script], env=environment(), stdout=subprocess.PIPE, check=True)
    return json.loads(answer.stdout.splitlines()[-1])


def run_one(minor: str, python: str, sdist: pathlib.Path) -> tuple[bool, list[str]]:
    """Builds and tests against one version; returns whether the tests passed, and the row of the table."""
    with tempfile.TemporaryDirectory(prefix="tf_cg_ops-") as temporary:
        folder = pathlib.Path(temporary)
        interpreter = make_environment(folder / "environment", python)
        try:
            install(interpreter, minor, sdist)
        except subprocess.CalledProcessError:  # pip has said why.
            return False, [minor, ".".join(map(str, version_of(python) or ())), *[""] * 3, "not built"]
        copy_core_tests(folder / "tests_alone", MORE_TESTS)
        passed, summary = run_core_tests(interpreter, folder / "tests_alone")
        return passed, [*versions_in(interpreter), summary.strip("= ")]


def main() -> None:
    """Runs all versions and prints the table; fails if a test failed or a version did not run."""
    parser = argparse.ArgumentParser(description="Builds and tests against several versions of TensorFlow.")
    parser.add_argument("--python", nargs="+", default=["python3"], help="the Pythons to choose from")
    parser.add_argument("--tensorflow", nargs="+", default=SUPPORTED, choices=SUPPORTED, metavar="MINOR")
    options = parser.parse_args()
    pythons = pythons_at_hand(options.python)
    rows, all_passed = [], True
    with tempfile.TemporaryDirectory(prefix="tf_cg_ops-") as temporary:
        sdist = make_sdist(ROOT, pathlib.Path(temporary))
        for minor in options.tensorflow:
            python = newest_for(minor, pythons)
            passed, row = run_one(minor, python, sdist) if python else (False, [minor, "not installed", *[""] * 4])
            all_passed &= passed
            rows.append(row)
            print(as_table(rows[-1:]), flush=True)
    print("\n" + as_table([HEADER, ["---"] * len(HEADER), *rows]))
    if not all_passed:
        raise SystemExit("tf_cg_ops: some versions were not built or failed tests; the table says which.")


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """The rows as a Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    main()
