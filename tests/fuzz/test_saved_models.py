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


PLANTED = {
    "abort": "ours: dead (SIGABRT)",
    "hang": "ours: hang",
    "leak": "ours: memory",
    "wrong": "wrong result",
    "undocumented": "undocumented error",
}


@pytest.mark.slow
def test_planted_faults_are_found(tmp_path):
    plants = [f"{kind}@{number}" for number, kind in enumerate(PLANTED)]
    returned, summary = fuzz(tmp_path, "--mutants", 6, "--plant", *plants)
    assert returned == 1
    assert [found["verdict"] for found in summary["not fine"]] == list(PLANTED.values())
    assert summary["verdicts"] == dict.fromkeys(PLANTED.values(), 1) | {"fine": 1}


@pytest.mark.parametrize("count", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_mutants_end_with_a_result_or_an_exception(count, tmp_path):
    returned, summary = fuzz(tmp_path, "--mutants", count, "--seed", 3, time_limit=1200)
    assert (returned, summary["faults of this library"]) == (0, 0), summary["not fine"]
    assert summary["mutants"] == count
    assert summary["outcomes"]["load"]["result"] > count / 5


# Number 10 of the seed above, too.
def test_what_was_found_before_stays_mended(tmp_path):
    returned, summary = fuzz(tmp_path, "--seed", 2, "--only", 5, 83, 278, "--seconds", 30)
    assert (returned, summary["verdicts"]) == (0, {"fine": 3})
