"""The fuzzer of SavedModels: it finds what is planted, and a run of it finds nothing else."""

import json
import pathlib
import sys

import pytest

from tests.support.processes import HANGS, run_interpreter

ROOT = pathlib.Path(__file__).parents[2]


def fuzz(tmp_path, *options, time_limit=HANGS):
    command = [sys.executable, "-m", "tests.fuzz.saved_models", "--json", tmp_path / "summary.json", *options]
    result = run_interpreter(command, ROOT, check=False, time_limit=time_limit)
    return result.returncode, json.loads((tmp_path / "summary.json").read_text())


@pytest.mark.parametrize(
    ("planted", "verdict"),
    [
        ("abort", "ours: dead (SIGABRT)"),
        ("hang", "ours: hang"),
        ("leak", "ours: memory"),
        ("wrong", "wrong result"),
        ("undocumented", "undocumented error"),
    ],
)
def test_a_planted_fault_is_found(tmp_path, planted, verdict):
    returned, summary = fuzz(tmp_path, "--only", 1, "--plant", planted)
    assert returned == 1
    assert summary["verdicts"] == {verdict: 1}
    assert summary["not fine"][0]["number"] == 1


def test_mutants_end_with_a_result_or_an_exception(tmp_path):
    returned, summary = fuzz(tmp_path, "--mutants", 500, "--seed", 3, time_limit=1200)
    assert (returned, summary["faults of this library"]) == (0, 0), summary["not fine"]
    assert summary["mutants"] == 500
    assert summary["outcomes"]["load"]["result"] > 100


# What was found and mended: (seed, number).
@pytest.mark.parametrize(("seed", "number"), [(2, 5), (2, 83), (2, 278), (3, 10)])
def test_what_was_found_before_stays_mended(tmp_path, seed, number):
    returned, summary = fuzz(tmp_path, "--seed", seed, "--only", number, "--seconds", 30)
    assert (returned, summary["verdicts"]) == (0, {"fine": 1})
