"""The benchmarks: their arithmetic, that all of them run, and that the documentation shows their results."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.harness import measurement, quantiles, yardsticks
from benchmarks.harness.samplers import Number, Timed, in_turn
from benchmarks.report import publish, table, targets

from ..support.processes import run_interpreter
from ..support.sources import ROOT, source_files

SUBJECTS = [
    path.stem for path in source_files("benchmarks/subjects/*.py") if "\ndef cases(settings" in path.read_text()
]


def test_quantiles_of_known_numbers():
    assert quantiles.summarize([5.0, 1.0, 4.0, 2.0, 3.0, 0.0]) == quantiles.Summary(median=2.5, p20=1.0, p80=4.0)
    assert quantiles.summarize([7.0]) == quantiles.Summary(median=7.0, p20=7.0, p80=7.0)


def test_a_ratio_is_made_of_pairs_and_not_of_medians():
    """The machine slows down tenfold in the middle; one implementation always takes twice as long as the other."""
    of, over = [2.0, 2.0, 20.0, 20.0], [1.0, 1.0, 10.0, 10.0]
    assert quantiles.ratio(of, over) == quantiles.Summary(median=2.0, p20=2.0, p80=2.0)
    assert quantiles.ratio([1.0, 2.0, 9.0], [1.0, 1.0, 1.0]).median == 2.0
    with pytest.raises(ValueError, match="shorter"):
        quantiles.ratio([1.0, 2.0], [1.0])


def test_there_is_no_ratio_over_zero():
    assert quantiles.ratio([0.0, 1.0], [0.0, 1.0]) is None
    assert quantiles.ratio([0.0, 1.0], [1.0, 1.0]).median == 0.5


class Recorder:
    """A sampler that writes down when it is asked."""

    def __init__(self, name, log, values):
        self._name, self._log, self._values = name, log, iter(values)

    def prepare(self, seconds):
        self._log.append(f"prepare {self._name}")

    def sample(self):
        self._log.append(self._name)
        return next(self._values)


def test_implementations_take_turns():
    log = []
    implementations = {"a": Recorder("a", log, [1, 2, 3]), "b": Recorder("b", log, [2, 2, 2]), "c": "not installed"}
    case = measurement.Case("subject", "case", lambda: implementations, ours=("a",), rounds=3)
    result = measurement.measure(case, measurement.Settings(seconds=60))
    assert log == ["prepare a", "prepare b", *"ababab"]
    assert result["implementations"]["a"] == {"samples": [1, 2, 3], "median": 2, "p20": 1.4, "p80": 2.6}
    assert result["ratios"] == {"a": {"b": {"median": 1.0, "p20": 0.7, "p80": 1.3}}}
    assert result["absent"] == {"c": "not installed"}
    assert result["rounds"] == 3


def test_a_case_has_the_fewest_rounds_where_its_time_is_over():
    case = measurement.Case("subject", "case", lambda: {"a": Number(lambda: 1)}, ours=())
    assert measurement.measure(case, measurement.Settings(seconds=0, fewest_rounds=4))["rounds"] == 4


def test_a_sample_has_as_many_calls_as_fit():
    calls = []
    sampler = Timed(lambda: calls.append(1))
    sampler.prepare(0.01)
    before = len(calls)
    sampler.sample()
    assert len(calls) - before > 10


def test_inputs_take_turns():
    calls = []
    sampler = in_turn([lambda: calls.append("a"), lambda: calls.append("b")])
    sampler.prepare(0.001)
    sampler.sample()
    assert calls == (["a", "b"] * len(calls))[: len(calls)]
    assert len(calls) > 2


@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000, 2**17, 2**17 + 1, 10**6 + 3])
def test_the_yardstick_multiplies_everything(count, rng):
    a, b = rng.random(count, np.float32), rng.random(count, np.float32)
    out = yardsticks.aligned(count)
    yardsticks.multiply(a, b, out)
    np.testing.assert_array_equal(out, a * b)
    yardsticks.multiply(a, None, out)
    np.testing.assert_array_equal(out, a * 2)


@pytest.mark.parametrize("count", [1, 16, 1000, 2**17, 2**17 + 1, 10**6 + 3])
@pytest.mark.parametrize("place", [0, -1])
def test_the_yardstick_reads_everything(count, place):
    """The union of all bits: one that is set anywhere, in either array, is seen."""
    a, b = np.zeros(count, np.uint32), np.zeros(count, np.uint32)
    assert yardsticks.read(a, b) == 0
    a[place] = 4
    assert (yardsticks.read(a), yardsticks.read(a, b), yardsticks.read(b, a), yardsticks.read(b)) == (4, 4, 4, 0)


def implementations(**samples):
    return {name: {"samples": values, "median": sorted(values)[len(values) // 2]} for name, values in samples.items()}


def evaluate(monkeypatch, target, *cases):
    monkeypatch.setattr(targets, "TARGETS", (target,))
    results = [{"subject": "s", "case": name, "implementations": found} for name, found in cases]
    (evaluated,) = targets.evaluate(results)
    return evaluated


TARGET = targets.Target("name", "s", "sum*", "ours", ("slow", "quick"), 1.5)


def test_a_target_takes_the_fastest_baseline_and_the_worst_case(monkeypatch):
    good = implementations(ours=[1.0, 1.0, 1.0], quick=[1.0, 1.0, 1.0], slow=[5.0, 5.0, 5.0])
    bad = implementations(ours=[8.0, 2.0, 4.0], quick=[4.0, 1.0, 2.0], slow=[5.0, 5.0, 5.0])
    other = implementations(ours=[9.0], quick=[1.0], slow=[1.0])
    evaluated = evaluate(monkeypatch, TARGET, ("sum a", good), ("sum b", bad), ("product", other))
    assert evaluated["case"] == "sum b"
    assert evaluated["measured"] == {"median": 2.0, "p20": 2.0, "p80": 2.0}
    assert evaluated["reached"] is False
    assert evaluate(monkeypatch, TARGET, ("sum a", good))["reached"] is True


def test_a_target_that_no_case_belongs_to_is_neither_reached_nor_missed(monkeypatch):
    evaluated = evaluate(monkeypatch, TARGET, ("product", implementations(ours=[1.0], quick=[1.0])))
    assert (evaluated["measured"], evaluated["reached"]) == (None, None)


def test_a_missed_target_is_shown_as_missed():
    measured = {"median": 2.0, "p20": 1.9, "p80": 2.5}
    row = {"name": "n", "expression": "a / b", "limit": 1.5, "measured": measured, "case": "c"}
    assert "| 2 (1.9 to 2.5) | **no** |" in table.targets({"targets": [{**row, "reached": False}]})
    assert "| 2 (1.9 to 2.5) | yes |" in table.targets({"targets": [{**row, "reached": True}]})


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (1.5e-9, "s", "1.5 ns"),
        (2.345e-6, "s", "2.35 µs"),
        (0.25, "s", "250 ms"),
        (90, "s", "90 s"),
        (3.0, "MB", "3 MB"),
    ],
)
def test_quantities_are_readable(value, unit, shown):
    assert table.quantity(value, unit) == shown


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The folder that `--quick` writes, and its progress messages."""
    folder = tmp_path_factory.mktemp("benchmarks")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--output", folder]
    process = run_interpreter(command, ROOT, time_limit=1800)
    return folder, process.stderr


@pytest.mark.slow
def test_every_subject_runs(quick):
    run = json.loads((quick[0] / "results.json").read_text())
    assert {case["subject"] for case in run["cases"]} == set(SUBJECTS)
    assert run["quick"] is True
    for case in run["cases"]:
        ratios = [other for ratios in case["ratios"].values() for other in ratios.values()]
        for summary in [*case["implementations"].values(), *ratios]:
            assert 0 <= summary["p20"] <= summary["median"] <= summary["p80"], case["case"]
        # Curves are compared by their powers, not in pairs.
        assert bool(case["ratios"]) == (case["subject"] != "growth"), case["case"]
        assert set(case["ratios"]) <= set(case["implementations"])
        assert len(case["ratios"]) < len(case["implementations"]) or case["absent"]
    for key in ("machine", "versions", "commit", "environment", "started", "targets"):
        assert key in run


@pytest.mark.slow
def test_every_target_belongs_to_a_case(quick):
    """All but those for sizes that a quick run does not have."""
    run = json.loads((quick[0] / "results.json").read_text())
    missing = {target["name"] for target in run["targets"] if target["reached"] is None}
    assert missing == {
        "forward, the same time for one element and for 100 million",
        "backward, 10 million",
        "backward, 100 million",
        "memory of a segmented loop, sqrt: twice as much for four times the steps",
        "memory of a segmented loop, log: a constant more for four times the steps",
    }


@pytest.mark.slow
def test_a_run_reports_its_progress(quick):
    assert "[1/" in quick[1]
    assert "s left)" in quick[1]


@pytest.mark.slow
def test_a_run_writes_table_and_charts(quick):
    assert "quick run: the figures mean nothing" in (quick[0] / "table.md").read_text()
    written = [path.name for path in quick[0].glob("*.png")]
    assert {"headline.png", "sizes.png"} <= set(written)
    for name in written:
        assert (quick[0] / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_subject_is_a_program(subject):
    assert (ROOT / f"benchmarks/subjects/{subject}.py").read_text().endswith("    program.run(cases)\n")


def test_the_programs_have_help():
    shown = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    for flag in ("--[no]quick", "--output", "--seconds", "--only"):
        assert flag in shown.stdout


@pytest.mark.slow
def test_one_case_runs():
    command = [sys.executable, "-m", "benchmarks.subjects.dispatch", "--quick", "--only", "forward"]
    assert "quick run: the figures mean nothing" in run_interpreter(command, ROOT).stdout


def test_a_name_that_no_case_has_is_an_error_that_lists_them():
    shown = subprocess.run(
        [sys.executable, "-m", "benchmarks.subjects.import_time", "--only", "importance"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 1
    assert "--only: no case has ['importance'] in its name; the cases are import_time: " in shown.stdout + shown.stderr


@pytest.fixture(scope="module")
def run():
    """The run that the documentation shows."""
    return json.loads((publish.RESULTS / "results.json").read_text())


@pytest.mark.parametrize("page", publish.PAGES, ids=lambda page: page.name)
def test_the_figures_in_the_documentation_are_those_of_the_results(page, run):
    text = page.read_text()
    assert publish.fill(page, text, run) == text


def test_the_table_of_all_cases_is_made_from_the_results(run):
    assert table.document(run) == (publish.RESULTS / "table.md").read_text()


CHARTS = {
    "performance.md": {"headline.png", "sizes.png", "memory_limit.png", "growth.png", "models.png"},
    "memory.md": {"loops.png"},
}


@pytest.mark.parametrize("page", publish.PAGES, ids=lambda page: page.name)
def test_the_charts_in_the_documentation_are_those_of_the_results(page):
    shown = publish.charts(page.read_text())
    assert {path.name for path in shown} == CHARTS[page.name]
    for path in shown:
        assert path.read_bytes() == (publish.FIGURES / path.name).read_bytes()


def test_the_targets_in_the_results_are_those_of_the_code(run):
    assert targets.evaluate(run["cases"]) == run["targets"]
    assert run["quick"] is False


def test_the_growth_is_that_of_the_page(run):
    limits = {"trace": 1.15, "step": 1.15, "memory": 1.15, "SavedModel": 1.15, "first run": 1.45, "load": 1.45}
    cases = [case for case in run["cases"] if case["subject"] == "growth" and case["case"].endswith("in a function")]
    assert {case["case"].partition(",")[0] for case in cases} == set(limits)
    for case in cases:
        for figures in table.by_length(case).values():
            power = math.log(figures[10_000] / figures[3_000], 10_000 / 3_000)
            assert power <= limits[case["case"].partition(",")[0]], case["case"]


def test_a_page_without_the_marks_is_refused(run):
    page = next(iter(publish.PAGES))
    with pytest.raises(ValueError, match=f"the marks of 'origin' stand 0 times in {page.name}"):
        publish.fill(page, "", run)
