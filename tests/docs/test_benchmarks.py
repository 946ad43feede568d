"""The benchmarks: their arithmetic, their models, that they all run, and that the pages show their results."""

import functools
import json
import math
import sys
import warnings

import numpy as np
import pytest

from benchmarks.harness import measurement, names, record, yardsticks
from benchmarks.harness.names import DECORATOR, EMBED, SQRT, TF, TF_LOOP, TFP
from benchmarks.models import networks
from benchmarks.report import charts, publish, table, targets

from ..support.processes import run_interpreter
from ..support.sources import ROOT
from ..support.tensors import pairs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TensorFlow Probability causes warnings at import.
    from benchmarks.models import in_tensorflow


def test_a_ratio_is_made_of_pairs_and_not_of_medians():
    """The machine slows down tenfold in the middle; one implementation always takes twice as long as the other."""
    assert measurement.summarize([5.0, 1.0, 4.0, 2.0, 3.0, 0.0]) == {"median": 2.5, "p20": 1.0, "p80": 4.0}
    of, over = [2.0, 2.0, 20.0, 20.0], [1.0, 1.0, 10.0, 10.0]
    assert measurement.ratio(of, over) == {"median": 2.0, "p20": 2.0, "p80": 2.0}
    assert measurement.ratio([1.0, 2.0, 9.0], [1.0, 1.0, 1.0])["median"] == 2.0
    assert measurement.ratio([0.0, 1.0], [0.0, 1.0]) is None  # Divided by zero.


@pytest.mark.parametrize("count", [1, 15, 16, 1000, 2**17, 2**17 + 1, 10**6 + 3])
def test_the_yardsticks_multiply_and_read_everything(count, rng):
    a, b = rng.random(count, np.float32), rng.random(count, np.float32)
    out = yardsticks.aligned(count)
    yardsticks.multiply(a, b, out)
    np.testing.assert_array_equal(out, a * b)
    yardsticks.multiply(a, None, out)
    np.testing.assert_array_equal(out, a * 2)
    # The union of all bits shows any bit that is set in either array.
    for place in (0, -1):
        a, b = np.zeros(count, np.uint32), np.zeros(count, np.uint32)
        assert yardsticks.read(a, b) == 0
        a[place] = 4
        assert (yardsticks.read(a), yardsticks.read(a, b), yardsticks.read(b, a), yardsticks.read(b)) == (4, 4, 4, 0)


@pytest.mark.slow
def test_every_case_runs_and_is_written_to_one_line(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "--quick", "--output", tmp_path / "results.json"]
    process = run_interpreter(command, ROOT, time_limit=1800)
    assert "s left)" in process.stderr
    text = (tmp_path / "results.json").read_text()
    run = json.loads(text)
    assert run["quick"] is True
    assert {case["subject"] for case in run["cases"]} >= {case["subject"] for case in record.read()["cases"]}
    assert len(text.splitlines()) == len(run["cases"]) + len(run) + 3
    for case in run["cases"]:
        ratios = [other for ratios in case["ratios"].values() for other in ratios.values()]
        for summary in [*case["implementations"].values(), *ratios]:
            assert 0 <= summary["p20"] <= summary["median"] <= summary["p80"], case["case"]
    # All targets, except for sizes and numbers of calls that a quick run does not have.
    assert {found.target.name for found in targets.evaluate(run["cases"]) if found.reached is None} == {
        "forward, the same time for one element and for 100 million",
        "backward, 10 million",
        "backward, 100 million",
        "trace of a value, 2 calls",
        "trace of a value, 3 calls",
        "trace of its second derivative",
        "memory of a segmented loop, sqrt: twice as much for four times the steps",
        "memory of a segmented loop, log: a constant more for four times the steps",
    }
    charts.draw(run, tmp_path)
    assert {path.stem for path in tmp_path.glob("*.png")} == {"headline", "sizes", "growth"}
    assert "quick run: the figures mean nothing" in table.document(run)


@pytest.mark.parametrize("page", publish.PAGES, ids=lambda page: page.name)
def test_the_documentation_shows_the_figures_of_the_results(page):
    text, run = page.read_text(), record.read()
    assert run["quick"] is False
    assert publish.fill(page, text, run) == text
    with pytest.raises(
        ValueError, match=f"the marks of '{next(iter(publish.PAGES[page]))}' stand 0 times in {page.name}"
    ):
        publish.fill(page, "", run)


def test_costs_grow_as_the_page_says():
    limits = {"trace": 1.15, "step": 1.15, "memory": 1.15, "SavedModel": 1.15, "first run": 1.45, "load": 1.45}
    cases = [case for case in record.read()["cases"] if case["subject"] == "growth" and "function" in case["case"]]
    assert {case["case"].partition(",")[0] for case in cases} == set(limits)
    for case in cases:
        for figures in table.by_length(case).values():
            power = math.log(figures[10_000] / figures[3_000], 10_000 / 3_000)
            assert power <= limits[case["case"].partition(",")[0]], case["case"]


def test_the_figures_of_the_readme_are_true():
    cases, readme = record.read()["cases"], " ".join((ROOT / "README.md").read_text().split())
    (memory,) = (case for case in cases if (case["subject"], case["case"]) == ("loops", "peak memory"))
    ours, plain = (table.by_length(memory)[name][4096] for name in (SQRT, TF_LOOP))
    assert f"takes {ours:.0f} MiB with `cg.while_loop`, and {plain:,.0f} MiB with `tf.while_loop`" in readme
    assert f"| {ours:.0f} MiB | {plain:,.0f} MiB |" in (ROOT / "docs" / "comparison.md").read_text()
    assert "In four benchmark models, a training step takes at most 5 % longer than with `tf.custom_gradient`" in readme
    steps = [case for case in cases if case["subject"] == "models" and case["unit"] == "s"]
    assert len(steps) == 4 * 3
    for medians in ({n: i["median"] for n, i in case["implementations"].items()} for case in steps):
        assert max(medians[name] for name in (EMBED, DECORATOR) if name in medians) <= 1.05 * medians[TF]
    assert "Tracing a decorated function takes longer" in readme
    found = {one.target.name: one for one in targets.evaluate(cases)}
    assert found["the decorator's trace time, forward"].measured["p20"] > 1
    loops = [
        case["ratios"][SQRT][TF_LOOP] for case in cases if case["case"].startswith("time, ") and SQRT in case["ratios"]
    ]
    times = [ratio["median"] for ratio in loops]
    assert f"a loop took {min(times):.2f} to {max(times):.2f} times as long" in readme
    plans = {case["case"]: case for case in record.read("plans")["cases"]}
    peaks = plans[f"{names.PEAK}, DenseNet121"]["implementations"]
    planned, plain = (peaks[name]["median"] for name in (f"{names.RECOMPUTED}, memory='auto'", names.NO_RECOMPUTATION))
    assert f"a step of DenseNet-121 takes {planned:.0f} MiB instead of {plain:.0f}" in readme
    times = [
        ratios[names.NO_RECOMPUTATION]["median"]
        for title, case in plans.items()
        for name, ratios in case["ratios"].items()
        if title.startswith(names.STEP) and name.startswith(names.RECOMPUTED)
    ]
    assert f"whole models [{min(times):.2f} to {max(times):.2f} times]" in readme


NETWORKS = networks.networks(quick=True)


@functools.cache
def expected(name):
    """The loss and the gradients of TensorFlow's decorator, in float64."""
    loss, gradients = in_tensorflow.steps(NETWORKS[name], "eager", np.float64)[TF]()
    assert all(np.any(gradient.numpy() != 0) for gradient in gradients)
    return float(loss), [gradient.numpy() for gradient in gradients]


def assert_expected(name, loss, gradients):
    np.testing.assert_allclose(loss, expected(name)[0], rtol=1e-12)
    for got, wanted in zip(gradients, expected(name)[1], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())


@pytest.mark.parametrize(("name", "mode"), pairs(NETWORKS, in_tensorflow.MODES))
def test_the_implementations_of_a_model_agree_except_tfp(name, mode):
    """TFP's loss is the same but its gradients differ, so its model is trained differently."""
    steps = in_tensorflow.steps(NETWORKS[name], mode, np.float64)
    by_values = set() if NETWORKS[name].unit.factor is None else {EMBED, TFP}
    assert set(steps) == {TF, DECORATOR} | by_values
    for implementation, step in steps.items():
        loss, gradients = step()
        if implementation == TFP:
            with pytest.raises(AssertionError, match="Mismatched elements"):
                assert_expected(name, expected(name)[0], gradients)
            gradients = expected(name)[1]
        assert_expected(name, loss, gradients)
