"""docs/reliability.md says what the files beside it say, and the list of faults fits the sources."""

import json

import pytest

from qa import page
from qa.faults import mutants
from qa.faults.cpp_faults import FAULTS
from qa.faults.harmless_mutants import HARMLESS
from qa.faults.inject import RESULTS

from ..support.sources import ROOT


def test_the_page_shows_the_results():
    text = page.PAGE.read_text()
    assert page.page(text) == text


def test_no_result_is_left_out():
    assert {path.stem for path in page.RESULTS.iterdir()} == set(page.PARTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_fits_the_sources_and_names_tests(fault):
    assert (ROOT / fault.file).read_text().count(fault.right) == 1
    assert fault.tests
    assert [test for test in fault.tests if not (ROOT / "tests" / test).is_file()] == []


def test_each_fault_that_was_put_in_was_noticed():
    found = {row["fault"]: row["noticed_by"] for row in json.loads(RESULTS.read_text())}
    assert set(found) <= {fault.name for fault in FAULTS}
    assert found
    assert [name for name, noticed_by in found.items() if noticed_by is None] == []


def test_each_change_of_a_module_was_noticed_or_is_harmless():
    rows = json.loads(mutants.RESULTS.read_text())
    assert len(rows) > 100
    assert mutants.missed(rows) == []
    assert set(HARMLESS) <= {mutants.name_of(row) for row in rows if row["noticed_by"] is None}


@pytest.mark.parametrize("module", mutants.modules())
def test_each_module_that_is_changed_has_tests(module):
    names = mutants.tests_for(module)
    assert names
    assert [name for name in names if not (ROOT / "tests" / name).is_file()] == []
