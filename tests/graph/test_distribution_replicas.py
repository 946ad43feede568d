"""Variables of a strategy (mirrored or on parameter servers) in functions of the library, and Keras under a strategy."""

import functools
import json
import pathlib

import numpy as np
import pytest

from ..support.processes import run_python

TASKS = {
    "mirrored": [
        *("gradients traced", "gradients eager", "outside_of_a_replica traced", "outside_of_a_replica eager"),
        *("training traced", "merging eager"),
    ],
    "parameter_server": ["gradients traced"],
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the tasks of a strategy find, from one process."""
    program = pathlib.Path(__file__).with_name("replicas.py").read_text()

    def run(strategy):
        printed = run_python(program, strategy, *TASKS[strategy], cwd=tmp_path_factory.mktemp(strategy)).stdout
        return json.loads(printed.splitlines()[-1])

    return functools.cache(run)


def by_hand(replica):
    """The gradients by x, a and b in each case."""
    x, dy, none = np.array([1.0, 2.0]) * (replica + 1), np.array([1.0, 10.0]), np.zeros(2)
    a, b = np.array([2.0, 3.0]), np.array([5.0, 7.0])
    step, slope = x * a, dy
    for _ in range(5):
        step, slope = np.sin(step), slope * np.cos(step)
    return {
        "captured": [7 * dy, 10 * dy, 100 * dy],
        "passed": [2 * dy * b, 3 * dy, 5 * dy],
        "cond": [7 * dy, 10 * dy, 100 * dy] if replica else [1000 * dy, none, none],
        "while_loop": [49 * dy, 80 * dy, 800 * dy],
        "second_order": [dy**2 * b, dy**2, dy**2 * x],
        "recompute_grad": [dy * np.cos(x * a) * a * b, dy * np.cos(x * a) * x * b, dy * np.sin(x * a)],
        "memory": [slope * a * b, slope * x * b, dy * step],
        "embed_gradient": [none, dy * x, none],
        "scan": [dy * a**2, dy * 2 * a * x, none],
    }


def cells(mode):
    """The cells of the support matrix for the functions of the library in the cases."""
    functions = ("embed_gradient", "custom_gradient", "recompute_grad", "cg.scan")
    return [pytest.mark.mode_table(feature=function, mode=mode) for function in functions]


STRATEGIES = [
    pytest.param("mirrored", "traced", 2, marks=cells("mirrored")),
    ("mirrored", "eager", 2),
    pytest.param("parameter_server", "traced", 1, marks=cells("parameter_server")),
]


@pytest.mark.parametrize(("strategy", "mode", "replicas"), STRATEGIES)
def test_variables_of_a_strategy(strategy, mode, replicas, found):
    by_name = found(strategy)[f"gradients {mode}"]
    for replica in range(replicas):
        expected = by_hand(replica)
        assert list(by_name) == list(expected)
        for name, gradients in expected.items():
            assert len(by_name[name]) == replicas
            np.testing.assert_allclose(by_name[name][replica], gradients, rtol=1e-13, err_msg=name)


def test_a_model_within_a_memory_is_trained_as_without(found):
    plain, planned = found("mirrored")["training traced"]
    for a, b in zip(planned, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_variables_that_are_passed_outside_of_a_replica_are_not_captured(mode, found):
    expected = [[2.0, 6.0], [7.0, 13.0], [4.0, 40.0], [30.0, 420.0]]
    assert found("mirrored")[f"outside_of_a_replica {mode}"] == expected


def test_what_merges_replicas_is_not_recomputed_and_a_warning_says_so(found):
    names = {"all_reduce": ("recompute_grad", "reduced"), "batch normalization": ("layers.Recompute", "normalized_1")}
    for name, (expected, recomputed, texts) in found("mirrored")["merging eager"].items():
        np.testing.assert_allclose(recomputed, expected, rtol=1e-12, err_msg=name)
        api, function = names[name]
        assert texts == [
            f"{api}: '{function}' is not recomputed, because it merges the replicas of a strategy, as an all_reduce or a "
            "synchronized batch normalization does. TensorFlow does not trace that. Values and gradients are the same. "
            "Merge outside of the function to save memory."
        ]
