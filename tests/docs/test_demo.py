"""The command `tf-cg-ops demo`; its checks can fail."""

import json
import math
import re
import sys

import pytest

import tf_cg_ops_cli
from tf_cg_ops import _command_line
from tf_cg_ops import _demo as demo
from tf_cg_ops._demo.report import Report

from ..support.processes import run_interpreter, run_python
from ..support.sources import ROOT


@pytest.mark.slow
def test_the_demo_shows_its_findings_and_its_progress(tmp_path):
    """Runs in a folder that is not the source tree."""
    command = [sys.executable, "-m", "tf_cg_ops", "demo", "--output", "out"]
    result = run_interpreter(command, tmp_path, {"PYTHONPATH": str(ROOT)})
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


WITHOUT_EXTRAS = """
import sys
sys.modules["scipy"] = None
import tf_cg_ops_cli
sys.argv[1:] = ["demo", "--quick"]
sys.exit(tf_cg_ops_cli.main())
"""


def test_the_quick_demo_needs_nothing_but_tensorflow_and_writes_nothing(tmp_path):
    result = run_python(WITHOUT_EXTRAS, cwd=tmp_path)
    findings = [line for line in result.stdout.splitlines() if line.endswith("yes")]
    assert len(findings) == 5
    assert "NO" not in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_quick_demo_fails_if_the_gradient_is_wrong(monkeypatch, capsys):
    from tf_cg_ops._demo import quick

    monkeypatch.setattr(quick, "_log1pexp", lambda x: 2 * quick._plain(x))
    monkeypatch.setattr(quick, "_change_by_saving", lambda x: 0.0)
    assert demo.run_quick() == 1
    assert re.search(r"^error with custom_gradient +inf +at most 0.0001 +NO$", capsys.readouterr().out, re.MULTILINE)


def test_neither_nothing_nor_nan_holds():
    assert not Report().all_hold()
    for relation in ("at least", "at most"):
        report = Report()
        report.add("nan", math.nan, relation, 0.0)
        assert not report.all_hold()


def test_missing_packages_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(demo._PACKAGES, "no_such_module", "NoSuchPackage")
    assert _command_line.run(tf_cg_ops_cli.parse(["demo", "--output", str(tmp_path / "out")])) == 1
    assert capsys.readouterr().err == (
        "tf-cg-ops demo: scikit-learn, SciPy and Matplotlib must be installed, missing: NoSuchPackage. Run "
        "pip install 'tf_cg_ops[demo]', or tf-cg-ops demo --quick, which needs none of them.\n"
    )
