"""Traces, loads, eager calls and tapes leave nothing behind: no registry entry, graph, function or memory."""

import json
import pathlib

import pytest

from ..support.processes import run_python

# How often each is repeated, and how many bytes each repetition can leave. TensorFlow's caches are still filling up
# after so few repetitions. A graph with its functions takes about 100 kB, an eager tensor with its record about 1 kB.
SCENARIOS = {"traces": (100, 8000), "loads": (100, 16_000), "eager": (2000, 100), "persistent": (4000, 100)}

# Growth is the median of the slopes between all pairs of samples (Theil and Sen), so a cache that fills up at once does
# not count.
MEASURE = pathlib.Path(__file__).with_name("repeated_calls.py").read_text()


def left_behind(name, which, tmp_path, times=None):
    """The bytes left by each repetition, and the registry entries, graphs and functions left by all."""
    times = times or SCENARIOS[name][0]
    return json.loads(run_python(MEASURE, name, which, times, cwd=tmp_path).stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "name", ["traces", "eager", *(pytest.param(name, marks=pytest.mark.slow) for name in ("loads", "persistent"))]
)
def test_nothing_is_left_behind(name, tmp_path):
    memory, counts = left_behind(name, "ours", tmp_path)
    assert counts == [0, 0, 0]
    assert memory < SCENARIOS[name][1]


@pytest.mark.slow
def test_a_kilobyte_that_is_left_behind_each_time_is_seen(tmp_path):
    assert left_behind("eager", "kilobyte", tmp_path)[0] > 1000


def test_tf_custom_gradient_leaves_an_entry_for_each(tmp_path):
    """Shows that the counts work."""
    _, (registry_entries, graphs, _) = left_behind("traces", "tensorflow", tmp_path, times=20)
    assert registry_entries >= 20
    assert graphs >= 20
