"""The arithmetic under sanitizers. Each sanitizer, and the tests, must find injected faults."""

import pathlib
import re
import sys

import pytest

from build_ops.compiler import build_library
from qa import page
from qa.sanitize import run

from ..support.sources import ROOT

needs_clang = pytest.mark.skipif(run.find_clang() is None, reason="clang++ with libFuzzer is missing")


def outcome_of(part, seconds=10):
    return run.PARTS[part](seconds, 1, run.TESTS)


def assert_clean(outcome):
    assert outcome["result"] == "clean"
    assert int(re.search(r"\d+", outcome["amount"])[0]) > 100


@needs_clang
def test_no_shapes_overflow_and_every_plan_visits_each_product_once():
    assert_clean(outcome_of("shapes", seconds=2))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["memory", "threads", "passes"])
def test_kernels_stay_within_their_operands_and_threads_do_not_race(part):
    assert_clean(outcome_of(part))


# The part, the file, the right code, the wrong code, and what the report must say.
FAULTS = {
    "a product that overflows": (
        "shapes",
        "cc/lib/alignment.cc",
        "for (const int64_t dim : dims) most /= dim;",
        "most = 1;\n  for (const int64_t dim : dims) most *= dim;",
        "signed integer overflow",
    ),
    "loops merged that walk apart": (
        "shapes",
        "cc/lib/contraction_plan.cc",
        " && outer.rhs == inner.rhs * inner.size",
        "",
        "WRONG: expected",
    ),
    "a read beyond a row": (
        "memory",
        "cc/lib/contraction.cc",
        "                            last.size,\n                            /*is_narrow=*/false",
        "                            last.size + 1,\n                            /*is_narrow=*/false",
        "heap-buffer-overflow",
    ),
    # Sums that threads share are wrong, too, and the check of the results can come first.
    "a counter that threads share": (
        "threads",
        "cc/lib/contraction.cc",
        "if (plan_.output_size == 0) return;",
        "static int64_t runs = 0;\n    if (++runs < 0 || plan_.output_size == 0) return;",
        "data race",
    ),
    "a cache of the passes that threads share": (
        "passes",
        "cc/passes/prune_gradients.cc",
        "if (++steps_ > kMaxSteps) return false;",
        "static int64_t steps = 0;\n      if (++steps < 0 || ++steps_ > kMaxSteps) return false;",
        "data race",
    ),
}


# All except the first take long to compile.
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if i else []) for i, n in enumerate(FAULTS)])
def test_a_sanitizer_finds_an_injected_fault(name, tmp_path, monkeypatch):
    part, source, right, wrong, report = FAULTS[name]
    if part == "shapes" and run.find_clang() is None:
        pytest.skip("clang++ with libFuzzer is missing")
    text = (ROOT / source).read_text()
    assert text.count(right) == 1
    faulty = tmp_path / pathlib.Path(source).name
    faulty.write_text(text.replace(right, wrong))
    # Everything else is compiled already.
    for sources in ("SHAPES", "ARITHMETIC", "PASSES"):
        monkeypatch.setattr(run, sources, [str(faulty) if n == source else n for n in getattr(run, sources)])
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    assert outcome_of(part)["result"] == "FOUND"
    assert report in (tmp_path / f"{part}.log").read_text()


@pytest.fixture(scope="module")
def faulty_op(tmp_path_factory):
    """A single op that does wrong on demand, because the whole op library takes minutes to compile."""
    library = tmp_path_factory.mktemp("faulty") / "faulty.so"
    build_library(library, [f"{run.HARNESSES}/faulty_op.cc"], None, [], run.LIBRARY_FLAGS)
    return library


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "leaks", "report"),
    [
        ("beyond=1", False, "heap-buffer-overflow"),
        ("leaks=100", True, "leak of 6400 byte(s) in 100 object(s)"),
        ("beyond=0", False, None),
    ],
)
def test_faults_inside_of_tensorflow_are_found(faulty_op, fault, leaks, report, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    code = f"import tensorflow as tf; tf.load_op_library({str(faulty_op)!r}).faulty(numbers=[1.0, 2.0], {fault})"
    outcome = run.check_in_tensorflow("library", "one op", [sys.executable, "-c", code], ROOT, leaks=leaks)
    assert outcome["result"] == ("FOUND" if report else "clean")
    if report:
        printed = capsys.readouterr().out
        assert report in printed
        assert "faulty_op.cc:" in printed


def test_a_missing_clang_is_skipped_visibly(monkeypatch):
    monkeypatch.setattr(run, "find_clang", lambda: None)
    assert outcome_of("shapes")["result"].startswith("skipped: clang++ with libFuzzer is missing")


def test_the_tests_that_programs_run_exist():
    assert [test for test in run.TESTS if not (ROOT / "tests" / f"{test}.py").is_file()] == []


def test_the_page_shows_the_results():
    text = page.PAGE.read_text()
    assert page.page(text) == text
