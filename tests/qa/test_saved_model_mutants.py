"""The fuzzer of SavedModels: it finds injected faults, and a run finds nothing else."""

import json
import pathlib
import sys

import numpy as np
import pytest
from tensorflow.core.protobuf import saved_model_pb2

from qa.fuzz import saved_model_actions as actions
from qa.fuzz import saved_model_bases as bases

from ..support.processes import HANGS, run_interpreter

ROOT = pathlib.Path(__file__).parents[2]


def fuzz(tmp_path, *options, time_limit=HANGS):
    command = [sys.executable, "-m", "qa.fuzz.saved_models", "--json", tmp_path / "summary.json", *options]
    result = run_interpreter(command, ROOT, check=False, time_limit=time_limit)
    return result.returncode, json.loads((tmp_path / "summary.json").read_text())


INJECTED = {
    "abort": "ours: dead (SIGABRT)",
    "hang": "ours: hang",
    "leak": "ours: memory",
    "wrong": "wrong result",
    "undocumented": "undocumented error",
}


@pytest.mark.slow
def test_injected_faults_are_found(tmp_path):
    faults = [f"{kind}@{number}" for number, kind in enumerate(INJECTED)]
    returned, summary = fuzz(tmp_path, "--mutants", 6, "--inject", *faults)
    assert returned == 1
    assert [found["verdict"] for found in summary["not fine"]] == list(INJECTED.values())
    assert summary["verdicts"] == dict.fromkeys(INJECTED.values(), 1) | {"fine": 1}


def test_mutants_end_with_a_result_or_an_exception(tmp_path):
    returned, summary = fuzz(tmp_path, "--mutants", 500, "--seed", 3, time_limit=1200)
    assert (returned, summary["faults of this library"]) == (0, 0), summary["not fine"]
    assert summary["mutants"] == 500
    assert summary["outcomes"]["load"]["result"] > 100


# Number 10 of the seed above, too.
def test_faults_found_before_stay_fixed(tmp_path):
    returned, summary = fuzz(tmp_path, "--seed", 2, "--only", 5, 83, 278, "--seconds", 30)
    assert (returned, summary["verdicts"]) == (0, {"fine": 3})


@pytest.mark.parametrize("base", bases.BASES)
def test_the_control_of_a_mutant_has_only_built_in_ops_and_runs(base, tmp_path):
    bases.save(base, tmp_path)
    value = actions.load(tmp_path)[0]
    actions.replace_our_ops(tmp_path)
    text = (tmp_path / "saved_model.pb").read_bytes()
    graph_def = saved_model_pb2.SavedModel.FromString(text).meta_graphs[0].graph_def
    bodies = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    nodes = [node for body in bodies for node in body]
    assert not [node.op for node in nodes if node.op.startswith("CustomGradient")]
    assert any(node.name.endswith("_rule") for node in nodes) == (b"CustomGradientRule" in text)
    if base is not bases.step:  # It computes a gradient, which is another one now.
        np.testing.assert_allclose(actions.load(tmp_path)[0], value)
