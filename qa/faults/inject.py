"""Injects the faults of `cpp_faults.py` into a copy of the sources, one at a time; the tests must fail for each.

    python -m qa.faults.inject [--only TEXT] [--new]

Each outcome goes into docs/reliability/faults.json; the program fails if the tests miss a fault.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from tests.support.sources import ROOT

from .cpp_faults import FAULTS, Fault

RESULTS = ROOT / "docs" / "reliability" / "faults.json"
# Of the tests for one fault, in seconds; a fault may make a program run without end.
TIME_LIMIT = 900


def copy_of_the_sources(folder: pathlib.Path) -> pathlib.Path:
    """Copies the files of git, and the compiled ones."""
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, files.stdout.decode().split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return folder


def run(
    folder: pathlib.Path, *arguments: str, time_limit: float = TIME_LIMIT, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs Python in the copy, which precedes every installed package."""
    # A fault may leave something unused, of which the compiler warns.
    environment = {**os.environ, "PYTHONPATH": str(folder), "TF_CG_OPS_WERROR": "0", **(variables or {})}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=time_limit,
    )


def build(folder: pathlib.Path) -> None:
    """Compiles what changed."""
    built = run(folder, "setup.py", "-q", "build_ext", "--inplace", variables={"TF_CG_OPS_CUDA": "0"})
    if built.returncode != 0:
        raise SystemExit(f"qa: the sources do not compile; expected a library, got\n{built.stdout}")


def first_failure(folder: pathlib.Path, tests: Sequence[str], time_limit: float = TIME_LIMIT) -> str | None:
    """The first test that fails; None if none does. A crash of the process counts, with the signal for a name."""
    try:
        paths = (f"tests/{test}" for test in tests)
        done = run(folder, "-m", "pytest", "-x", "-p", "no:cacheprovider", *paths, time_limit=time_limit)
    except subprocess.TimeoutExpired:
        return f"no end within {time_limit:g} s"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"the process died of signal {-done.returncode}"
    # A test's name may have spaces in it, and what failed stands behind it.
    found = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(\S+?\.py(?:::.+?)?)(?: - .*)?$", done.stdout, re.MULTILINE)
    # 2 and 4: it cannot even be collected, as a file or by a test's name.
    if done.returncode not in (1, 2, 4) or found is None:
        raise SystemExit(f"qa: the tests could not be run; got\n{done.stdout}")
    return found.group(1)


def seed(fault: Fault, folder: pathlib.Path) -> str | None:
    """The test that notices the fault."""
    path = folder / fault.file
    text = path.read_text()
    if text.count(fault.right) != 1:
        raise SystemExit(
            f"qa: the fault '{fault.name}' does not fit {fault.file}; expected `{fault.right}` once, got it "
            f"{text.count(fault.right)} times. Fix it in qa/faults/cpp_faults.py."
        )
    path.write_text(text.replace(fault.right, fault.wrong))
    try:
        build(folder)
        return first_failure(folder, fault.tests)
    finally:
        path.write_text(text)


class WithoutAFault:
    """The tests as they are: those that fail without a fault show nothing about one."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._passed: set[str] = set()

    def require(self, tests: Sequence[str]) -> None:
        """Runs the tests that have not yet passed."""
        new = sorted(set(tests) - self._passed)
        if not new:
            return
        failed = first_failure(self._folder, new)
        if failed is not None:
            raise SystemExit(f"qa: a test fails without a fault; expected that {', '.join(new)} pass, got {failed}")
        self._passed.update(new)


def outcomes() -> dict[str, dict[str, str | None]]:
    """The outcomes in the file, by the name of the fault."""
    return {row["fault"]: row for row in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}


def keep(fault: Fault, noticed: str | None) -> None:
    """Adds one outcome to the file, in the order of the list."""
    known = outcomes()
    known[fault.name] = {"fault": fault.name, "file": fault.file, "noticed_by": noticed}
    rows = [known[one.name] for one in FAULTS if one.name in known]
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


def main() -> None:
    """Injects all faults, or those that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="faults with this in their name")
    parser.add_argument("--new", action="store_true", help="only faults that have no outcome yet")
    arguments = parser.parse_args()
    done = outcomes() if arguments.new else {}
    faults = [fault for fault in FAULTS if arguments.only in fault.name and fault.name not in done]
    if not any(arguments.only in fault.name for fault in FAULTS):
        parser.error(f"--only {arguments.only}: no fault has that in its name")
    if not faults:
        parser.error(
            "--new: expected faults that have no outcome yet, got none; without --new they are put in once more"
        )
    missed = []
    with tempfile.TemporaryDirectory(prefix="tf_cg_ops-") as temporary:
        folder = copy_of_the_sources(pathlib.Path(temporary))
        build(folder)
        without_a_fault = WithoutAFault(folder)
        for number, fault in enumerate(faults, start=1):
            without_a_fault.require(fault.tests)
            start = time.monotonic()
            noticed = seed(fault, folder)
            seconds = round(time.monotonic() - start)
            print(f"{number} of {len(faults)}, {seconds} s, {fault.name}: {noticed}", file=sys.stderr, flush=True)
            keep(fault, noticed)
            missed += [fault.name] if noticed is None else []
            build(folder)  # Without the fault: the next one may have other tests, which must pass.
    if missed:
        raise SystemExit(f"qa: the tests noticed nothing of: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
