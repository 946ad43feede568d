"""The command `tf-cg-ops demo`, and that its checks can fail."""

import json
import math
import subprocess
import sys

import pytest

import tf_cg_ops_cli
from tf_cg_ops._src import command_line
from tf_cg_ops._src.demo.report import Report


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """One full run, from a folder that is not the source tree."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "tf_cg_ops_cli", "demo", "--output", "out"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return result, folder / "out"


def test_the_demo_succeeds_and_shows_its_findings(demo):
    result, output = demo
    assert result.returncode == 0, result.stderr
    findings = json.loads((output / "results.json").read_text())
    assert len(findings) == 9
    assert all(finding["holds"] for finding in findings)
    for finding in findings:
        assert finding["subject"] in result.stdout
        assert f"{finding['measured']:.4g}" in result.stdout


def test_the_picture_is_a_png(demo):
    _, output = demo
    assert (output / "learning_curves.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_progress_is_shown_while_it_trains(demo):
    result, _ = demo
    assert "40/40" in result.stdout
    assert "400/400" in result.stdout


def test_the_saved_model_stays(demo):
    _, output = demo
    assert (output / "saved_model" / "saved_model.pb").is_file()


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


def test_a_failing_demo_exits_with_1(tmp_path, monkeypatch):
    """The same program with an accuracy that cannot be reached."""
    code = (
        "import sys\n"
        "from tf_cg_ops._src.demo import report\n"
        "add = report.Report.add\n"
        "report.Report.add = lambda self, *args: add(self, *args[:-1], args[-1] + (9 if args[-2] == 'at least' else 0))\n"
        "from tf_cg_ops._src.demo import digits\n"
        "digits.EPOCHS = 1\n"
        "import tf_cg_ops_cli\n"
        "sys.argv[1:] = ['demo', '--output', 'out']\n"
        "sys.exit(tf_cg_ops_cli.main())\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stderr
    assert "NO" in result.stdout


def test_missing_packages_are_named(tmp_path, monkeypatch, capsys):
    from tf_cg_ops._src import demo

    monkeypatch.setitem(demo._PACKAGES, "no_such_module", "NoSuchPackage")
    assert command_line.run(tf_cg_ops_cli.parse(["demo", "--output", str(tmp_path / "out")])) == 1
    assert capsys.readouterr().err == (
        "tf_cg_ops demo: it needs scikit-learn, SciPy and Matplotlib; there is no NoSuchPackage. "
        "Install them with: pip install 'tf_cg_ops[demo]'\n"
    )


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as caught:
        tf_cg_ops_cli.parse(["dmeo"])
    assert caught.value.code == 2
    assert "invalid choice: 'dmeo'" in capsys.readouterr().err
