"""The support matrix is written from pytest's report of the marked tests, which ran in several processes."""

import json
import sys

import pytest

from . import mode_table
from .processes import run_interpreter
from .sources import ROOT

PROJECT = {
    "pytest.ini": "[pytest]\nmarkers = mode_table(feature, mode)\n",
    "conftest.py": """
from tests.support import mode_table

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

@pytest.mark.mode_table(feature="map_fn", mode="eager")
def test_skipped():
    pytest.skip()

def test_without_a_mark():
    pass
""",
    "test_second.py": """
import pytest

@pytest.mark.mode_table(feature="cond", mode="jit", outcome="unsupported")
def test_a_cell_that_is_unsupported():
    pass

@pytest.mark.mode_table(feature="plain", mode="eager")
@pytest.mark.mode_table(feature="scan", mode="jit")
def test_a_cell_of_two_files():
    pass
""",
}
CELLS = {
    "eager": {"embed_gradient": "passed", "map_fn": "failed", "plain": "passed"},
    "jit": {"cond": "unsupported", "plain": "passed", "scan": "failed"},
}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    for name, text in PROJECT.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-B", "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "--junitxml=report.xml"]
    result = run_interpreter(command, folder, {"PYTHONPATH": str(ROOT)}, check=False)
    assert "1 failed, 5 passed, 1 skipped" in result.stdout
    return folder / "report.xml"


@pytest.fixture
def root(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(mode_table, "ROOT", tmp_path)
    return tmp_path / "docs"


def test_the_worst_outcome_of_each_cell_is_written(report, root):
    (root / "modes.json").write_text('{"cells": {"jit": {"scan": "passed"}}}')
    mode_table.main(report)
    assert json.loads((root / "modes.json").read_text())["cells"] == CELLS
    assert "\n| XLA (`jit_compile=True`) |  | FAILS |" in (root / "modes.md").read_text()


@pytest.mark.parametrize(
    ("outcomes", "text"),
    [
        (["passed", "passed"], "yes"),
        (["passed", "unsupported"], "partly"),
        (["unsupported"], "no"),
        (["unsupported", "failed"], "FAILS"),
        ([], ""),
    ],
)
def test_what_a_cell_says(outcomes, text):
    cells = {"jit": dict(zip(("plain", "nested", "cond"), outcomes, strict=False))}
    assert f"\n| XLA (`jit_compile=True`) |  | {text} |" in mode_table.page("2.21", cells)


def test_a_report_that_lacks_a_cell_is_refused(report, root):
    known = json.dumps({"cells": {"jit": {"scan": "passed"}, "tf1": {"cond": "passed"}}})
    (root / "modes.json").write_text(known)
    with pytest.raises(SystemExit, match="got none for 'cond' in 'tf1'"):
        mode_table.main(report)
    assert (root / "modes.json").read_text() == known


def test_the_page_is_made_from_the_cells():
    table = json.loads((ROOT / "docs" / "modes.json").read_text())
    assert (ROOT / "docs" / "modes.md").read_text() == mode_table.page(table["tensorflow"], table["cells"])
