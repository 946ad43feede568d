"""Short runs of the fuzzers. They find faults of every kind, and shrink the input."""

import functools
import os
import re
import time
from unittest import mock

import pytest

import tf_cg_ops as cg
from qa.fuzz import differential, plans, raw, same, saved_models
from qa.fuzz.hunt import hunt
from qa.fuzz.processes import DiedError, FailedError, Worker
from tf_cg_ops._src.memory.replay import Replay

from ..support import reference

# Subjects and numbers of examples.
SHORT = {"raw": 60, "differential": 50, "saved_models": 25, "plans": 4, "same": 4}


# Odd seeds run without the graph passes.
@pytest.mark.parametrize(("subject", "examples", "seed"), [*((n, k, 2) for n, k in SHORT.items()), ("raw", 75, 3)])
def test_a_short_run_finds_nothing(subject, examples, seed):
    counts, failure = hunt(subject, examples, seed)
    assert failure is None
    assert counts.total() >= examples
    assert len(counts) > 1


# Checks with a fault. The child process imports them from here.


def with_a_wrong_reference(case, folder):
    right = reference.vjp
    with mock.patch.object(reference, "vjp", lambda *args: right(*args) * (1.001 if case.axis else 1.0)):
        return differential.check(case)


def without_a_conjugate(call, folder):
    """Leaves out the conjugate in NumPy, so complex gradients look wrong."""
    with mock.patch.object(reference.np, "conj", lambda array: array):
        return raw.check(call)


def with_a_wrong_message(case, folder):
    right = cg.saved_model.inspect

    def inspect(folder):
        try:
            return right(folder)
        except ValueError as error:
            raise ValueError("unheard") from error

    with mock.patch.object(cg.saved_model, "inspect", inspect):
        return saved_models.check(case, folder)


def without_a_gradient(check, case, folder):
    """Loses a gradient of a recomputed segment that has several."""
    right = Replay.gradients

    def gradients(*args):
        found = right(*args)
        positions = [i for i, gradient in enumerate(found) if gradient is not None]
        return [None if positions[1:] and i == positions[1] else g for i, g in enumerate(found)]

    with mock.patch.object(Replay, "gradients", gradients):
        return check(case)


lost = functools.partial(functools.partial, without_a_gradient)
FAULTS = {
    "saved_models": (60, with_a_wrong_message, "ValueError: unheard", r"'inspect', edits=\(Edit\([^()]*\),\)"),
    "differential": (60, with_a_wrong_reference, "gradient 2, eager", r"pairs=1.*order=1.*mode='eager'.*seed=0"),
    "raw": (200, without_a_conjugate, "Not equal to tolerance", r"dtype=tf.complex(64|128), shape=\(\).*seed=0"),
    "plans": (20, lost(plans.check), "", r"steps=\(\([^()]*\),\), results=\(0,\).*seed=0"),
    "same": (60, lost(same.check), "", r"steps=\(\([^()]*\),\), around="),
}


# The first shows how a fault is hunted; the others take longer, and are about their subjects.
@pytest.mark.parametrize(
    "subject", [pytest.param(n, marks=[pytest.mark.slow] if i else []) for i, n in enumerate(FAULTS)]
)
def test_a_fault_is_found_and_its_input_made_small(subject):
    examples, check, error, smallest = FAULTS[subject]
    _, failure = hunt(subject, examples, seed=4, check=check)
    assert failure["subject"] == subject
    assert error in failure["error"]
    assert re.search(smallest, failure["case"], re.DOTALL)


def always_aborts(case=None, folder=None):
    os.abort()


def hangs():
    time.sleep(1000)


def takes_all_memory():
    kept = []
    while True:
        kept.append(b"x" * (1 << 24))
        time.sleep(0.001)


def raises():
    raise KeyError("unheard")


def test_a_worker_says_how_its_process_failed_and_goes_on():
    with Worker(seconds=2, megabytes=100) as worker:
        for function, error, text in [
            (always_aborts, DiedError, "Fatal Python error: Aborted"),
            (hangs, DiedError, "no answer in 2 s"),
            (takes_all_memory, DiedError, "it took 100 MB"),
            (raises, FailedError, "KeyError: 'unheard'"),
        ]:
            with pytest.raises(error, match=text):
                worker.run(function)
            assert worker.run(abs, -3) == 3


def test_a_death_without_this_library_too_is_the_fault_of_tensorflow(monkeypatch):
    monkeypatch.setattr(saved_models, "control", always_aborts)
    counts, failure = hunt("saved_models", 2, check=always_aborts)
    assert failure is None
    assert [kind.partition(": ")[2] for kind in counts.elements()] == ["TensorFlow's own failure"] * 2
