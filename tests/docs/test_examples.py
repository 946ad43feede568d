"""The examples: the findings of each hold and are drawn, and each fails if a gradient is wrong.

graph/test_distribution.py tests `multi_worker.py`, and graph/test_c_api.py tests `c_api`. Every file is copied first: it
runs alone.
"""

import ast
import concurrent.futures
import json
import re
import shutil

import matplotlib.image
import numpy as np
import pytest

from ..support.processes import run_python, run_script
from ..support.sources import ROOT

EXAMPLES = ROOT / "examples"

# The files of each example beside results.json.
FILES = {
    "log1pexp": {"log1pexp.png", "saved_model", "reloaded.npy"},
    "domain_adversarial_digits": {"domain_adversarial_digits.png", "curves.json"},
    "binary_net": {"binary_net.png", "binary_net.keras", "reloaded.npz"},
    "spiking_cell": {"spiking_cell.png", "saved_model", "continued.json"},
    "fit_ode": {"fit_ode.png", "fit.json"},
    "equilibrium_layer": {"equilibrium_layer.png", "curves.json"},
    "convex_layer": {"convex_layer.png", "curves.json"},
    "neural_ode": {"neural_ode.png", "curve.json"},
    "long_sequence": {"long_sequence.png", "curves.json"},
    "adopt_model": {"adopt_model.png", "published", "adopted", "curves.json"},
    "saliency_maps": {"saliency_maps.png", "saved_model", "reloaded.npz"},
    "strip_for_tflite": {"trained", "stripped", "stripped.tflite"},
}

# Runs an example as a program after it has broken one of the library's functions.
BROKEN = """
import runpy, sys
import tf_cg_ops as cg
{breakage}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

BREAKAGES = {
    "saliency_maps": """
cg.override_gradients = lambda f, rules: f
""",
    "long_sequence": """
import tensorflow as tf
scan = cg.scan
def doubled(step, init, xs, checkpoint):
    state, outputs = scan(step, init, xs, checkpoint=checkpoint)
    return tf.nest.map_structure(lambda tensor: cg.scale_gradient(tensor, 2.0), state), outputs
cg.scan = doubled
""",
    "equilibrium_layer": """
cg.linear.gmres = lambda vjp, dy, **options: dy  # No solution.
""",
    "convex_layer": """
numpy_function = cg.numpy_function
def reversed(f, spec, vjp, batched):
    return numpy_function(f, spec, vjp=lambda residuals, dy: -vjp(residuals, dy), batched=batched)
cg.numpy_function = reversed
""",
    "neural_ode": """
numpy_function = cg.numpy_function
def doubled(f, spec, vjp):
    return numpy_function(f, spec, vjp=lambda residuals, dy: [2.0 * g for g in vjp(residuals, dy)])
cg.numpy_function = doubled
""",
    "log1pexp": """
cg.custom_gradient = lambda f: lambda x: f(x)[0]  # Autodiff.
""",
    "fit_ode": """
numpy_function = cg.numpy_function
def doubled(f, spec):
    def g(a, b):
        value, gradients = f(a, b)
        return value, [2.0 * gradient for gradient in gradients]
    return numpy_function(g, spec)
cg.numpy_function = doubled
""",
}


def run_example(name, folder):
    """One run of a copy of the file, which has nothing beside it: the name, what it printed, and the folder."""
    for empty in ("here", "temporary", "script"):
        (folder / empty).mkdir()
    result = run_script(
        shutil.copy(EXAMPLES / f"{name}.py", folder / "script"),
        *("--output", "output"),
        cwd=folder / "here",
        environment={"TMPDIR": str(folder / "temporary")},
        check=False,
    )
    return name, result, folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All of them, two at a time: each is a process of its own, and most compute on one core."""
    folders = {name: tmp_path_factory.mktemp(name) for name in FILES}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(run_example, name, folder) for name, folder in folders.items()}


@pytest.fixture(scope="module", params=list(FILES))
def run(request, runs):
    return runs[request.param].result()


def test_every_finding_of_an_example_holds(run):
    _, result, folder = run
    assert result.returncode == 0, result.stdout + result.stderr
    findings = json.loads((folder / "here" / "output" / "results.json").read_text())
    assert len(findings) >= 5
    for finding in findings:
        assert finding["holds"], finding
        assert finding["subject"] in result.stdout
        assert f"{finding['measured']:.4g}" in result.stdout


def test_an_example_writes_only_into_its_output(run):
    name, _, folder = run
    assert {path.name for path in (folder / "here" / "output").iterdir()} == FILES[name] | {"results.json"}
    assert [path.name for path in (folder / "here").iterdir()] == ["output"]
    left = [path.name for path in (folder / "temporary").rglob("*") if path.is_file()]
    # AutoGraph imports the code that it generates, and leaves the bytecode that Python makes of it.
    assert [name for name in left if not name.startswith("__autograph_generated_file")] == []


def test_pictures_of_an_example_are_not_empty(run):
    name, _, folder = run
    pictures = [file for file in FILES[name] if file.endswith(".png")]
    assert bool(pictures) == (name != "strip_for_tflite")
    for picture in pictures:
        pixels = matplotlib.image.imread(folder / "here" / "output" / picture)[..., :3]
        height, width, _ = pixels.shape
        assert height >= 400
        assert width >= 1000
        # Ink in every third of the width, and more than black and white.
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


@pytest.mark.parametrize("name", FILES)
def test_the_docstring_of_an_example_names_its_command_and_files(name):
    text = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text()))
    assert f"\n    python examples/{name}.py [--output FOLDER]\n" in text
    results = text[text.index("\nFOLDER gets ") :]
    assert all(file in results for file in FILES[name])


def test_the_table_lists_every_example():
    text = (EXAMPLES / "README.md").read_text()
    listed = re.findall(r"^\| \[`([\w.]+)/?`\]", text, re.MULTILINE)
    assert set(listed) == {path.name for path in EXAMPLES.iterdir()} - {"README.md", "__pycache__"}
    assert {f"{name}.py" for name in FILES} < set(listed)
