"""The examples: their findings hold and are drawn, and they fail if a gradient is wrong.

graph/test_distribution.py tests `multi_worker.py`, and graph/test_c_api.py tests `c_api`.
"""

import json

import matplotlib.image
import numpy as np
import pytest

from ..support.processes import run_python, run_script
from ..support.sources import ROOT, source_files

EXAMPLES = ROOT / "examples"
# Those that train longest, up to minutes, run with the slow tests. The quickstart trains a binary net, too, and
# saved_model/test_lite.py trains in LiteRT.
SLOW = (
    "binary_net",
    "convex_layer",
    "lite_training",
    "long_sequence",
    "neural_ode",
    "saliency_maps",
    "inside_model",
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

# Runs an example as a program after it has broken one of the library's functions.
BROKEN = """
import runpy, sys
import tf_cg_ops as cg
{breakage}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
BREAKAGES = {
    "demo": "cg.embed_gradient = lambda fx, gx, x: fx",
    "saliency_maps": "cg.override_gradients = lambda f, rules: f",
    "inside_model": "right = cg.capture; cg.capture = lambda f, places: lambda x, **given: "
    "(lambda y, values: (cg.scale_gradient(y, 2.0), values))(*right(f, places)(x, **given))",
    "nan_in_training": "cg.rules.masked = cg.rules.built_in",
    "equilibrium_layer": "cg.linear.gmres = lambda vjp, dy, **options: dy  # No solution.",
    "fit_in_memory": "right = cg.recompute_grad; cg.recompute_grad = lambda f, **how: right(lambda x: 2 * f(x), **how)",
    "lite_training": "right = cg.saved_model.add_gradients; "
    "cg.saved_model.add_gradients = lambda *a, **k: right(*a, **k, rules={'Relu': lambda op, dy: -dy})",
    "log1pexp": "cg.custom_gradient = lambda f=None, **_: (lambda x: f(x)[0]) if f else cg.custom_gradient  # Autodiff.",
}


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
    pictures = list(output.glob("*.png"))
    assert [path.stem for path in pictures] == PICTURES.get(name, [name])
    for picture in pictures:
        assert_is_drawn(picture)


def assert_is_drawn(picture):
    """The picture has ink in every third of its width, and more colours than black and white."""
    pixels = matplotlib.image.imread(picture)[..., :3]
    height, width, _ = pixels.shape
    assert height >= 400
    assert width >= 1000
    for part in np.array_split(pixels, 3, axis=1):
        assert np.mean(part < 0.9) > 0.01
    assert np.mean(np.ptp(pixels, axis=-1) > 0.2) > 0.002


@pytest.mark.slow
@pytest.mark.parametrize("name", BREAKAGES)
def test_a_wrong_gradient_makes_it_fail(name, tmp_path):
    code = BROKEN.format(breakage=BREAKAGES[name])
    arguments = [EXAMPLES / f"{name}.py", "--output", "output"]
    result = run_python(code, *arguments, cwd=tmp_path, check=False, with_extras=True)
    assert result.returncode == 1
    findings = json.loads((tmp_path / "output" / "results.json").read_text())
    assert not all(finding["holds"] for finding in findings)
    assert "Traceback" not in result.stderr
