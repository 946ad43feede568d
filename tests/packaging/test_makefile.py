"""The Makefile: every target has a line of help, the tiers run each test once, pages and CI name targets that exist."""

import itertools
import os
import re
import subprocess

import pytest

from ..support.sources import ROOT, source_files

MAKEFILE = (ROOT / "Makefile").read_text()
(LISTED,) = re.findall(r"^\.PHONY: ((?:.*\\\n)*.*)", MAKEFILE, re.MULTILINE)
TARGETS = LISTED.replace("\\", " ").split()
# The options of pytest in the recipe of each tier.
TIERS = dict(re.findall(r"^(test[\w-]*):.*\n\t\$\(PYTEST\)([^;\n]*)", MAKEFILE, re.MULTILINE))


# Without these, a make inside `make test` would print directories and inherit flags.
OUTSIDE_MAKE = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}


def test_make_without_a_target_lists_every_target_with_a_line():
    shown = subprocess.run(["make"], cwd=ROOT, env=OUTSIDE_MAKE, capture_output=True, text=True, check=True).stdout
    lines = [re.fullmatch(r"make ([\w-]+) +(\w.*)", line) for line in shown.splitlines()]
    assert [line.group(1) for line in lines] == TARGETS
    assert set(re.findall(r"^([a-z][\w-]*):(?! export)", MAKEFILE, re.MULTILINE)) == set(TARGETS)


def test_each_test_is_in_one_tier():
    assert set(TIERS) == {"test", "test-rest", "test-all", "test-slow"}
    marks = {name: options.split("-m ")[1].strip(" '") for name, options in TIERS.items() if "-m " in options}
    assert set(TIERS) - set(marks) == {"test-all"}  # The options in pyproject.toml leave out the slow ones.
    for core, slow in itertools.product([False, True], repeat=2):
        assert sum(eval(mark, {"core": core, "slow": slow}) for mark in marks.values()) == 1


def test_continuous_integration_runs_the_core_first_and_then_the_rest():
    targets = re.findall(r"^ *(?:part )?make ([\w-]+)(?: \w+=\w+)?$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert [target for target in targets if not target.startswith("install")] == [
        "test",
        "test-rest",
        "bazel-test",
    ]


@pytest.mark.parametrize(
    "path",
    source_files(".github/workflows/*.yml", "README.md", "CONTRIBUTING.md", "docs/building.md", "docs/reliability.md"),
    ids=lambda path: path.name,
)
def test_workflows_and_pages_name_targets_that_exist(path):
    named = re.findall(r"(?:^ {4}|`|run: )make ([a-z][\w-]*)", path.read_text(), re.MULTILINE)
    assert named
    assert set(named) <= set(TARGETS)
