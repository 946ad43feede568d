"""The command `tf-cg-ops demo`, and that its checks can fail."""

import json
import math

import pytest

import tf_cg_ops_cli
from tf_cg_ops._src import command_line, demo
from tf_cg_ops._src.demo.report import Report

from ..support.processes import run_python

# With an accuracy that cannot be reached, and little training.
FAILING = """
import sys
from tf_cg_ops._src.demo import digits, report
add = report.Report.add
report.Report.add = lambda self, *args: add(self, *args[:-1], args[-1] + (9 if args[-2] == "at least" else 0))
digits.EPOCHS = 1
"""
DEMO = """
import tf_cg_ops_cli
sys.argv[1:] = ["demo", "--output", "out"]
sys.exit(tf_cg_ops_cli.main())
"""


def test_the_demo_shows_its_findings_and_its_progress(tmp_path):
    """From a folder that is not the source tree."""
    result = run_python("import sys\n" + DEMO, cwd=tmp_path, with_extras=True)
    findings = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(findings) == 9
    for finding in findings:
        assert finding["holds"]
        assert finding["subject"] in result.stdout
        assert f"{finding['measured']:.4g}" in result.stdout
    assert "40/40" in result.stdout
    assert "400/400" in result.stdout
    assert (tmp_path / "out" / "learning_curves.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert (tmp_path / "out" / "saved_model" / "saved_model.pb").is_file()


def test_a_failing_demo_exits_with_1(tmp_path):
    result = run_python(FAILING + DEMO, cwd=tmp_path, check=False, with_extras=True)
    assert result.returncode == 1, result.stderr
    assert "NO" in result.stdout


def test_a_finding_that_does_not_hold_makes_the_report_fail(capsys):
    report = Report()
    assert not report.all_hold()  # Nothing was shown.
    report.add("good", 0.95, "at least", 0.9)
    assert report.all_hold()
    report.add("bad", 0.3, "at most", 0.2)
    assert not report.all_hold()
    report.show()
    assert capsys.readouterr().out.splitlines()[-1].split() == ["bad", "0.3", "at", "most", "0.2", "NO"]


@pytest.mark.parametrize("relation", ["at least", "at most"])
def test_nan_holds_nowhere(relation):
    report = Report()
    report.add("nan", math.nan, relation, 0.0)
    assert not report.all_hold()


def test_missing_packages_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(demo._PACKAGES, "no_such_module", "NoSuchPackage")
    assert command_line.run(tf_cg_ops_cli.parse(["demo", "--output", str(tmp_path / "out")])) == 1
    assert capsys.readouterr().err == (
        "tf_cg_ops demo: it needs scikit-learn, SciPy and Matplotlib; there is no NoSuchPackage. "
        "Install them with: pip install 'tf_cg_ops[demo]'\n"
    )
