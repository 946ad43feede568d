"""The quickstart notebook runs in a fresh kernel, and prints what is stored in it."""

import re

import nbformat
import pytest

from docs.notebook import QUICKSTART, execute

STORED = nbformat.read(QUICKSTART, as_version=4)


@pytest.fixture(scope="module")
def executed():
    return execute(QUICKSTART)


def test_the_stored_outputs_are_those_of_a_fresh_kernel(executed):
    for stored, new in zip(code_cells(STORED), code_cells(executed), strict=True):
        assert without_percentages(printed(new)) == without_percentages(printed(stored)), stored.source


def test_accuracies_are_close_to_the_stored_ones(executed):
    """They depend on the order in which a machine adds."""
    assert percentages(executed) == pytest.approx(percentages(STORED), abs=3)


def test_the_straight_through_sign_learns_and_the_plain_one_does_not(executed):
    plain, straight_through = percentages(executed)
    assert plain < 65
    assert straight_through > 85


def test_cells_were_executed_in_order():
    assert [cell.execution_count for cell in code_cells(STORED)] == list(range(1, len(code_cells(STORED)) + 1))


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell):
    """The text that a cell prints; other outputs have no place on the page."""
    for output in cell.outputs:
        assert (output.output_type, output.name) == ("stream", "stdout"), output
    return "".join(output.text for output in cell.outputs)


def percentages(notebook):
    text = "".join(printed(cell) for cell in code_cells(notebook))
    return [int(number) for number in re.findall(r"(\d+)%", text)]


def without_percentages(text):
    return re.sub(r"\d+%", "%", text)
