"""The pages under docs/ build without a warning, show every public name, and their code prints the shown output."""

import inspect
import json
import re
import subprocess
import sys
import typing

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
import tf_cg_ops.layers.tf_keras

from ..support.pages import public_objects
from ..support.processes import run_python
from ..support.sources import ROOT, source_files

PUBLIC = public_objects() | public_objects(tf_cg_ops.layers.tf_keras, "tf_cg_ops.layers.tf_keras")
GUIDES = [str(path.relative_to(ROOT)) for path in source_files("docs/*.md") if "```python" in path.read_text()]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages, by their paths. Warnings, such as one about a link that leads nowhere, are errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return {str(path.relative_to(folder)): path.read_text() for path in folder.glob("**/*.html")}


def test_every_page_is_built(site):
    sources = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in source_files("docs/**/*.md")}
    assert {str(path) for path in sources} <= set(site)
    assert "docs/migrating.md" in GUIDES


def reference(site):
    return "".join(text for path, text in site.items() if path.startswith("reference/"))


@pytest.mark.parametrize("name", [name for name in PUBLIC if ".tf_keras." not in name])
def test_every_public_name_is_in_the_reference(site, name):
    assert f'id="{name}"' in reference(site), f"no page of docs/reference says ::: {name}"


def test_the_reference_shows_no_private_names(site):
    shown = re.findall(r'id="(tf_cg_ops[^"]*)"', reference(site))
    assert [name for name in shown if "._" in name] == []


def test_docstrings_are_rendered_as_what_they_mean(site):
    pages = reference(site)
    for heading in ("Parameters:", "Returns:", "Raises:"):
        assert f'<span class="doc-section-title">{heading}</span>' in pages
    # A section that is not known; a table, a list of arguments and an example that are taken for paragraphs.
    for left_over in ("<details", "|--", "Call arguments:\n", "<p>&gt;&gt;&gt;", "<blockquote>"):
        assert left_over not in pages, left_over


def test_pages_load_nothing_from_the_network(site):
    for path, text in site.items():
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]*?(?:src|href)="([^"]*)"', text)
        assert loaded, path
        assert [address for address in loaded if "//" in address] == [], path


def test_make_docs_exists():
    subprocess.run(["make", "--dry-run", "docs"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


SEPARATOR = "----- the next block -----\n"


@pytest.mark.parametrize("guide", GUIDES)
def test_the_code_of_a_guide_prints_what_is_below_it(guide, tmp_path):
    """The blocks of one page share their names, and the files that they write, unless one asks for a fresh process."""
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```\n(.*?)```)?", (ROOT / guide).read_text(), re.DOTALL)
    processes = []
    for block in blocks:
        if not processes or block[0].startswith("# In a fresh process.\n"):
            processes.append([])
        processes[-1].append(block)
    for shared in processes:
        code = f"print({SEPARATOR!r}, end='')\n".join(code for code, _ in shared)
        printed = run_python(code, cwd=tmp_path).stdout.split(SEPARATOR)
        for (code, expected), actual in zip(shared, printed, strict=True):
            assert actual == expected, code


SHAPES = re.findall(
    r"^\| `(\[.*?)` \| `(.*?)` \| `(.*?)` \| `(.*?)` \| `(.*?)` \|$", (ROOT / "docs" / "shapes.md").read_text(), re.M
)


@pytest.mark.parametrize("row", SHAPES, ids=" ".join)
def test_the_table_of_shapes_gives_the_gradient(row, rng):
    *shapes, axis, formula = row
    sizes = {"n": 5, "m": 4, "p": 2, "q": 3, "B": 3, "D": 4, "H": 3, "T": 2, "W": 4}
    x, fx, gx = (rng.normal(size=eval(shape, sizes)) for shape in shapes)
    dy = rng.normal(size=fx.shape)
    expected = eval(formula, sizes | {"dy": dy, "gx": gx, "sum": np.sum, "ones": np.ones, "tensordot": np.tensordot})
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = cg.embed_gradient(fx, gx, x, axis=eval(axis))
    np.testing.assert_allclose(tape.gradient(h, x, output_gradients=tf.constant(dy)), expected, rtol=1e-12)


def test_the_table_of_shapes_is_read():
    assert len(SHAPES) == 13


@pytest.mark.parametrize("guide", GUIDES)
def test_the_code_of_a_guide_has_short_lines(guide):
    code = "".join(re.findall(r"```python\n(.*?)```", (ROOT / guide).read_text(), re.DOTALL))
    assert [line for line in code.splitlines() if len(line) > 88] == []


def test_the_code_of_the_quickstart_has_short_lines():
    cells = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text())["cells"]
    lines = [line.rstrip("\n") for cell in cells if cell["cell_type"] == "code" for line in cell["source"]]
    assert len(lines) > 50
    assert [line for line in lines if len(line) > 88] == []


def test_the_gallery_links_to_every_example():
    linked = re.findall(r"\(examples/(\w+)\.md\)", (ROOT / "docs" / "gallery.md").read_text())
    assert set(linked) == {path.stem for path in source_files("examples/**/*.py", "examples/**/*.c")}


def test_the_gallery_shows_what_the_examples_and_the_demo_draw():
    shown = re.findall(r"\(figures/(\w+)\.png\)", (ROOT / "docs" / "gallery.md").read_text())
    drawn = {path.stem for path in source_files("examples/*.py") if f"{path.stem}.png" in path.read_text()}
    assert drawn | {"learning_curves"} <= set(shown)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_complete_type_hints(name):
    function = PUBLIC[name].__init__ if inspect.isclass(PUBLIC[name]) else PUBLIC[name]
    hints = typing.get_type_hints(function)
    parameters = [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
    assert set(hints) == {*parameters, "return"}
