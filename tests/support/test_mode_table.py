"""The table of modes is written by a run of all marked tests, in one process or in several, and by no other."""

import json
import re
import sys

import pytest

from .processes import run_interpreter
from .sources import ROOT

PROJECT = {
    # The page names the version; nothing here computes.
    "tensorflow.py": "__version__ = '2.99.1'\n",
    "pytest.ini": "[pytest]\nmarkers = mode_table(feature, mode)\n",
    "conftest.py": """
import pathlib
from tests.support import mode_table

mode_table.ROOT = pathlib.Path(__file__).parent

def pytest_configure(config):
    config.pluginmanager.register(mode_table.ModeTable(config))

def pytest_collection_modifyitems(items):
    for item in items:
        item.user_properties.extend(mode_table.cells_of(item))
""",
    "test_first.py": """
import pytest

@pytest.mark.mode_table(feature="feature", mode="jit")
@pytest.mark.parametrize("feature", ["plain", "scan"])
def test_two(feature):
    assert feature != "scan"

@pytest.mark.mode_table(feature="embed_gradient", mode="eager")
def test_one():
    pass

def test_without_a_mark():
    pass
""",
    "test_second.py": """
import pytest

@pytest.mark.mode_table(feature="cond", mode="jit", outcome="left out")
def test_a_cell_left_out():
    pass

@pytest.mark.mode_table(feature="plain", mode="eager")
@pytest.mark.mode_table(feature="embed_gradient", mode="eager")
def test_a_cell_of_two_files():
    pass
""",
}

CELLS = {
    "eager": {"embed_gradient": "passed", "plain": "passed"},
    "jit": {"cond": "left out", "plain": "passed", "scan": "failed"},
}

# The options of `make test`.
(DISTRIBUTED,) = re.findall(r"pytest -n \$\(WORKERS\) (.*)", (ROOT / "Makefile").read_text())
ONE, TWO = [], ["-n", "2", *DISTRIBUTED.split()]
PROCESSES = pytest.mark.parametrize("processes", [ONE, TWO], ids=["one process", "two"])


def run_project(folder, *options, **more):
    """The output of pytest, and the names of what it wrote."""
    (folder / "docs").mkdir()
    for name, text in {**PROJECT, **more}.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-B", "-m", "pytest", "-v", "-p", "no:cacheprovider", *options]
    result = run_interpreter(command, folder, {"PYTHONPATH": str(ROOT)}, check=False)
    return result.stdout, {path.name for path in (folder / "docs").iterdir()}


@PROCESSES
def test_a_run_of_all_writes_the_outcome_of_every_marked_test(processes, tmp_path):
    output, written = run_project(tmp_path, *processes)
    assert "1 failed, 5 passed" in output
    assert [f"[gw{i}]" in output for i in (0, 1)] == [processes == TWO] * 2
    assert written == {"modes.json", "modes.md"}
    assert json.loads((tmp_path / "docs" / "modes.json").read_text()) == {"tensorflow": "2.99", "cells": CELLS}
    assert "\n| XLA (`jit_compile=True`) | " in (tmp_path / "docs" / "modes.md").read_text()


@PROCESSES
@pytest.mark.parametrize(
    "options",
    [["-k", "not scan"], ["test_first.py"], ["--ignore=test_second.py"]],
    ids=["a test is deselected", "a file is named", "a file is ignored"],
)
def test_a_run_of_a_part_writes_nothing(options, processes, tmp_path):
    output, written = run_project(tmp_path, *processes, *options)
    assert " passed" in output
    assert written == set()


@PROCESSES
def test_a_run_with_a_file_that_cannot_be_read_writes_nothing(processes, tmp_path):
    options = ["--continue-on-collection-errors", *processes]
    output, written = run_project(tmp_path, *options, **{"test_third.py": "import nowhere"})
    assert "1 failed, 5 passed, 1 error" in output
    assert written == set()


def test_a_run_with_a_worker_that_crashes_in_a_marked_test_writes_nothing(tmp_path):
    crash = """
import os
import pytest

@pytest.mark.mode_table(feature="plain", mode="tf1")
def test_that_ends_the_process():
    os._exit(1)
"""
    output, written = run_project(tmp_path, *TWO, **{"test_third.py": crash})
    assert "crashed while running 'test_third.py::test_that_ends_the_process'" in output
    assert written == set()
