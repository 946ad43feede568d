"""The Makefile: every target has a line of help, and its tiers of tests run each test once."""

import itertools
import os
import re
import subprocess

import pytest

from ..conftest import SLOWEST
from ..support.sources import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
(LISTED,) = re.findall(r"^\.PHONY: ((?:.*\\\n)*.*)", MAKEFILE, re.MULTILINE)
TARGETS = LISTED.replace("\\", " ").split()
# The recipe of each target that is nothing but a run of pytest.
TIERS = dict(re.findall(r"^(test[\w-]*):.*\n\t\$\(PYTEST\)(.*)\n", MAKEFILE, re.MULTILINE))


# A make within `make test` says which directory it enters, and takes over its flags.
OUTSIDE_MAKE = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}


def test_make_without_a_target_lists_every_target_with_a_line():
    shown = subprocess.run(["make"], cwd=ROOT, env=OUTSIDE_MAKE, capture_output=True, text=True, check=True).stdout
    lines = [re.fullmatch(r"make ([\w-]+) +(\w.*)", line) for line in shown.splitlines()]
    assert [line.group(1) for line in lines] == TARGETS


def test_every_rule_of_a_target_is_listed():
    rules = set(re.findall(r"^([a-z][\w-]*):(?! export)", MAKEFILE, re.MULTILINE))
    assert rules == set(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_targets_can_be_made(target):
    subprocess.run(["make", "--dry-run", target], cwd=ROOT, env=OUTSIDE_MAKE, check=True, stdout=subprocess.DEVNULL)


def test_each_test_is_in_one_tier():
    assert set(TIERS) == {"test", "test-rest", "test-all", "test-slow"}
    assert TIERS["test-all"] == ""  # The options in pyproject.toml leave out the slow ones.
    marks = {name: options.split("-m ")[1].strip(" '") for name, options in TIERS.items() if options}
    for core, slow in itertools.product([False, True], repeat=2):
        assert sum(eval(mark, {"core": core, "slow": slow}) for mark in marks.values()) == 1


def test_continuous_integration_runs_the_core_first_and_then_the_rest():
    targets = re.findall(r"^ *make ([\w-]+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert [target for target in targets if not target.startswith("install")] == [
        "test",
        "test-rest",
        "bazel-test",
        "docs",
    ]


def test_the_slowest_files_exist():
    assert [name for name in SLOWEST if not (ROOT / "tests" / name).is_file()] == []
