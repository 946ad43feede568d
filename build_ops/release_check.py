"""Makes all packages of a release in dist/, installs each into an empty environment, and runs `tf-cg-ops demo` there.

    python -m build_ops.release_check python3.12 python3.13

`make release-check` runs it. There is a wheel for each minor version of TensorFlow, which is its build number.
"""

import email
import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence

from .environments import ROOT, environment, make_environment, pip, pythons_at_hand, run
from .matrix import as_table, newest_for
from .release import DIST, make_sdist, repair, the_only
from .tensorflow import NEWEST_RELEASE, SUPPORTED, newest_of


def check_changelog(version: str) -> None:
    """Raises SystemExit unless CHANGELOG.md has a section for the version."""
    if not re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        raise SystemExit(f"tf_cg_ops: CHANGELOG.md must have a section '## {version}', the version in _version.py.")


def make_wheel(interpreter: pathlib.Path, sdist: pathlib.Path, minor: str, folder: pathlib.Path) -> pathlib.Path:
    """Makes the wheel for a minor version of TensorFlow from the source distribution, as users do."""
    setting = f"tensorflow=tensorflow{newest_of(minor)}"
    pip(interpreter, "wheel", "--no-deps", "--config-settings", setting, "-w", str(folder / "built"), str(sdist))
    return repair(the_only(folder / "built", f"tf_cg_ops-*-{minor}-*.whl"), DIST)


def check_metadata(wheel: pathlib.Path, minor: str) -> None:
    """Raises SystemExit unless the wheel requires this minor version, or the release candidate that it was made for."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        required = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    major, number = minor.split(".")
    fitting = re.compile(rf"tensorflow(<{major}\.{int(number) + 1},>={re.escape(minor)}|=={re.escape(minor)}\.0rc\d+)")
    if not any(map(fitting.fullmatch, required)):
        raise SystemExit(f"tf_cg_ops: {wheel} must require TensorFlow {minor}, got {required}.")


def check_descriptions(folder: pathlib.Path) -> None:
    """Checks that a package index can show the description of each package in the folder and below."""
    packages = sorted(str(path) for path in folder.rglob("tf_cg_ops-*") if path.is_file())
    run([sys.executable, "-m", "twine", "check", "--strict", *packages])


def run_demo(interpreter: pathlib.Path, package: pathlib.Path, folder: pathlib.Path) -> str:
    """Installs a wheel or the source distribution, and runs the demo; returns what was installed."""
    pip(interpreter, "install", str(package))
    run([str(interpreter.with_name("tf-cg-ops")), "demo"], folder=folder, TF_CPP_MIN_LOG_LEVEL="3")
    script = "import importlib.metadata as m, sys; print(sys.version.split()[0], m.version('tensorflow'))"
    found = subprocess.run(
        [interpreter, "-c", script], env=environment(), stdout=subprocess.PIPE, text=True, check=True
    )
    return found.stdout.strip()


def main(names: Sequence[str]) -> None:
    """Makes and checks everything, and prints a table of what ran."""
    version = importlib.metadata.version("tf_cg_ops")
    check_changelog(version)
    pythons = pythons_at_hand(names)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    rows: list[Sequence[str]] = [("package", "Python, TensorFlow", "demo"), ("---", "---", "---")]
    with tempfile.TemporaryDirectory(prefix="tf_cg_ops-") as temporary:
        sdist = pathlib.Path(shutil.copy(make_sdist(ROOT, pathlib.Path(temporary)), DIST))
    for minor in (*SUPPORTED, None):  # None: the source distribution, without naming a TensorFlow.
        python = newest_for(minor or NEWEST_RELEASE, pythons)
        if python is None:
            raise SystemExit(
                f"tf_cg_ops: none of these Pythons fits TensorFlow {minor or NEWEST_RELEASE}: {', '.join(pythons)}."
            )
        with tempfile.TemporaryDirectory(prefix="tf_cg_ops-") as temporary:
            folder = pathlib.Path(temporary)
            interpreter = make_environment(folder / "environment", python)
            package = sdist
            if minor:
                package = make_wheel(interpreter, sdist, minor, folder)
                check_metadata(package, minor)
            rows.append((str(package.relative_to(DIST)), run_demo(interpreter, package, folder), "passed"))
    check_descriptions(DIST)
    print("\n" + as_table(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
