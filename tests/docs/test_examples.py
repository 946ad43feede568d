"""The examples: their findings hold and are drawn.

graph/test_distribution.py tests `multi_worker.py`, and graph/test_c_api.py tests `c_api`.
"""

import json

import pytest

from ..support.processes import run_script
from ..support.sources import ROOT, source_files

EXAMPLES = ROOT / "examples"
# Those that train longest, up to minutes, run with the slow tests. The quickstart trains a binary net, too, and
# saved_model/test_lite.py trains in LiteRT.
SLOW = (
    "binary_net",
    "lite_training",
    "long_sequence",
    "neural_ode",
    "saliency_maps",
    "equilibrium_layer",
    "nan_in_training",
    "fit_in_memory",
    "quantized_net",
    "demo",
)
PICTURES = {"strip_for_tflite": [], "quantized_net": [], "demo": ["learning_curves"]}
PROGRESS = {"demo": ("40/40", "400/400")}
NAMES = [
    pytest.param(path.stem, marks=pytest.mark.slow if path.stem in SLOW else ())
    for path in source_files("examples/*.py")
    if path.stem != "multi_worker"
]


@pytest.mark.parametrize("name", NAMES)
def test_every_finding_of_an_example_holds_and_is_drawn(name, tmp_path):
    """In another folder."""
    for empty in ("here", "temporary"):
        (tmp_path / empty).mkdir()
    result = run_script(
        *(EXAMPLES / f"{name}.py", "--output", "output"),
        cwd=tmp_path / "here",
        environment={"TMPDIR": str(tmp_path / "temporary")},
        check=False,
        with_extras=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    output = tmp_path / "here" / "output"
    findings = json.loads((output / "results.json").read_text())
    assert len(findings) >= 5
    for finding in findings:
        assert finding["holds"], finding
        assert finding["subject"] in result.stdout
        assert f"{finding['measured']:.4g}" in result.stdout
    assert all(steps in result.stdout for steps in PROGRESS.get(name, ()))
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["output"]
    left = [path.name for path in (tmp_path / "temporary").rglob("*") if path.is_file()]
    # AutoGraph imports the code that it generates, and Python leaves its bytecode.
    assert [name for name in left if not name.startswith("__autograph_generated_file")] == []
    assert [path.stem for path in output.glob("*.png")] == PICTURES.get(name, [name])
