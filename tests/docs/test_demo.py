"""The command `tf-cg-ops demo`; its checks can fail. `test_examples.py` tests the demo in `examples`."""

import re

from tf_cg_ops import _demo

from ..support.processes import run_python

WITHOUT_EXTRAS = """
import sys
sys.modules["scipy"] = None
import tf_cg_ops_cli
sys.exit(tf_cg_ops_cli.main())
"""


def test_the_demo_needs_nothing_but_tensorflow_and_writes_nothing(tmp_path):
    """People still type --quick, which asked for this demo."""
    result = run_python(WITHOUT_EXTRAS, "demo", "--quick", cwd=tmp_path)
    findings = [line for line in result.stdout.splitlines() if line.endswith("yes")]
    assert len(findings) == 5
    assert "NO" not in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_demo_fails_if_the_gradient_is_wrong(monkeypatch, capsys):
    monkeypatch.setattr(_demo, "_log1pexp", lambda x: 2 * _demo._plain(x))
    monkeypatch.setattr(_demo, "_change_by_saving", lambda x: 0.0)
    assert _demo.run() == 1
    assert re.search(r"^error with custom_gradient +inf +at most 0.0001 +NO$", capsys.readouterr().out, re.MULTILINE)
