"""Malformed graphs run or raise an error. None ends the process or runs for ever."""

import json
import pathlib

import pytest

from ..support.processes import run_python

# The graphs that run, with their results. All others raise errors.
THESE_RUN = ["many branches", "a_branch_that_names_itself", "more branches than a stack holds", "many_switches"]


@pytest.mark.parametrize("disable", ["0", "1"], ids=["with_the_pass", "without"])
def test_graphs_that_are_not_traced_from_python(disable, tmp_path):
    """The second process runs the graphs without the library, and what it returns there is right."""
    program = pathlib.Path(__file__).with_name("malformed_graphs.py").read_text()
    result = run_python(program, cwd=tmp_path, environment={"TF_CG_OPS_DISABLE_PASSES": disable})
    answers = json.loads(result.stdout.splitlines()[-1])
    values = {name: answer for name, answer in answers.items() if not isinstance(answer, str)}
    assert values == {name: [1.0, 2.0] for name in THESE_RUN}
