"""20,000 random calls of the ops, and proofs that the fuzzer finds faults."""

import argparse
import json
import os
import sys

import numpy as np
import pytest

from qa.fuzz import raw_ops, rules, shapes
from qa.fuzz.injected import fault_of
from qa.fuzz.raw_answers import answer
from qa.fuzz.raw_calls import OPS, SHARES, make_call
from qa.fuzz.raw_verdicts import judge

from ..support import reference
from ..support.processes import run_interpreter, run_python
from ..support.tensors import random_array

CALLS = 20_000
FIXED = json.loads((raw_ops.ROOT / "qa" / "fuzz" / "fixed.json").read_text())


ONE_CALL = """
import sys
from qa.fuzz.raw_answers import answer
from qa.fuzz.raw_calls import make_call

_, _, failure = answer(make_call(int(sys.argv[1])))
assert failure is None, failure
"""


@pytest.mark.parametrize("case", FIXED, ids=lambda case: str(case["seed"]))
def test_calls_that_failed_once_pass(case, tmp_path):
    call = make_call(case["seed"])
    assert call.describe() == case["call"], "the seed means another call now: find one for the same fault"
    if case["seed"] >= CALLS:  # The others are among the random calls below.
        environment = {"PYTHONPATH": str(raw_ops.ROOT), "TF_CG_OPS_DISABLE_PASSES": str(int(call.keeps_ops))}
        run_python(ONE_CALL, case["seed"], cwd=tmp_path, environment=environment)


def test_random_calls():
    summary = raw_ops.run(0, CALLS, processes=len(os.sched_getaffinity(0)))
    assert summary.failures == []
    assert summary.calls == summary.accepted + summary.refused == CALLS
    assert {f"{op} {outcome}" for op in OPS for outcome in ("accepted", "refused")} == set(summary.by_op)
    assert {f"{mode} {outcome}" for mode in SHARES for outcome in ("accepted", "refused")} == set(summary.by_mode)
    assert min(summary.accepted, summary.refused) > 5_000


def test_a_call_follows_from_its_number():
    for number in range(200):
        once, again = make_call(number), make_call(number)
        assert once.describe() == again.describe()
        arrays = [(a, b) for a, b in zip(once.inputs, again.inputs, strict=True) if isinstance(a, np.ndarray)]
        assert all(a.tobytes() == b.tobytes() for a, b in arrays if a.dtype != object)


@pytest.mark.slow
def test_faults_of_every_kind_are_found_and_the_calls_after_them_made():
    """One that aborts, one that never ends, one that is not what a (wrong) reference says."""
    accepted = [n for n in range(100, 160) if judge(make_call(n)).outputs is not None and make_call(n).mode == "eager"]
    inject = [f"{kind}@{number}" for kind, number in zip(("abort", "hang", "wrong"), accepted, strict=False)]
    summary = raw_ops.run(100, 60, inject=inject, time_limit=30.0)
    found = {failure["seed"]: failure["failure"] for failure in summary.failures}
    assert list(found) == accepted[:3]
    assert found[accepted[0]] == "ended the process (SIGABRT)"
    assert found[accepted[1]] == "no answer in 30 s (SIGKILL)"
    assert found[accepted[2]].startswith("accepted, where the reference refuses (injected)")
    assert summary.calls == 60
    assert 4 <= summary.children <= 5  # Of each kind one, and one more after each that ended; the last need not be.


def wrong_value(verdict):
    verdict.outputs[0].value = verdict.outputs[0].value + 0.1
    return verdict


def wrong_gradient(verdict):
    present = next(g for g in verdict.gradients if g is not None)
    present.value = present.value + np.asarray(0.1, present.value.dtype)
    return verdict


def no_gradient(verdict):
    verdict.gradients = [None] * len(verdict.gradients)
    return verdict


def accepting(verdict):
    verdict.outputs = []
    return verdict


def other_exceptions(verdict):
    verdict.exceptions = ("OverflowError",)
    return verdict


def first_call(op, mode, fits):
    """That this process can make, with the passes."""
    calls = (call for call in map(make_call, range(10**6)) if (call.op, call.mode) == (op, mode) and not call.keeps_ops)
    return next(call for call in calls if fits(judge(call), call))


def has_gradient(verdict, call):
    is_there = any(g is not None and 0 not in g.value.shape for g in verdict.gradients or [])
    return is_there and not any("without a value" in str(variable) for variable in call.variables)


def has_value(verdict, call):
    return verdict.outputs is not None and 0 not in verdict.outputs[0].value.shape


def is_refused(verdict, call):
    return verdict.outputs is None and not verdict.is_open


@pytest.mark.parametrize(
    ("op", "mode", "fits", "change", "failure"),
    [
        ("CustomGradientEmbedGrad", "eager", has_value, wrong_value, "output 0: wrong value"),
        ("CustomGradientEmbed", "eager", has_value, wrong_value, "output 0: "),
        ("CustomGradientEmbed", "session", has_gradient, wrong_gradient, "gradient "),
        ("CustomGradientEmbedGrad", "eager", has_gradient, no_gradient, "gradient "),
        ("CustomGradientEmbed", "eager", is_refused, accepting, "refused, where the reference accepts"),
        ("CustomGradientCheckShape", "eager", is_refused, other_exceptions, "refused (another shape) with another exc"),
    ],
)
def test_a_wrong_reference_is_noticed(op, mode, fits, change, failure):
    call = first_call(op, mode, fits)
    assert answer(call)[2] is None
    assert answer(call, change)[2].startswith(failure)


def random_shapes(seed):
    rng = np.random.default_rng(seed)
    return shapes.fitting_shapes(lambda options: options[rng.integers(len(options))])


@pytest.mark.parametrize("seed", range(200))
def test_the_rules_agree_with_the_reference_of_all_tests(seed):
    fx, gx, x, axis = random_shapes(seed)
    rng = np.random.default_rng(seed)
    dy, gx = random_array(rng, fx), random_array(rng, gx)
    value, _ = rules.gradient_of_form("x", {"fx": dy, "gx": gx}, x, axis or (), axis is None)
    np.testing.assert_allclose(value, reference.vjp(dy, gx, x, axis), rtol=1e-12, atol=1e-12)


def test_the_command_line_repeats_one_call(tmp_path):
    command = ["-m", "qa.fuzz", "raw_ops", "--seed", "12", "--calls", "1", "--json", tmp_path / "summary.json"]
    result = run_interpreter([sys.executable, *command, "--inject", "wrong@12"], cwd=raw_ops.ROOT, check=False)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert result.returncode == 1, result.stderr
    assert [failure["seed"] for failure in summary["failures"]] == [12]
    assert "1 calls" in result.stderr


@pytest.mark.parametrize("wrong", ["abort", "abort@", "abort@x", "rot@7", ""])
def test_a_fault_that_cannot_be_injected_is_an_error(wrong):
    with pytest.raises(argparse.ArgumentTypeError, match="expected KIND@NUMBER with a kind of abort, hang, wrong; got"):
        fault_of(*raw_ops.INJECTABLE)(wrong)
    assert fault_of(*raw_ops.INJECTABLE)("abort@7") == "abort@7"
